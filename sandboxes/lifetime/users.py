"""Users of boxes: ids that nobody else has, and what the kernel limits by user.

The kernel counts some things by user, whatever box or container asks for them: pending signals and
timers, pages of pipes, watches, message queues. A box of its own user has these to itself.
"""

import secrets
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
