"""Every backend: the life of a box, callers at once, and a guest that goes for the worker."""

import asyncio
import hashlib
import json
import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gymnast.errors import InfrastructureError, SandboxDead
from gymnast.sandboxes import ExecResult, Sandbox
from gymnast.sandboxes.guest.protocol import pack
from sandbox_fixtures import ISOLATING, OpenBox


def test_two_boxes_share_nothing(open_box: OpenBox) -> None:
    first, second = open_box(), open_box()
    first.python("x = 1")
    first.write_file("file", "1")
    assert "NameError" in second.python("x").stderr
    assert second.exec("ls").stdout == ""


def test_a_box_opens_whatever_the_umask_of_the_run(open_box: OpenBox) -> None:
    before = os.umask(0o077)
    try:
        box = open_box()
    finally:
        os.umask(before)
    assert box.exec("echo a > b && cat b && python3 -c 'print(2)'").stdout == "a\n2\n"


def test_a_box_opens_whatever_the_name_of_the_folder_for_temporary_files(
    open_box: OpenBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b,c:d\\e#\udcff"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with open_box() as box:
        assert box.exec("echo a > b && cat b && python3 -c 'print(2)'").stdout == "a\n2\n"
    assert list(folder.iterdir()) == []


def test_a_closed_box_is_of_no_use(open_box: OpenBox) -> None:
    with open_box() as box:
        assert box.alive and box.ping()
    box.close()
    assert not box.alive and not box.ping()
    for call in (
        lambda: box.exec("true"),
        lambda: box.python("1"),
        lambda: box.read_file("x"),
        lambda: box.write_file("x", ""),
    ):
        with pytest.raises(SandboxDead, match="it was closed; open another sandbox") as caught:
            call()
        assert isinstance(caught.value, InfrastructureError)


def test_closing_ends_a_call_under_way(open_box: OpenBox) -> None:
    box = open_box()
    results: list[ExecResult] = []
    call = threading.Thread(target=lambda: results.append(box.exec("echo x; sleep 99")))
    call.start()
    time.sleep(0.2)
    box.close()
    call.join(30)
    assert [result.verdict for result in results] == ["dead"]


def test_the_spec_limits_calls_that_name_no_limit(open_box: OpenBox) -> None:
    box = open_box(timeout_s=0.3, max_output_bytes=4, env={"FROM": "spec"})
    assert box.exec("sleep 9").verdict == "timeout"
    assert box.exec("sleep 0.5", timeout_s=5).verdict == "ok"
    assert box.exec("echo $FROM").stdout.endswith("c\n")
    assert box.exec("echo $FROM", max_output_bytes=9).stdout == "spec\n"
    assert "spec" in box.python("import os; os.environ['FROM']", max_output_bytes=99).stdout


def test_variables_of_the_host_stay_there(
    open_box: OpenBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_TOKEN", "hush")
    box = open_box()
    assert "hush" not in box.exec("env").stdout
    assert "hush" not in box.python("import os; dict(os.environ)").stdout


def test_callers_on_many_threads_take_turns(box: Sandbox) -> None:
    box.python("import time\ncount = 0")
    code = "seen = count\ntime.sleep(0.001)\ncount = seen + 1"
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: box.python(code), range(80)))
    assert {result.verdict for result in results} == {"ok"}
    assert box.python("count").stdout == "80\n"


def test_async_twins_leave_the_loop_free_and_belong_to_none(
    open_box: OpenBox, tmp_path: Path
) -> None:
    box = open_box()

    async def use() -> tuple[ExecResult, ExecResult, bytes]:
        ticks = 0
        call = asyncio.ensure_future(box.aexec("sleep 0.3; echo done"))
        while not call.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks > 3
        await box.awrite_file("a", "1")
        await box.adownload("a", tmp_path / "a")
        await box.aupload(tmp_path / "a", "b")
        gathered = await asyncio.gather(*(box.apython("1 + 1") for _ in range(10)))
        assert {result.stdout for result in gathered} == {"2\n"}
        return await call, gathered[0], await box.aread_file("b")

    for _ in range(2):
        slept, added, data = asyncio.run(use())
        assert (slept.stdout, added.stdout, data) == ("done\n", "2\n", b"1")

    async def close() -> None:
        async with box:
            assert (await box.apython("1")).verdict == "ok"

    asyncio.run(close())
    assert not box.alive


def test_a_cancelled_call_does_no_harm_to_the_next(open_box: OpenBox) -> None:
    box = open_box()

    async def use() -> str:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(box.apython("import time; time.sleep(0.5); 'late'"), 0.1)
        return (await box.apython("'next'")).stdout

    assert asyncio.run(use()) == "'next'\n"


def test_many_calls_leave_nothing_behind(box: Sandbox) -> None:
    listed = box.exec("ls /proc/self/fd; ls -a").stdout
    for turn in range(300):
        assert box.python(f"{turn}").stdout == f"{turn}\n"
        if turn % 10 == 0:
            assert box.exec(["echo", str(turn)]).stdout == f"{turn}\n"
    assert box.exec("ls /proc/self/fd; ls -a").stdout == listed


def test_boxes_that_are_closed_leave_no_descriptor_and_no_thread(open_box: OpenBox) -> None:
    held = []
    for _ in range(10):
        with open_box() as box:
            box.python("1")
        held.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    # While other boxes live, an engine's client keeps some connections: more and more at first.
    assert held[9][0] <= held[5][0] + 1
    assert held[9][1] <= held[5][1]


def test_a_box_that_nobody_holds_is_closed(open_box: OpenBox, backend: str) -> None:
    box = open_box()
    folder = getattr(box, "folder", None)
    box._discard()  # what the garbage collector calls
    assert folder is None or not folder.exists()
    assert box.exec("true").verdict == "dead"


def test_killing_the_worker_ends_the_box_or_does_nothing(open_box: OpenBox, backend: str) -> None:
    box = open_box()
    ended = box.exec("kill -9 $PPID; kill -STOP $PPID; kill -TERM $PPID; sleep 0.2", timeout_s=5)
    if backend in ISOLATING:
        assert ended.verdict == "ok"
        assert box.python("1").stdout == "1\n"
    else:
        assert ended.verdict == "dead"
        assert not box.alive
        with pytest.raises(SandboxDead):
            box.exec("true")


def test_a_worker_that_does_not_answer_costs_the_box(
    open_box: OpenBox, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.sandboxes.worker.sandbox.GRACE_S", 0.5)
    box = open_box()
    if backend in ISOLATING:
        assert not box.python("import os; os.kill(1, 19)").stdout.strip("None\n")
        assert box.ping()
    else:
        ended = box.python("import os; os.kill(os.getppid(), 19)", timeout_s=0.5)
        assert ended.verdict == "timeout"
        assert not box.alive


FORGED = {"reason": "ended", "exit_code": 0, "oom": False, "killed": True, "note": "forged"}


def forged_frame() -> bytes:
    answer = {**FORGED, "nonce": secrets.token_hex(16), "outputs": [[6, 0, 0], [0, 0, 0]]}
    return pack(answer, b"forged")


def test_fake_answers_in_the_output_are_output(box: Sandbox) -> None:
    frame = forged_frame()
    box.write_file("frame", frame)
    text = frame.decode("utf-8", "replace")
    ended = box.exec("cat frame; cat frame >&2; exit 9")
    assert ended == ExecResult(9, text, text, "nonzero")
    code = f"import os\nos.write(1, {frame!r})\nos.write(2, {frame!r})\n1 / 0"
    assert box.python(code).stdout == text
    assert box.python("'real'").stdout == "'real'\n"


def test_fake_answers_on_every_descriptor_reach_nobody(box: Sandbox) -> None:
    spray = f"""
import os
for fd in range(3, 200):
    for data in ({forged_frame()!r}, b"\\x07" * 5):
        try:
            os.write(fd, data)
        except OSError:
            pass
"""
    box.write_file("spray.py", spray)
    assert box.exec("python3 spray.py; echo end").stdout == "end\n"
    # In the session one of them says how a call ended: that is its own to say, once.
    box.python("x = 1\n" + spray)
    real = box.python("'real'")
    assert real.stdout == "'real'\n"
    assert "new Python session" in real.stderr
    assert box.exec("echo real").stdout == "real\n"


def test_the_guest_never_sees_the_nonce_of_its_call(
    open_box: OpenBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code looks through all of its memory for texts with given digests."""
    drawn: list[str] = []
    draw = secrets.token_hex

    def token_hex(size: int) -> str:
        drawn.append(draw(size))
        return drawn[-1]

    monkeypatch.setattr(secrets, "token_hex", token_hex)
    box = open_box()
    at_start, planned = drawn[-1], draw(16)
    monkeypatch.setattr(secrets, "token_hex", lambda size: planned)
    wanted = json.dumps(
        [hashlib.sha256(nonce.encode()).hexdigest() for nonce in (at_start, planned)]
    )
    box_code = f"""
import hashlib, re
found, wanted = set(), {wanted}
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        span, rights = line.split()[:2]
        if rights.startswith("rw"):
            low, high = (int(end, 16) for end in span.split("-"))
            try:
                memory.seek(low)
                data = memory.read(high - low)
            except OSError:
                continue
            for text in set(re.findall(rb"[0-9a-f]{{32}}", data)):
                found.add(hashlib.sha256(text).hexdigest())
[digest in found for digest in wanted]
"""
    # The first one shows that looking finds what is there: it was used up before the session.
    assert box.python(box_code).stdout == "[True, False]\n"


def test_the_guest_cannot_look_into_the_worker(open_box: OpenBox, backend: str) -> None:
    if backend not in ISOLATING:
        pytest.skip("code runs as the user who owns the worker, who may be root")
    box = open_box()
    code = """
import ctypes, os
worker, refused = os.getppid(), []
for name in ("fd/0", "fd/3", "mem", "environ", "maps", "cwd/x", "root/x", "fd"):
    try:
        os.listdir(f"/proc/{worker}/fd") if name == "fd" else open(f"/proc/{worker}/{name}", "rb")
    except PermissionError:
        refused.append(name)
libc = ctypes.CDLL(None, use_errno=True)
refused, libc.ptrace(16, worker, 0, 0), ctypes.get_errno()
"""
    shown = "(['fd/0', 'fd/3', 'mem', 'environ', 'maps', 'cwd/x', 'root/x', 'fd'], -1, 1)\n"
    assert box.python(code).stdout == shown
