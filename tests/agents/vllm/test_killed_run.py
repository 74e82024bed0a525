"""Servers that a run started end with it, also when it is killed, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
HERE = Path(__file__).parents[1]
BENCHMARKS = HERE.parents[1] / "benchmarks"  # the fixtures import from there
ENDED_S = 120.0
OURS = ("keeper.py", "remover.py")  # which end servers and remove weights, and are no server


def in_shared_memory(process: psutil.Process) -> set[str]:
    """The files in shared memory that a process has open."""
    try:
        return {each.path for each in process.memory_maps() if each.path.startswith("/dev/shm/")}
    except psutil.Error:
        return set()


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a path that is short enough for those of sockets in it."""
    with tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["busy", "hung"])
def test_a_killed_run_leaves_nothing_behind(
    vllm_command: str, folder: Path, is_stopped: bool
) -> None:
    (temporary := folder / "temporary").mkdir()
    (weights := folder / "weights").mkdir()
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{BENCHMARKS}", "TMPDIR": str(temporary)}
    command = [sys.executable, str(HERE / "vllm_program.py"), vllm_command, str(weights)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        assert any(line == "ready\n" for line in run.stdout)
        started = psutil.Process(run.pid).children(recursive=True)
        shared = set().union(*map(in_shared_memory, started))
        ports = {
            each.laddr.port
            for process in started
            for each in process.net_connections()
            if each.status == "LISTEN"
        }
        assert len(started) >= 3 and shared and ports
        assert list(temporary.glob("gymnast-vllm-*")) and list(weights.iterdir())
        if is_stopped:  # a server that hangs cannot clean up after itself
            for process in started:
                if not any(ours in " ".join(process.cmdline()) for ours in OURS):
                    process.suspend()
        run.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(started, timeout=ENDED_S)
    assert not alive
    assert not {path for path in shared if Path(path.removesuffix(" (deleted)")).exists()}
    listening = {each.laddr.port for each in psutil.net_connections() if each.status == "LISTEN"}
    assert not ports & listening
    until = time.monotonic() + ENDED_S
    while (left := [*temporary.iterdir()]) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left
