"""What a box on this machine may leave behind: processes, and a folder.

Left out: containers, which the engine removes.
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

MARK = "GYMNAST_LOCAL_SANDBOX"


def kill_marked(mark: str) -> None:
    """Kill what still has the box's mark in its environment; a process can have dropped it."""
    needle = f"{MARK}={mark}".encode()
    _kill_all(lambda pid: needle in _environment_of(pid))


def kill_all_of_user(user_id: int) -> None:
    """Kill every process of a user who has nothing but one box."""
    _kill_all(lambda pid: _user_of(pid) == user_id)


def processes_of_user(user_id: int) -> list[int]:
    """The processes of a user."""
    return [pid for pid in _processes() if _user_of(pid) == user_id]


def delete_folder(folder: Path) -> None:
    """Delete a folder and all in it, whatever its modes are; no link is followed."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # a folder in it may not be entered
        for path, names, _ in os.walk(folder):
            for name in names:
                entry = Path(path, name)
                if not entry.is_symlink():
                    entry.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _kill_all(wanted: Callable[[int], bool]) -> None:
    for turn in range(20):  # one that is just being executed shows no environment
        found = [pid for pid in _processes() if wanted(pid)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found and turn > 0:
            return
        time.sleep(0.01)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is another user's


def _user_of(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    if "\nState:\tZ" in status:
        return None  # it has ended; nobody has collected it yet
    return int(status.partition("\nUid:\t")[2].split(maxsplit=1)[0])
