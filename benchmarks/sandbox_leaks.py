"""What is held of boxes, counted before and after: to show that nothing is left behind."""

import gc
import os
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

from gymnast.errors import SandboxUnavailable

SETTLE_S = 15.0  # for what is being removed to be gone


@dataclass(frozen=True)
class Held:
    """How many there are.

    Attributes:
        processes: Workers of this process, and orphaned ones; those in containers go with them.
        containers: Of this process's boxes, on the engine, in any state.
        descriptors: Of this process.
        files: Of Gymnast, in the temporary folder.
    """

    processes: int
    containers: int
    descriptors: int
    files: int

    def more_than(self, before: "Held") -> dict[str, int]:
        """What there is more of, and by how many."""
        grown = {
            each.name: getattr(self, each.name) - getattr(before, each.name)
            for each in fields(self)
        }
        return {name: count for name, count in grown.items() if count > 0}


def held() -> Held:
    """Count."""
    gc.collect()
    containers = _containers()
    return Held(
        processes=sum(1 for pid in _pids() if _is_worker(pid)),
        containers=containers,
        descriptors=len(os.listdir("/proc/self/fd")),
        files=sum(1 for _ in Path(tempfile.gettempdir()).glob("gymnast-*")),
    )


def settled(before: Held) -> Held:
    """Count, once there is no more than before, or time is up."""
    deadline = time.monotonic() + SETTLE_S
    while (now := held()).more_than(before) and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _is_worker(pid: int) -> bool:
    """Whether it is a worker below this process, or one that nobody is above any more."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    parent = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return b"gymnast.sandboxes.guest" in line and parent in (1, os.getpid())


def _containers() -> int:
    from gymnast.sandboxes.docker.engine import engine_client
    from gymnast.sandboxes.lifetime.owner import RUN_LABEL, run_id

    mine = {"label": f"{RUN_LABEL}={run_id(os.getpid())}"}
    try:
        client = engine_client()
        found = client.containers(all=True, filters=mine)
        client.close()  # idle connections, which are kept for later, are no leak
        return len(found)
    except SandboxUnavailable:
        return 0
