"""Who a box belongs to, written on it before it starts, so that it can be found once that is gone.

A container carries it as labels. A folder of the host's carries it in its name, which is also the
mark that the box's processes have in their environment. Left out: the sweeping
(`backends/sweep.py`).
"""

import hashlib
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gymnast.sandboxes.guest.processes import read_stat

LABEL = "gymnast.sandbox"
RUN_LABEL = "gymnast.run"
HOST_LABEL = "gymnast.owner.host"
PID_LABEL = "gymnast.owner.pid"
STARTED_LABEL = "gymnast.owner.started"

# The environment variable, and the beginning of its value, that mark the processes of a box.
MARK_VARIABLE = "GYMNAST_LOCAL_SANDBOX"
_FOLDER_NAME = re.compile(r"gymnast-([0-9a-f]{12})-(\d+)-(\d+)-\w+")


@dataclass(frozen=True)
class Owner:
    """A process: its id on a host, and when it started, as ids are used again.

    Attributes:
        host: See `host_id`.
        pid: The process id.
        started: In clock ticks since boot; 0 where the system does not say.
    """

    host: str
    pid: int
    started: int

    @property
    def is_here(self) -> bool:
        """Whether its process can be seen from this one, if it lives."""
        return self.host == host_id()

    @property
    def lives(self) -> bool:
        """Whether the process is there; only to be asked where it is of this host."""
        if self.started == 0:
            return _exists(self.pid)
        found = started(self.pid)
        return found == self.started or (found is None and _is_hidden(self.pid))


def this_process() -> Owner:
    """The owner of the boxes that this process makes."""
    pid = os.getpid()
    return Owner(host_id(), pid, started(pid) or 0)


def owner_labels() -> dict[str, str]:
    """Labels that name this run and this process."""
    owner = this_process()
    return {
        LABEL: "1",
        RUN_LABEL: run_id(owner.pid),
        HOST_LABEL: owner.host,
        PID_LABEL: str(owner.pid),
        STARTED_LABEL: str(owner.started),
    }


def owner_of_labels(labels: Mapping[str, str]) -> Owner | None:
    """The owner that `owner_labels` named; None where the labels are others."""
    try:
        return Owner(labels[HOST_LABEL], int(labels[PID_LABEL]), int(labels[STARTED_LABEL]))
    except (KeyError, ValueError):
        return None


def folder_prefix() -> str:
    """How the name of a box's folder in the temporary folder begins: `mkdtemp(prefix=...)`.

    The whole name is the box's mark: its processes have it as `MARK_VARIABLE`.
    """
    owner = this_process()
    return f"gymnast-{owner.host}-{owner.pid}-{owner.started}-"


def owner_of_folder(name: str) -> Owner | None:
    """The owner in the name of a folder, or in a mark; None where it is neither."""
    found = _FOLDER_NAME.fullmatch(name)
    return found and Owner(found[1], int(found[2]), int(found[3]))


@cache
def run_id(pid: int) -> str:
    """`$GYMNAST_RUN`, or a name drawn for this process."""
    return os.environ.get("GYMNAST_RUN") or f"{pid}-{uuid.uuid4().hex[:12]}"


@cache
def host_id() -> str:
    """Where process ids mean the same: a machine, one of its boots, and a PID namespace.

    A run inside a container may share the engine and the temporary folder with one outside, and
    sees none of its processes.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    said = boot.read_text().strip() if boot.exists() else os.uname().nodename
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{said} {namespace}".encode()).hexdigest()[:12]


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none that runs."""
    stat = read_stat(pid)
    return None if stat[:1] in ([], [b"Z"], [b"X"]) else int(stat[19])  # ended, not yet collected


def _is_hidden(pid: int) -> bool:
    """Whether it is another user's that /proc does not show, being mounted with `hidepid`."""
    return not os.path.exists(f"/proc/{pid}") and _exists(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
