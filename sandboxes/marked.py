"""Killing processes of the host by the mark that a box has put into their environment.

A process can have dropped its mark. Left out: what a mark says (`owner.py`).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from gymnast.sandboxes.owner import MARK_VARIABLE

_BEGINNING = f"{MARK_VARIABLE}=".encode()
_TURNS = 20


def kill_marked(wanted: Callable[[str], bool]) -> int:
    """Kill every process whose mark is wanted, and those that they start meanwhile.

    Args:
        wanted: Whether a mark is.

    Returns:
        How many processes were killed.
    """
    killed: set[int] = set()
    for turn in range(_TURNS):  # one that is just being executed shows no environment
        found = [pid for pid in _processes() if _is_wanted(pid, wanted)]
        for pid in found:
            if _kill(pid, wanted):
                killed.add(pid)
        if not found and turn > 0:
            break
        time.sleep(0.01)
    return len(killed)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _is_wanted(pid: int, wanted: Callable[[str], bool]) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is another user's
    marks = [entry for entry in environment if entry.startswith(_BEGINNING)]
    return any(wanted(os.fsdecode(mark.removeprefix(_BEGINNING))) for mark in marks)


def _kill(pid: int, wanted: Callable[[str], bool]) -> bool:
    """Kill exactly the process that has the mark: its id may be another's by now."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _is_wanted(pid, wanted):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False
