"""Processes by their user: a box of its own user is all that this user has."""

import contextlib
import os
import signal
import time
from pathlib import Path

_TURNS = 20


def processes_of_user(user_id: int) -> list[int]:
    """The processes of a user, but for those that have ended."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if _user_of(pid) == user_id]


def threads_of_user(user_id: int) -> int:
    """How many threads the processes of a user have; of those that show it."""
    found = 0
    for pid in processes_of_user(user_id):
        with contextlib.suppress(OSError):
            found += len(os.listdir(f"/proc/{pid}/task"))
    return found


def kill_all_of_user(user_id: int) -> None:
    """Kill every process of a user, and those that they start meanwhile."""
    for _ in range(_TURNS):
        found = processes_of_user(user_id)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _user_of(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    if "\nState:\tZ" in status:
        return None  # nobody has collected it yet
    return int(status.partition("\nUid:\t")[2].split(maxsplit=1)[0])
