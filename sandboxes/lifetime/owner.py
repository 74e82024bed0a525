"""The owner of a box, written on it before it starts, so that a sweep knows when it is left over.

A container carries its owner in labels. A folder on the host carries it in its name, which is also
the mark that the box's processes have in their environment.
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
    """A process: its id on a host, and when it started, as ids are reused.

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
        """Whether the process runs; only known for one on this host."""
        if self.started == 0:
            return _exists(self.pid)
        since = started(self.pid)
        return since == self.started or (since is None and _is_hidden(self.pid))


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
    """The owner that `owner_labels` named; None if these are other labels."""
    try:
        return Owner(labels[HOST_LABEL], int(labels[PID_LABEL]), int(labels[STARTED_LABEL]))
    except (KeyError, ValueError):
        return None


def folder_prefix() -> str:
    """The prefix of a box's folder in the temporary folder, for `mkdtemp(prefix=...)`.

    The whole name is the box's mark: its processes have it in the variable `MARK_VARIABLE`.
    """
    owner = this_process()
    return f"gymnast-{owner.host}-{owner.pid}-{owner.started}-"


def owner_of_folder(name: str) -> Owner | None:
    """The owner in the name of a folder, or in a mark; None if it is neither."""
    parts = _FOLDER_NAME.fullmatch(name)
    return parts and Owner(parts[1], int(parts[2]), int(parts[3]))


@cache
def run_id(pid: int) -> str:
    """`$GYMNAST_RUN`, or a random name for this process."""
    return os.environ.get("GYMNAST_RUN") or f"{pid}-{uuid.uuid4().hex[:12]}"


@cache
def host_id() -> str:
    """The scope of process ids: a machine since its last boot, and a PID namespace on it.

    A run inside a container may share the engine and the temporary folder with a run outside, but
    sees none of its processes.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else os.uname().nodename
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{machine} {namespace}".encode()).hexdigest()[:12]


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if no such process runs."""
    stat = read_stat(pid)
    return None if stat[:1] in ([], [b"Z"], [b"X"]) else int(stat[19])  # ended, not yet collected


def _is_hidden(pid: int) -> bool:
    """Whether it runs as another user and /proc, mounted with `hidepid`, does not show it."""
    return not os.path.exists(f"/proc/{pid}") and _exists(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
