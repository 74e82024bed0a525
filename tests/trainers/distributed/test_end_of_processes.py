"""How a process ends that was one of several: without the teardown of Python."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

PROGRAM = """
import atexit
from types import SimpleNamespace

from gymnast.trainers.distributed.processes import end


class TornDown:
    def __del__(self):
        print("torn down")


kept = TornDown()
atexit.register(print, "exit functions")
end(SimpleNamespace(end_training=lambda: print("left"), num_processes={processes}))
print("goes on")
"""


def run(processes: int) -> tuple[int, list[str]]:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{processes}", str(processes))],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert not ended.stderr
    return ended.returncode, ended.stdout.splitlines()


def test_one_of_several_processes_runs_its_exit_functions_and_ends() -> None:
    assert run(2) == (0, ["left", "exit functions"])


def test_the_only_process_goes_on() -> None:
    assert run(1) == (0, ["left", "goes on", "exit functions", "torn down"])
