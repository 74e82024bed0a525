"""Processes are killed by their mark, however many programs end at once."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gymnast.sandboxes.lifetime import processes
from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE
from gymnast.sandboxes.lifetime.processes import kill_mark

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
COUNT = 12


@pytest.fixture
def marked() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Processes with marks of their own, each in a session of its own."""
    started = {
        f"test-kill-mark-{os.getpid()}-{number}": subprocess.Popen(
            ["sleep", "600"],
            env={
                "PATH": os.environ["PATH"],
                MARK_VARIABLE: f"test-kill-mark-{os.getpid()}-{number}",
            },
            start_new_session=True,
        )
        for number in range(COUNT)
    }
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def test_each_is_gone_when_its_call_returns(marked: dict[str, subprocess.Popen[bytes]]) -> None:
    def end(mark: str) -> int:
        kill_mark(mark)
        return marked[mark].wait(timeout=1)

    first, *others = marked
    assert end(first) == -signal.SIGKILL
    assert all(marked[other].poll() is None for other in others)
    with ThreadPoolExecutor(len(others)) as pool:
        assert list(pool.map(end, others)) == [-signal.SIGKILL] * len(others)


def test_those_that_end_at_once_share_the_reading_of_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    readings, go_on = [], threading.Event()

    def counted() -> list[int]:
        readings.append(time.monotonic())
        go_on.wait(10)
        return []

    monkeypatch.setattr(processes, "process_ids", counted)
    with ThreadPoolExecutor(COUNT) as pool:
        asked = [pool.submit(kill_mark, "first")]
        while not readings:
            time.sleep(0.01)
        asked += [pool.submit(kill_mark, f"other-{number}") for number in range(COUNT - 1)]
        while len(processes._asked) < COUNT - 1:
            time.sleep(0.01)
        go_on.set()
        for each in asked:
            each.result(10)
    assert len(readings) == 4  # one for the first, one for all others, each made sure of


def test_a_forked_child_kills_though_its_parent_was_at_it(
    marked: dict[str, subprocess.Popen[bytes]],
) -> None:
    first = next(iter(marked))
    with processes._one_reads:
        held = threading.Thread(target=kill_mark, args=("another",), daemon=True)
        held.start()
        child = os.fork()
        if not child:
            thread = threading.Thread(target=kill_mark, args=(first,), daemon=True)
            thread.start()
            thread.join(10)
            os._exit(thread.is_alive())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.join(10)
    assert marked[first].wait(timeout=1) == -signal.SIGKILL
