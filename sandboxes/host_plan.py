"""What a box on the host's own kernel is given: its user, its place, the files it may use, limits.

Landlock's boxes take all of it, bubblewrap's what it has no means of its own for.

Left out: enforcing it (`landlock_launcher.py`, `guest/confine.py`, `cgroups.py`).
"""

import functools
import math
import os
import random
import secrets
import sys
import tempfile
from pathlib import Path

from gymnast.sandboxes.cgroups import Groups
from gymnast.sandboxes.landlock_launcher import Plan
from gymnast.sandboxes.owner import MARK_VARIABLE, folder_prefix
from gymnast.sandboxes.spec import SandboxSpec
from gymnast.sandboxes.users import threads_of_user

OWN_PROCESSES = 2  # the worker and the session
MOST_MORE_THREADS = 1024  # where the kernel counts those of the run's user together
_USER_IDS = range(1_900_000_000, 2_100_000_000)  # no distribution gives them to anyone
_NOBODY = 65534

# Single files of /etc: all of it would show /etc/shadow to a process that may read it.
READABLE = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types",
    "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
)  # fmt: skip
_DEVICES = ("/dev/null",)
# Without a /proc of the box's own: what is of no process.
_PROC_FILES = (
    "/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo", "/proc/stat",
    "/proc/uptime", "/proc/version", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/pid_max",
    "/proc/sys/vm/overcommit_memory",
)  # fmt: skip
# Where the worker looks for what the kernel has killed for want of memory.
OOM_PLACES = {
    "memory.events": "/sys/fs/cgroup/memory.events",
    "memory.oom_control": "/sys/fs/cgroup/memory/memory.oom_control",
}


def folders_of_python() -> list[str]:
    """Those of the Python that runs this, a virtual environment's and what it is made of."""
    return sorted({sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix})


def new_user_id() -> int | None:
    """As root, a user that nobody else is; None: stay who we are."""
    if os.geteuid() != 0:
        return None
    wanted = secrets.choice(_USER_IDS)
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= wanted < first + count:
            return wanted
    return _NOBODY  # the root of a user namespace has no other


def is_boxes_own(user_id: int | None) -> bool:
    """Whether this is a user that nobody but one box is."""
    return user_id is not None and user_id in _USER_IDS


def make_folder(user_id: int | None) -> Path:
    """The box's place on the host: a folder of the run's, so that it is swept, with the box's."""
    folder = Path(tempfile.mkdtemp(prefix=folder_prefix()))
    folder.chmod(0o711)
    for path in (folder / "root", folder / "work", folder / "tmp"):
        path.mkdir(mode=0o700)
        if user_id is not None:
            os.chown(path, user_id, user_id)
    return folder


def make_plan(
    spec: SandboxSpec, folder: Path, user_id: int | None, groups: Groups, namespaces: bool
) -> Plan:
    """All that the launcher has to know."""
    of_proc = ("/proc",) if namespaces else _PROC_FILES
    wanted = (*READABLE, *of_proc, *folders_of_python())
    path = [os.path.dirname(os.path.abspath(sys.executable)), "/usr/local/bin", "/usr/bin", "/bin"]
    work = str(folder / "work")
    temporary = "/tmp" if namespaces else str(folder / "tmp")
    own = {"PATH": ":".join(path), "HOME": work, "TMPDIR": temporary, "LANG": "C.UTF-8"}
    counter = groups.oom_counter
    return Plan(
        namespaces=namespaces,
        user_id=user_id,
        env={**own, **spec.env, MARK_VARIABLE: folder.name},
        root=str(folder / "root"),
        work=work,
        folder_bytes=spec.disk_bytes,
        listable=["/"] if namespaces else [],
        readable=[name for name in wanted if os.path.exists(name)],
        writable=[work, temporary, *(["/dev/shm"] if namespaces else [])],
        devices=list(_DEVICES),
        placed={OOM_PLACES[counter.name]: str(counter)} if namespaces and counter else {},
        groups=groups.to_join,
        threads=_most_threads(spec, user_id, namespaces),
        cores=None if "cpu" in groups.folders else _some_cores(spec.cpus),
    )


def _most_threads(spec: SandboxSpec, user_id: int | None, namespaces: bool) -> int:
    """For RLIMIT_NPROC, which counts by user and user namespace."""
    own = spec.processes + OWN_PROCESSES
    if is_boxes_own(user_id):
        return own
    if namespaces and user_id is None:
        return own + 1  # the launcher is in the user namespace, too
    return _threads_at_start(os.getuid() if user_id is None else user_id) + MOST_MORE_THREADS


@functools.cache
def _threads_at_start(user_id: int) -> int:
    return threads_of_user(user_id)


def _some_cores(cpus: float) -> list[int] | None:
    """Cores for a box, drawn so that many boxes share all; None: it may use every core."""
    cores = sorted(os.sched_getaffinity(0))
    wanted = math.ceil(cpus)
    return (
        random.Random(secrets.randbits(64)).sample(cores, wanted) if wanted < len(cores) else None
    )


def rlimits(spec: SandboxSpec, groups: Groups) -> dict[str, int]:
    """Limits of each process of a box."""
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": spec.disk_bytes, "RLIMIT_NOFILE": 1024}
    if "memory" not in groups.folders:
        limits["RLIMIT_DATA"] = spec.memory_bytes
    return limits
