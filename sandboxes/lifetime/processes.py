"""The processes of a box on this machine, found in /proc by their mark or their user, and killed.

A mark is an environment variable that a box's processes start with (`owner.py`). A process may have
dropped its mark, or not show it, as a worker does: so the children of a marked one are killed too.
"""

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gymnast.sandboxes.guest.processes import process_ids, read_stat
from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE

_MARK = f"{MARK_VARIABLE}=".encode()
_ROUNDS = 20
_PAUSE_S = 0.01


def kill_marked(is_wanted: Callable[[str], bool]) -> int:
    """Kill every process with a wanted mark, its children, and what they start meanwhile.

    Args:
        is_wanted: Whether processes with this mark are to be killed.

    Returns:
        How many processes were killed.
    """
    killed: set[int] = set()
    for attempt in range(_ROUNDS):
        handles = _open_marked(is_wanted)
        for pid, handle in handles.items():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                killed.add(pid)
            os.close(handle)
        if not handles and attempt > 0:  # a process amid execve shows no environment: look twice
            break
        time.sleep(_PAUSE_S)
    return len(killed)


def kill_mark(mark: str) -> None:
    """Do what `kill_marked` does for one mark, together with whoever asks at the same time.

    Reading /proc costs as much as there are processes, and hundreds of programs may end at once.
    """
    done = threading.Event()
    _asked.append((mark, done))
    with _one_reads:
        if done.is_set():
            return
        together = [(mark, done)]
        with contextlib.suppress(IndexError):
            while True:
                together.append(_asked.popleft())
        wanted = {each for each, _ in together}
        kill_marked(wanted.__contains__)
        for _, each_done in together:
            each_done.set()


def kill_all_of_user(user_id: int) -> None:
    """Kill every process of a user, and those that they start meanwhile."""
    for _ in range(_ROUNDS):
        pids = processes_of_user(user_id)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def processes_of_user(user_id: int) -> list[int]:
    """The processes of a user that have not ended."""
    return [pid for pid in process_ids() if _user_of(pid) == user_id]


def threads_of_user(user_id: int) -> int:
    """How many threads a user's processes have, as far as /proc shows them."""
    count = 0
    for pid in processes_of_user(user_id):
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def _open_marked(is_wanted: Callable[[str], bool]) -> dict[int, int]:
    """A handle of each process to kill: taken of all before the first parent is gone."""
    handles = {}
    for pid in process_ids():
        if _has_mark(pid, is_wanted):
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                if _has_mark(pid, is_wanted):  # the id may belong to another process by now
                    handles[pid] = handle
                else:
                    os.close(handle)
    return handles


def _has_mark(pid: int, is_wanted: Callable[[str], bool]) -> bool:
    """Whether a process or its parent is marked."""
    return any(map(is_wanted, _marks(pid))) or any(map(is_wanted, _marks(_parent(pid))))


def _parent(pid: int) -> int:
    """The parent of a process; 0 if the process has ended or its parent is outside of /proc."""
    state, parent = [*read_stat(pid), b"Z", b"0"][:2]
    return 0 if state == b"Z" else int(parent)


def _marks(pid: int) -> list[str]:
    """The marks of a process; none if it has ended or is another user's."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
    marks = [entry.removeprefix(_MARK) for entry in environment if entry.startswith(_MARK)]
    return [os.fsdecode(mark) for mark in marks]


def _user_of(pid: int) -> int | None:
    """The user of a process; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    if "\nState:\tZ" in status:  # it has ended, and its parent has not collected it yet
        return None
    return int(status.partition("\nUid:\t")[2].split(maxsplit=1)[0])


_asked: deque[tuple[str, threading.Event]] = deque()
_one_reads = threading.RLock()  # a finalizer may ask again on the thread that reads


def _begin_anew() -> None:
    """A forked child has none of the threads that read or wait."""
    global _asked, _one_reads
    _asked, _one_reads = deque(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
