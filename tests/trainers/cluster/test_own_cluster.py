"""A cluster that we start: it listens on the loopback alone, and nothing of it is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

pytestmark = pytest.mark.ray

PROGRAM = Path(__file__).parent.parent / "ray_program.py"
MARK = "GYMNAST_TEST_OF_OWN_CLUSTER"


def marked(mark: str) -> list[psutil.Process]:
    """The processes that have a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


class Running:
    """The program, and what there is of its cluster."""

    def __init__(self, folder: Path, episodes: int) -> None:
        self.folder, self.mark = folder, folder.name
        environment = os.environ | {MARK: self.mark, "TMPDIR": str(folder)}
        environment.pop("RAY_ADDRESS", None)
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(episodes)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.output: IO[str] = self.process.stdout

    def left(self) -> tuple[list[psutil.Process], list[str]]:
        """What there still is: processes, and files."""
        return marked(self.mark), [str(path) for path in self.folder.iterdir()]

    def wait_until_nothing_is_left(self) -> None:
        self.output.close()
        for _ in range(600):
            if self.left() == ([], []):
                return
            time.sleep(0.1)
        pytest.fail(f"left behind: {self.left()}")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the cluster puts its files: a short path, since sockets are among them."""
    import shutil
    import tempfile

    made = Path(tempfile.mkdtemp(prefix="gt-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_it_listens_on_the_loopback_alone_and_ends_with_the_program(folder: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    running = Running(folder, 60)
    assert running.output.readline() == "playing\n"
    addresses = {
        connection.laddr.ip
        for process in marked(running.mark)
        for connection in process.net_connections("inet")
        if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
    }
    assert addresses and {ip.removeprefix("::ffff:") for ip in addresses} <= {"127.0.0.1", "::1"}
    assert running.process.wait(120) == 0
    assert running.output.read() == "mean reward 1.0\n"
    running.wait_until_nothing_is_left()
    assert not {name for name in os.listdir("/dev/shm") if "plasma" in name} - before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_it_however_the_program_ends(
    folder: Path, number: signal.Signals
) -> None:
    running = Running(folder, 100_000)
    assert running.output.readline() == "playing\n"
    os.killpg(running.process.pid, number)
    assert running.process.wait(60) != 0
    running.wait_until_nothing_is_left()
