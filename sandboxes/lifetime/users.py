"""Users of boxes: ids that nobody else has, and the processes of one.

The kernel counts some things by user, whatever box or container asks for them: pending signals and
timers, pages of pipes, watches, message queues. A box of its own user has these to itself.
"""

import contextlib
import os
import secrets
import signal
import time
from pathlib import Path

USER_IDS = range(1_900_000_000, 2_100_000_000)  # no distribution gives them to anyone
LOGIN = {"USER": "sandbox", "LOGNAME": "sandbox"}  # for who asks: /etc/passwd has no such user
# Of what is not the box's own, by their names in `resource`.
LIMITS = {
    "RLIMIT_SIGPENDING": 1024,
    "RLIMIT_MSGQUEUE": 0,
    "RLIMIT_MEMLOCK": 1 << 16,
    # Of 0 bytes the kernel still hands a crash to the host's program for them, if there is one.
    "RLIMIT_CORE": 1,
}
_FEW_IDS = range(1 << 15, 60_000)
_TURNS = 20


def all_ids_are_here() -> bool:
    """Whether this process is in no user namespace, or in one that has the boxes' ids, too."""
    map_of_ids = Path("/proc/self/uid_map")
    if not map_of_ids.exists():  # another system than Linux, whose engine is elsewhere
        return True
    for line in map_of_ids.read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= USER_IDS.start and USER_IDS.stop <= first + count:
            return True
    return False


def random_user_id(*, all_ids: bool) -> int:
    """A user that nobody else is.

    Args:
        all_ids: Whether all ids are there; else 65,536, among which two boxes' may be the same.
    """
    return secrets.choice(USER_IDS if all_ids else _FEW_IDS)


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
