"""Who a box belongs to, written on it before it starts, so that it can be found once that is gone.

Left out: the finding and the sweeping.
"""

import os
import uuid
from functools import cache
from pathlib import Path

LABEL = "gymnast.sandbox"
RUN_LABEL = "gymnast.run"
HOST_LABEL = "gymnast.owner.host"
PID_LABEL = "gymnast.owner.pid"
STARTED_LABEL = "gymnast.owner.started"


def owner_labels() -> dict[str, str]:
    """Labels that name this run and this process.

    A process is its machine's boot, its id and the time it started: ids are used again.
    """
    pid = os.getpid()
    return {
        LABEL: "1",
        RUN_LABEL: run_id(pid),
        HOST_LABEL: boot_id(),
        PID_LABEL: str(pid),
        STARTED_LABEL: str(started(pid)),
    }


@cache
def run_id(pid: int) -> str:
    """`$GYMNAST_RUN`, or a name drawn for this process."""
    return os.environ.get("GYMNAST_RUN") or f"{pid}-{uuid.uuid4().hex[:12]}"


@cache
def boot_id() -> str:
    """The machine, and which of its boots this is; "unknown" where the system does not say."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "unknown"


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[19])
