"""What a Landlock box adds to the contract: refusals with reasons, and nothing left behind."""

import ctypes
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import gymnast.sandboxes.host.files as host_files
import gymnast.sandboxes.host.landlock as landlock
import gymnast.sandboxes.host.plan as host_plan
from attack_fixtures import MIB, processes_with, tries
from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes import ExecResult, LandlockSandbox, SandboxSpec, open_sandbox
from gymnast.sandboxes.backends.sweep import sweep
from gymnast.sandboxes.host.cgroups import Groups
from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE
from gymnast.sandboxes.lifetime.processes import threads_of_user
from sandbox_fixtures import (
    python_that_everyone_may_use,
    skip_without_landlock,
    without_namespaces,
)


@pytest.fixture
def asked_anew() -> Any:
    """The answer of the probe is kept for a process; not beyond this test."""
    for answer in (landlock._why_not, landlock._why_no_namespaces):
        answer.cache_clear()
    yield
    for answer in (landlock._why_not, landlock._why_no_namespaces):
        answer.cache_clear()


class Kernel:
    """Answers as one that has a given version of Landlock; below 0: none."""

    def __init__(self, abi: int) -> None:
        self.abi = abi

    def syscall(self, *arguments: Any) -> int:
        return self.abi


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("machine", lambda: "s390x", "this is linux on s390x; it takes Linux on x86-64"),
        ("CDLL", lambda *_, **__: Kernel(-1), "has no Landlock, it is off"),
        ("CDLL", lambda *_, **__: Kernel(4), "has Landlock ABI 4; it takes 6"),
        ("_try", lambda **_: "a process in a box could read /x", "could read /x"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_what_is_missing_is_named(
    name: str,
    value: Callable[..., Any],
    reason: str,
    asked_anew: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "_try":
        skip_without_landlock()
        landlock._why_not.cache_clear()
        landlock._why_no_namespaces.cache_clear()
    owners = {"machine": platform, "CDLL": ctypes}
    monkeypatch.setattr(owners.get(name, landlock), name, value)
    with pytest.raises(SandboxUnavailable, match=reason + ".*Another backend"):
        open_sandbox("landlock")


def test_the_probe_sees_what_is_open(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_landlock()
    namespaces = not landlock._why_no_namespaces(os.getpid())
    more = host_files.files_here().with_folder("/etc/passwd")
    monkeypatch.setattr(host_plan, "files_here", lambda: more)
    assert landlock._try(namespaces=namespaces) == "a process in a box could read /etc/passwd"


def test_root_is_given_up() -> None:
    skip_without_landlock()
    with LandlockSandbox() as box:
        user_id = int(box.python("import os; os.getuid()").stdout)
        if os.geteuid() == 0:
            assert user_id not in (0, os.getuid())
            with LandlockSandbox() as other:
                assert int(other.python("import os; os.getuid()").stdout) != user_id
        else:
            assert user_id == os.getuid()


def processes_of(box_folder: Path) -> list[int]:
    """Of the launcher and the worker, by their mark; the worker's own cannot be asked for it."""
    mark, found = f"{MARK_VARIABLE}={box_folder.name}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_nothing_is_left_after_its_owner_is_killed(mark: str) -> None:
    skip_without_landlock()
    program = (
        "import os, signal\nfrom gymnast.sandboxes import LandlockSandbox\n"
        "box = LandlockSandbox()\nbox.python('import subprocess; "
        f'subprocess.Popen(["python3", "-c", "import time; time.sleep(600)", "{mark}"])\')\n'
        "print(box.folder, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    folder = Path(shown.strip())
    wait_until(lambda: not processes_with(mark) and not processes_of(folder))
    for path in ("root", "work", "tmp"):  # in memory, with namespaces
        assert not os.listdir(folder / path)
    sweep(containers=False)
    assert not folder.exists()
    assert not groups_of(folder.name)


def groups_of(name: str) -> list[str]:
    return [path for path, names, _ in os.walk("/sys/fs/cgroup") for one in names if one == name]


def test_a_launcher_that_is_killed_takes_its_box_along(mark: str) -> None:
    skip_without_landlock()
    with LandlockSandbox() as box:
        box.python(f"import subprocess; subprocess.Popen(['sh', '-c', 'sleep 600; : {mark}'])")
        assert processes_with(mark)
        launcher, *_ = processes_of(box.folder)
        os.kill(launcher, signal.SIGKILL)
        wait_until(lambda: not box.ping(timeout_s=1))
    assert not processes_with(mark)
    assert processes_of(box.folder) == []
    assert not box.folder.exists()


def test_processes_start_time_after_time() -> None:
    """A box in whose way anything stands at a fork hangs sooner or later."""
    skip_without_landlock()

    def start_one(_: int) -> str:
        with LandlockSandbox(SandboxSpec(timeout_s=20)) as box:
            return box.python('import subprocess; subprocess.Popen(["sleep", "600"])').verdict

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(start_one, range(30))) == {"ok"}


def test_pipelines_run_time_after_time(box: LandlockSandbox) -> None:
    for _ in range(60):
        assert box.exec("seq 100 | sort -n | tail -1") == ExecResult(0, "100\n", "", "ok")


@pytest.fixture(scope="module")
def box() -> Iterator[LandlockSandbox]:
    skip_without_landlock()
    with LandlockSandbox() as box:
        yield box


@pytest.fixture(scope="module")
def plain() -> Iterator[landlock._Box]:
    """A box as it is where the kernel refuses namespaces."""
    with python_that_everyone_may_use(), without_namespaces() as box:
        assert landlock._try(namespaces=False) == ""
        yield box


def skip_without_namespaces(box: landlock._Box) -> None:
    if not box.namespaces:
        pytest.skip("boxes have no namespaces of their own here")


def test_a_root_of_its_own(box: LandlockSandbox) -> None:
    skip_without_namespaces(box)
    shown = set(box.exec("ls -A /").stdout.split())
    assert shown >= {"usr", "dev", "proc", "tmp"}
    assert not shown & {"boot", "home", "mnt", "opt", "run", "srv", "var"}
    assert {*box.exec("ls /usr").stdout.split()} == {*os.listdir("/usr")}
    assert box.exec("ls /dev").stdout.split() == [
        "fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero",
    ]  # fmt: skip
    assert box.exec("echo a > /dev/null && (echo b > /tmp/b) && touch /dev/shm/c d").verdict == "ok"
    for path in ("/file", "/usr/file", "/dev/file", "/proc/self/oom_score_adj"):
        assert box.exec(f"echo 0 > {path}").verdict == "nonzero", path


def test_programs_of_the_system_run(box: LandlockSandbox) -> None:
    assert box.exec("echo a b | awk '{print $2}'").stdout == "b\n"
    assert box.exec(["bash", "-c", "cat <(echo through a descriptor)"]).stdout.startswith("thr")
    assert box.exec("python3 -c 'import sys; print(sys.version_info[:2])'").stdout == (
        f"{sys.version_info[:2]}\n"
    )


def test_what_it_starts_is_killed_before_the_worker(box: LandlockSandbox) -> None:
    skip_without_namespaces(box)
    # The worker takes its own back once the command runs.
    scores = "sleep 0.1; cat /proc/self/oom_score_adj /proc/1/oom_score_adj"
    assert box.exec(scores).stdout.split() == ["1000", "500"]
    session = box.python("open('/proc/self/oom_score_adj').read()").stdout
    assert session == "'1000\\n'\n"


def test_namespaces_of_its_own(box: LandlockSandbox) -> None:
    skip_without_namespaces(box)
    for kind in ("cgroup", "ipc", "mnt", "net", "pid", "uts"):
        own = box.python(f"import os; print(os.readlink('/proc/self/ns/{kind}'))").stdout.strip()
        assert own.startswith(kind)
        assert own != os.readlink(f"/proc/self/ns/{kind}")
    assert box.python("os.getppid()").stdout == "1\n"
    pids = box.python("sorted(int(name) for name in os.listdir('/proc') if name.isdigit())")
    assert pids.stdout.startswith("[1, ") and len(pids.stdout.split()) <= 3
    lines = box.exec("cat /proc/net/dev").stdout.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]
    assert box.exec("hostname").stdout == "box\n"


def test_out_of_memory_is_a_verdict_where_there_are_control_groups(box: LandlockSandbox) -> None:
    skip_without_namespaces(box)
    if "memory" not in box.controllers:
        pytest.skip("no control group for memory can be made here")
    bomb = "held = bytearray(1 << 30)"
    ended = box.exec(["python3", "-c", bomb])
    assert (ended.verdict, ended.exit_code) == ("oom", 137)
    assert box.python(bomb).verdict == "oom"
    assert box.python("'after'").stdout == "'after'\n"


def test_without_control_groups_each_process_has_its_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skip_without_landlock()
    monkeypatch.setattr(landlock, "make_groups", lambda *_, **__: Groups({}, None))
    with LandlockSandbox(SandboxSpec(memory_bytes=128 * MIB, processes=8, cpus=0.5)) as box:
        assert box.controllers == frozenset()
        assert "MemoryError" in box.python("held = bytearray(1 << 30)").stderr
        # As docs/isolation.md says: what is shared is not limited.
        shared = "import mmap; m = mmap.mmap(-1, 160 << 20)"
        shared += "\nfor _ in range(160): m.write(bytes(1 << 20))"
        assert box.exec(["python3", "-c", shared]).verdict == "ok"
        assert box.python("import os; len(os.sched_getaffinity(0))").stdout == "1\n"
        if box.namespaces or os.geteuid() == 0:
            ended = box.exec("for n in $(seq 20); do sleep 1 & done; wait")
            assert "fork" in ended.stderr


def test_threads_that_are_counted_for_the_user_are_bounded(plain: landlock._Box) -> None:
    if os.geteuid() == 0:
        pytest.skip("the boxes of root are users of their own")
    shown = plain.python("import resource; resource.getrlimit(resource.RLIMIT_NPROC)[0]")
    most = int(shown.stdout)
    at_start = threads_of_user(os.getuid())
    assert 1024 < most < 1024 + 2 * at_start + 100


def test_the_rights_of_the_runs_own_files_cannot_be_changed(
    plain: landlock._Box, tmp_path: Path
) -> None:
    if os.geteuid() == 0:
        pytest.skip("the boxes of root are users of their own")
    path = tmp_path / "file"
    path.write_text("")
    before = path.stat()
    plain.exec(f"chmod 777 {path} {tmp_path}; chgrp $(id -g) {path}")
    assert tries(plain, {"": f"__import__('os').setxattr({str(path)!r}, 'user.a', b'')"}) == {
        "": "PermissionError"
    }
    assert path.stat() == before


def test_without_namespaces_nothing_is_shown_of_other_processes(
    plain: landlock._Box, mark: str
) -> None:
    with subprocess.Popen(["sh", "-c", f"sleep 600; : {mark}"]) as other:
        outcome = tries(
            plain,
            {
                "all": "__import__('os').listdir('/proc')",
                "command": f"open('/proc/{other.pid}/cmdline').read()",
                "own": "open('/proc/self/environ').read()",
                "signal": f"__import__('os').kill({other.pid}, 9)",
                "worker": "open(f'/proc/{__import__(\"os\").getppid()}/mem')",
            },
        )
        assert set(outcome.values()) == {"PermissionError"}, outcome
        assert plain.exec("kill -9 -1; ps").verdict != "ok"
        assert other.poll() is None
        other.kill()
    assert "MemTotal" in plain.exec("cat /proc/meminfo").stdout


def test_what_is_shown_without_namespaces_of_files_that_cannot_be_opened(
    plain: landlock._Box,
) -> None:
    """As docs/isolation.md says: that they are there, and where links lead; no more."""
    folder = Path(tempfile.mkdtemp(prefix="gymnast-shown-", dir="/var/tmp"))
    folder.chmod(0o755)
    path = folder / "answer-is-42"
    path.write_text("secret")
    path.chmod(0o644)
    (folder / "link").symlink_to("/the/answer/is/42")
    try:
        os.setxattr(path, "user.answer", b"42")
        outcome = tries(
            plain,
            {
                "exists": f"__import__('os').path.exists({str(path)!r})",
                "size": f"__import__('os').stat({str(path)!r}).st_size",
                "link": f"__import__('os').readlink({str(folder / 'link')!r})",
                "process": f"__import__('os').path.exists('/proc/{os.getpid()}')",
                "attribute": f"__import__('os').getxattr({str(path)!r}, 'user.answer')",
                "attributes": f"__import__('os').listxattr({str(path)!r})",
                "names": f"__import__('os').listdir({str(folder)!r})",
                "text": f"open({str(path)!r}).read()",
            },
        )
        listed = plain.exec(f"ls -l {path}; ls -l; cp -a /usr/bin/env mine")
        packages = plain.exec("ls /usr/lib/python3/dist-packages").stdout
    finally:
        shutil.rmtree(folder)
    assert outcome == {
        "exists": "True",
        "size": "6",
        "link": "'/the/answer/is/42'",
        "process": "True",
        "attribute": "OSError",
        "attributes": "OSError",
        "names": "PermissionError",
        "text": "PermissionError",
    }
    assert (listed.exit_code, listed.stderr) == (0, "")
    if os.path.isdir("/usr/lib/python3/dist-packages"):
        assert packages.split() == sorted(os.listdir("/usr/lib/python3/dist-packages"))


def test_without_namespaces_no_local_socket_can_be_reached(
    plain: landlock._Box,
) -> None:
    path = f"/var/tmp/gymnast-{secrets.token_hex(8)}"  # everyone may go there
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.chmod(path, 0o777)
        listener.listen()
        made = tries(
            plain,
            {
                "stream": f"__import__('socket').socket(1).connect({path!r})",
                "datagram pair": "__import__('socket').socketpair(1, 2)",
                "raw pair": "__import__('socket').socketpair(1, 3)",
            },
        )
        again = tries(plain, {"": f"__import__('socket').socketpair()[0].connect({path!r})"})
        os.unlink(path)
    assert set(made.values()) == {"PermissionError"}
    assert again == {"": "OSError"}  # it is connected, as it always will be
    pair = "import socket\na, b = socket.socketpair()\na.sendall(b'x')\nb.recv(1)"
    assert plain.python(pair).stdout == "b'x'\n"


def test_without_namespaces_what_is_left_is_killed(plain: landlock._Box, mark: str) -> None:
    survivor = (
        "import os, sys\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
        'os.execvpe("sleep", ["sleep", "600"], {"PATH": "/usr/bin:/bin"})'
    )
    plain.write_file("survivor.py", survivor)
    plain.exec(f"python3 survivor.py; (sh -c 'sleep 600; : {mark}' &) ; true")
    assert not processes_with(mark)
    assert plain.exec(f"sh -c 'sleep 600; : {mark}'", timeout_s=0.3).verdict == "timeout"
    assert not processes_with(mark)
    bomb = f"import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n# {mark}"
    assert plain.exec(["python3", "-c", bomb], timeout_s=1).verdict == "timeout"
    assert not processes_with(mark)


def test_a_share_of_a_core() -> None:
    skip_without_landlock()
    with LandlockSandbox(SandboxSpec(cpus=0.3)) as box:
        if "cpu" not in box.controllers:
            pytest.skip("no control group for CPU can be made here")
        ratio = """
import time
wall, cpu = time.monotonic(), time.process_time()
while time.process_time() - cpu < 0.3: pass
(time.process_time() - cpu) / (time.monotonic() - wall) < 0.6
"""
        assert box.python(ratio).stdout == "True\n"
