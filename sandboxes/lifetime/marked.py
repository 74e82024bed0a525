"""Killing processes of the host by the mark that a box has put into their environment.

A process can have dropped its mark, or not show it, as a worker: so the children of one that has it
are killed, too. Left out: what a mark says (`owner.py`).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE

_BEGINNING = f"{MARK_VARIABLE}=".encode()
_TURNS = 20


def kill_marked(wanted: Callable[[str], bool]) -> int:
    """Kill every process whose mark is wanted, their children, and what they start meanwhile.

    Args:
        wanted: Whether a mark is.

    Returns:
        How many processes were killed.
    """
    killed: set[int] = set()
    for turn in range(_TURNS):  # one that is just being executed shows no environment
        found = _find(wanted)
        for pid, handle in found.items():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                killed.add(pid)
            os.close(handle)
        if not found and turn > 0:
            break
        time.sleep(0.01)
    return len(killed)


def _find(wanted: Callable[[str], bool]) -> dict[int, int]:
    """Handles of those that are to be killed, by their ids; all, before a parent is gone."""
    found = {}
    for pid in _processes():
        if _is_wanted(pid, wanted):
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                if _is_wanted(pid, wanted):  # its id could be another's by now
                    found[pid] = handle
                else:
                    os.close(handle)
    return found


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _is_wanted(pid: int, wanted: Callable[[str], bool]) -> bool:
    return _is_marked(pid, wanted) or _is_marked(_parent(pid), wanted)


def _parent(pid: int) -> int:
    """The parent of a process; 0 where it has ended, or has none that is seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    state, parent = stat[stat.rindex(b")") + 2 :].split()[:2]
    return 0 if state == b"Z" else int(parent)


def _is_marked(pid: int, wanted: Callable[[str], bool]) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is another user's
    marks = [entry for entry in environment if entry.startswith(_BEGINNING)]
    return any(wanted(os.fsdecode(mark.removeprefix(_BEGINNING))) for mark in marks)
