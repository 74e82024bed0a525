"""What killed runs leave is removed; what lives, here or elsewhere, is never touched."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.cli import main
from gymnast.sandboxes import LocalSandbox
from gymnast.sandboxes.backends.sweep import sweep
from gymnast.sandboxes.lifetime.owner import (
    Owner,
    folder_prefix,
    host_id,
    owner_labels,
    owner_of_folder,
    owner_of_labels,
    this_process,
)
from pool_fixtures import eventually

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of this test's own, for it and for what it starts."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def start(temporary: Path) -> Iterator[Start]:
    """Starts a program, and waits for its first line."""
    started = []

    def start(program: str, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


SURVIVOR = """
import time
from gymnast.sandboxes import LocalSandbox
box = LocalSandbox()
box.python("import subprocess; p = subprocess.Popen(['sleep', '999'], start_new_session=True)")
print(box.folder, box.python("p.pid").stdout.strip(), flush=True)
time.sleep(999)
"""


def test_an_owner_can_be_read_from_what_it_is_written_on() -> None:
    owner = this_process()
    assert owner_of_labels(owner_labels()) == owner
    assert owner_of_folder(folder_prefix() + "a1b2_c3d") == owner
    assert owner.is_here and owner.lives
    assert (owner.pid, owner.host) == (os.getpid(), host_id())
    assert not Owner(owner.host, owner.pid, owner.started + 1).lives  # the id is used again
    for name in ("gymnast-1-2-3", "gymnast-", folder_prefix(), "x" + folder_prefix() + "abc"):
        assert owner_of_folder(name) is None
    assert owner_of_labels({"gymnast.owner.pid": "x"}) is None


AS_ANOTHER_USER = """
import os, sys
from gymnast.sandboxes.lifetime.owner import Owner, host_id
os.setgroups([]); os.setgid(65534); os.setuid(65534)
pid, started = map(int, sys.argv[1:])
print(os.path.exists(f"/proc/{pid}"), Owner(host_id(), pid, started).lives)
"""


def test_an_owner_that_proc_hides_lives() -> None:
    """Mounted with hidepid=2, as where many users share a machine, /proc shows each its own."""
    owner = this_process()
    mount = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    program = [sys.executable, "-c", AS_ANOTHER_USER, str(owner.pid), str(owner.started)]
    try:
        ended = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mount, "sh", *program],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("this machine has no unshare")
    if re.search("unshare|mount", ended.stderr):
        pytest.skip(f"only root may mount a /proc: {ended.stderr.strip()}")
    assert ended.stdout.split() == ["False", "True"], ended.stderr


def test_what_a_killed_run_has_left_is_removed(start: Start, temporary: Path) -> None:
    run = start(SURVIVOR)
    folder, survivor = first_line(run).split()
    assert sweep(containers=False).folders == 0
    run.kill()
    run.wait()
    swept = sweep(containers=False)
    assert swept.folders == 1
    assert not Path(folder).exists()
    assert eventually(lambda: not is_running(int(survivor)))
    assert list(temporary.iterdir()) == []
    assert sweep(containers=False).folders == 0


def test_processes_that_outlived_their_worker_are_killed(start: Start) -> None:
    run = start(SURVIVOR)
    folder, survivor = first_line(run).split()
    worker = _parent_of_session(folder)
    os.kill(worker, signal.SIGSTOP)  # it cannot clean up when its owner goes
    try:
        run.kill()
        run.wait()
        assert is_running(int(survivor))
        assert sweep(containers=False).processes >= 1
        assert eventually(lambda: not is_running(int(survivor)) and not is_running(worker))
    finally:
        if is_running(worker):
            os.kill(worker, signal.SIGKILL)


UNMARKED = SURVIVOR.replace("start_new_session=True", "env={}, start_new_session=True")


def test_children_of_processes_that_show_their_mark_are_killed_too(start: Start) -> None:
    """A worker does not show it to an ordinary user, nor does what has emptied its environment."""
    run = start(UNMARKED)
    folder, survivor = first_line(run).split()
    worker = _parent_of_session(folder)
    os.kill(worker, signal.SIGSTOP)
    try:
        run.kill()
        run.wait()
        sweep(containers=False)
        assert eventually(lambda: not is_running(int(survivor)))
    finally:
        for pid in (worker, int(survivor)):
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def _parent_of_session(folder: str) -> int:
    """The worker of the box with this folder: of those with its mark, the first one started."""
    mark = f"GYMNAST_LOCAL_SANDBOX={Path(folder).name}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return min(found)


def test_boxes_of_runs_that_live_are_never_touched(start: Start) -> None:
    run = start(SURVIVOR)
    folder, survivor = first_line(run).split()
    with LocalSandbox() as own:
        swept = sweep(containers=False, all_hosts=True)
        assert swept.folders == 0
        assert own.ping()
    assert Path(folder).exists() and is_running(int(survivor))


def test_folders_of_other_hosts_are_left_unless_asked_for(temporary: Path) -> None:
    elsewhere = temporary / "gymnast-0123456789ab-1-1-abcdefgh"
    elsewhere.mkdir()
    others = [temporary / "gymnast-mine", temporary / "gymnast-1-2-old"]
    for other in others:
        other.mkdir()
    link = temporary / f"gymnast-{host_id()}-999999999-1-abcdefgh"
    link.symlink_to(others[0])
    swept = sweep(containers=False)
    assert (swept.folders, swept.elsewhere) == (0, 1)
    assert elsewhere.exists() and link.is_symlink()
    assert sweep(containers=False, all_hosts=True).folders == 1
    assert not elsewhere.exists() and all(other.exists() for other in others)


def test_a_pool_sweeps_when_it_begins(start: Start, temporary: Path) -> None:
    run = start(SURVIVOR)
    folder, _ = first_line(run).split()
    run.kill()
    run.wait()
    program = """
import os, sys, time
from gymnast.sandboxes import SandboxPool
with SandboxPool("local") as pool:
    pool.take().close()
    while os.path.exists(sys.argv[1]): time.sleep(0.01)
print("swept")
"""
    assert first_line(start(program, folder)) == "swept"


# --- SIGTERM

TERMINATED = """
import signal, sys, time
from gymnast.sandboxes.pool.pool import shared_pool
from gymnast.sandboxes.lifetime.signals import close_boxes_on_sigterm
if sys.argv[1] == "own":
    signal.signal(signal.SIGTERM, lambda number, frame: (print("mine", flush=True), sys.exit(7)))
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[2] == "yes":
    close_boxes_on_sigterm()
box = shared_pool("local").take()
box.python("import subprocess; p = subprocess.Popen(['sleep', '999'], start_new_session=True)")
print(box.python("p.pid").stdout.strip(), flush=True)
if sys.argv[1] == "ignored":
    sys.stdin.read()
box.exec("sleep 999", timeout_s=999)
time.sleep(999)
"""


@pytest.mark.parametrize(("handler", "code"), [("none", -signal.SIGTERM), ("own", 7)])
def test_sigterm_closes_all_and_ends_the_process_as_before(
    start: Start, temporary: Path, handler: str, code: int
) -> None:
    run = start(TERMINATED, handler, "yes")
    survivor = int(first_line(run))
    run.terminate()
    said, complaints = run.communicate(timeout=60)
    assert (run.returncode, said) == (code, "mine\n" if handler == "own" else ""), complaints
    assert list(temporary.iterdir()) == []
    assert not is_running(survivor)


def test_without_the_handler_folders_are_left_to_the_next_run(
    start: Start, temporary: Path
) -> None:
    run = start(TERMINATED, "none", "no")
    first_line(run)
    run.terminate()
    assert run.wait(60) == -signal.SIGTERM
    assert len(list(temporary.iterdir())) >= 1
    assert sweep(containers=False).folders >= 1
    assert list(temporary.iterdir()) == []


def test_importing_installs_no_handler() -> None:
    program = (
        "import signal, gymnast.cli, gymnast.sandboxes.pool.pool\n"
        "import gymnast.sandboxes.lifetime.signals\n"
        "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout == "True\n"


def test_a_sigterm_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnast.sandboxes.lifetime.signals import close_boxes_on_sigterm

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        close_boxes_on_sigterm()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


# --- The command line


def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["gymnast", *arguments])
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, capsys.readouterr().out


def test_the_command_sweeps(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    run = start(SURVIVOR)
    first_line(run)
    run.kill()
    run.wait()
    code, said = run_command(monkeypatch, capsys, "sandboxes", "sweep")
    assert code == 0
    assert re.fullmatch(r"removed: 0 containers, 1 folders, \d+ processes\n", said)


def test_the_command_says_what_it_has_left(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    (temporary / "gymnast-0123456789ab-1-1-abcdefgh").mkdir()
    code, said = run_command(monkeypatch, capsys, "sandboxes", "sweep")
    assert (code, "left: 1 boxes of owners on another host" in said) == (0, True)
    code, said = run_command(monkeypatch, capsys, "sandboxes", "sweep", "--all-hosts")
    assert re.fullmatch(r"removed: 0 containers, 1 folders, \d+ processes\n", said)


def test_the_command_lists_backends_with_reasons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    code, said = run_command(monkeypatch, capsys, "sandboxes")
    assert code == 0
    lines = dict(line.split(maxsplit=1) for line in said.splitlines())
    assert lines["docker"].startswith("does not work: no Docker engine answers")
    assert lines["local"] == "works, without isolation"
    assert lines["landlock"] != "works, without isolation"


# --- Containers

CONTAINER = """
import sys, time
from gymnast.sandboxes import DockerSandbox
from gymnast.sandboxes.docker.engine import engine_client
box = DockerSandbox(image=sys.argv[1])
engine_client().pause(box.container_id)  # so that it cannot end with its owner
print(box.container_id, flush=True)
time.sleep(999)
"""


def containers() -> dict[str, Any]:
    from gymnast.sandboxes.docker.engine import engine_client

    return {found["Id"]: found for found in engine_client().containers(all=True)}


@pytest.mark.docker
def test_containers_of_a_killed_run_are_removed_and_others_left(
    start: Start, docker_image: str
) -> None:
    living, killed = start(CONTAINER, docker_image), start(CONTAINER, docker_image)
    left, removed = first_line(living), first_line(killed)
    killed.kill()
    killed.wait()
    assert {left, removed} <= set(containers())
    assert sweep().containers >= 1
    assert left in containers() and removed not in containers()
    living.kill()
    living.wait()
    assert sweep().containers >= 1
    assert left not in containers()


@pytest.mark.docker
def test_containers_of_another_host_are_left(docker_image: str) -> None:
    from gymnast.sandboxes.docker.engine import engine_client

    api = engine_client()
    labels = {**owner_labels(), "gymnast.owner.host": "0123456789ab", "gymnast.owner.pid": "1"}
    made = api.create_container(docker_image, ["true"], labels=labels)["Id"]
    unlabelled = api.create_container(docker_image, ["true"])["Id"]
    try:
        swept = sweep()
        assert swept.elsewhere >= 1
        assert {made, unlabelled} <= set(containers())
    finally:
        for container in (made, unlabelled):
            api.remove_container(container)


@pytest.mark.docker
def test_sigterm_removes_containers(start: Start, docker_image: str) -> None:
    program = """
import sys, time
from gymnast.sandboxes import SandboxSpec
from gymnast.sandboxes.pool.pool import shared_pool
from gymnast.sandboxes.lifetime.signals import close_boxes_on_sigterm
close_boxes_on_sigterm()
pool = shared_pool("docker", SandboxSpec(image=sys.argv[1]))
boxes = [pool.take() for _ in range(3)]
print(*[box.box.container_id for box in boxes], flush=True)
boxes[0].exec("sleep 999", timeout_s=999)
"""
    run = start(program, docker_image)
    taken = set(first_line(run).split())
    assert len(taken) == 3
    run.terminate()
    assert run.wait(60) == -signal.SIGTERM
    mine = [
        c for c in containers().values() if c["Labels"].get("gymnast.owner.pid") == str(run.pid)
    ]
    assert mine == [], json.dumps(mine)
