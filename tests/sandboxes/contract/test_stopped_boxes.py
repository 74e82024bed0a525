"""A box whose worker is stopped from outside, or hangs, is closed at once all the same."""

import os
import secrets
import signal
import threading
import time
from pathlib import Path

import pytest

from attack_fixtures import processes_with
from sandbox_fixtures import BACKENDS, OpenBox

pytestmark = pytest.mark.parametrize("backend", BACKENDS, indirect=True, scope="module")


def state_and_parent(pid: int) -> tuple[str, int]:
    """Of a process of the host's; "X" where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return fields[0], int(fields[1])


@pytest.mark.parametrize("whom", ["worker", "process beside it"])
def test_a_box_that_is_stopped_is_closed_at_once(
    whom: str, open_box: OpenBox, backend: str
) -> None:
    if whom != "worker" and backend not in ("landlock", "bubblewrap"):
        pytest.skip("the worker has no process of ours beside it")
    box, mark = open_box(), "stopped" + secrets.token_hex(8)
    call = threading.Thread(target=box.exec, args=(["sh", "-c", f"sleep 600; : {mark}"],))
    call.start()
    while not (found := processes_with(mark)):
        time.sleep(0.01)
    worker = state_and_parent(found[0])[1]
    os.kill(worker if whom == "worker" else state_and_parent(worker)[1], signal.SIGSTOP)
    begun = time.monotonic()
    box.close()
    assert time.monotonic() - begun < 2.5
    call.join(30)
    assert state_and_parent(worker)[0] in "XZ"
    assert not processes_with(mark)
