"""Users of boxes: ids that nobody else has, and what the kernel limits by user.

The kernel counts some things by user, whatever box or container asks for them: pending signals and
timers, pages of pipes, watches, message queues. A box of its own user has these to itself.
"""

import secrets
from pathlib import Path

USER_IDS = range(1_900_000_000, 2_100_000_000)  # no distribution assigns them
LOGIN = {"USER": "sandbox", "LOGNAME": "sandbox"}  # /etc/passwd does not name the user
# Limits of what boxes share with the machine, by their names in `resource`.
LIMITS = {
    "RLIMIT_SIGPENDING": 1024,
    "RLIMIT_MSGQUEUE": 0,
    "RLIMIT_MEMLOCK": 1 << 16,
    # At 0 bytes the kernel still pipes a core dump to the host's program for it, if there is one.
    "RLIMIT_CORE": 1,
}
_FEW_IDS = range(1 << 15, 60_000)


def all_ids_are_here() -> bool:
    """Whether this process has the boxes' ids: it is in no user namespace, or in one with them."""
    map_of_ids = Path("/proc/self/uid_map")
    if not map_of_ids.exists():  # not Linux: the engine runs elsewhere
        return True
    for line in map_of_ids.read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= USER_IDS.start and USER_IDS.stop <= first + count:
            return True
    return False


def random_user_id(*, all_ids: bool) -> int:
    """The id of a user that nobody else has.

    Args:
        all_ids: Whether all ids are available. Among 65,536, two boxes may draw the same one.
    """
    return secrets.choice(USER_IDS if all_ids else _FEW_IDS)
