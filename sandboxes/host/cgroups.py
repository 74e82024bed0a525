"""Control groups for boxes: limits on memory, processes and CPU of all that runs in one together.

A box's groups lie below the run's own (version 1 of cgroups) or beside it (version 2, which allows
no processes in groups that have groups). They are named like the box's folder, so that they can be
recognised once its owner is gone. If this process may make no groups, the box has none. The box's
first process joins them (`landlock_launcher.py`).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REMOVE_S = 2.0
_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_US = 100_000


@dataclass(frozen=True)
class Groups:
    """The groups of one box.

    Attributes:
        folders: The group of each available controller: "memory", "pids", "cpu". In version 2 they
            are the same group.
        oom_counter: The file where the kernel counts the processes that it killed for lack of
            memory.
    """

    folders: Mapping[str, Path]
    oom_counter: Path | None

    @property
    def to_join(self) -> list[str]:
        """The files to write "0" to."""
        return [str(folder / "cgroup.procs") for folder in sorted(set(self.folders.values()))]


def make_groups(name: str, *, memory_bytes: int, processes: int, cpus: float) -> Groups:
    """Make those of a box's groups that this process may make.

    Args:
        name: The name of the box's folder.
        memory_bytes: Memory of all of its processes together, files in memory included.
        processes: Processes and threads at once.
        cpus: CPU time per second of wall time, in cores.
    """
    quota = round(_PERIOD_US * cpus)
    first: dict[str, dict[str, int | str]] = {
        "memory": {"memory.limit_in_bytes": memory_bytes, "memory.max": memory_bytes},
        "pids": {"pids.max": processes},
        "cpu": {"cpu.cfs_quota_us": quota, "cpu.max": f"{quota} {_PERIOD_US}"},
    }
    # Once the first is set: what is swapped out counts, too.
    second: dict[str, dict[str, int | str]] = {
        "memory": {"memory.memsw.limit_in_bytes": memory_bytes, "memory.swap.max": 0}
    }
    folders = {}
    for controller, parent in _parents(os.getpid()).items():
        folder = parent / name
        try:
            folder.mkdir(exist_ok=True)
            if _set(folder, first[controller]):
                folders[controller] = folder
            _set(folder, second.get(controller, {}))
        except OSError:
            folders.pop(controller, None)
            if folder not in folders.values():
                remove_group(folder)
    return Groups(folders, _oom_counter(folders.get("memory")))


def remove_group(folder: Path) -> int:
    """Kill the processes of a group, and remove it.

    Returns:
        How many processes were killed.
    """
    killed: set[int] = set()
    until = time.monotonic() + REMOVE_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):  # gone, or not ours
            listed = map(int, (folder / "cgroup.procs").read_text().split())
            for pid in filter(None, listed):  # 0: of another PID namespace
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        try:
            folder.rmdir()
        except (FileNotFoundError, PermissionError):
            break
        except OSError:  # what was killed has not ended yet
            time.sleep(0.005)
        else:
            break
    return len(killed)


def sweep_groups(wanted: Callable[[str], bool]) -> int:
    """Remove the groups whose names are wanted, wherever they are, and kill their processes.

    Returns:
        How many processes were killed.
    """
    killed = 0
    for mount, _, _, _ in _mounts():
        for path, names, _ in os.walk(mount):
            for name in [name for name in names if wanted(name)]:
                names.remove(name)
                killed += remove_group(Path(path, name))
    return killed


def _set(folder: Path, settings: Mapping[str, int | str]) -> bool:
    """Write those settings that the group has; return whether it has any."""
    found = [name for name in settings if (folder / name).exists()]
    for name in found:
        (folder / name).write_text(str(settings[name]))
    return bool(found)


def _oom_counter(memory: Path | None) -> Path | None:
    for name in ("memory.oom_control", "memory.events"):
        if memory and (memory / name).exists():
            return memory / name
    return None


@cache
def _parents(pid: int) -> dict[str, Path]:
    """The groups below which this process can make groups, by controller."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    own = {}  # by controller, "" for version 2
    for line in lines:
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    parents: dict[str, Path] = {}
    for mount, root, version, controllers in _mounts():
        if version == 1:
            found = {name: [_below(mount, root, own.get(name))] for name in controllers}
        else:
            here = _below(mount, root, own.get(""))
            near = [here, here.parent] if here and here != mount else [here]
            found = {
                name: [one for one in near if one and _gives(one, name)] for name in controllers
            }
        for name, candidates in found.items():
            for folder in candidates:
                if folder and os.access(folder, os.W_OK) and _may_join_below(folder):
                    parents.setdefault(name, folder)
    return parents


def _may_join_below(folder: Path) -> bool:
    return os.access(folder / "cgroup.procs", os.W_OK)


def _gives(folder: Path, controller: str) -> bool:
    """Whether the groups below this one have a controller (version 2)."""
    try:
        return controller in (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _below(mount: Path, root: str, own: str | None) -> Path | None:
    """The folder of the group `own`, if the group `root` is mounted there."""
    if own is None or ".." in own.split("/"):
        return None
    if root == "/":
        return mount / own.lstrip("/")
    inside = own == root or own.startswith(root + "/")
    return mount / own[len(root) :].lstrip("/") if inside else None


def _mounts() -> Iterator[tuple[Path, str, int, list[str]]]:
    """Where groups are mounted: the folder, which group that is, the version, the controllers."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(" ")
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        if kind == "cgroup2":
            yield Path(fields[4]), fields[3], 2, list(_CONTROLLERS)
        elif kind == "cgroup":
            found = [name for name in _CONTROLLERS if name in options.split(",")]
            if found:
                yield Path(fields[4]), fields[3], 1, found
