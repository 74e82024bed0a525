"""The plan of a box on the host's own kernel: its user, folder, Python, files and limits.

Landlock boxes use all of it; bubblewrap boxes use what bwrap cannot do by itself. `files.py`
chooses the host's files; `landlock_launcher.py`, `guest/confine.py` and `cgroups.py` carry the plan
out.
"""

import contextlib
import functools
import math
import os
import random
import secrets
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes.contract.packages import python_path
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.sandboxes.host.cgroups import Groups
from gymnast.sandboxes.host.files import HostFiles, Step, ask_python, base_executable, files_here
from gymnast.sandboxes.host.landlock_launcher import Plan
from gymnast.sandboxes.host.removal import delete_folder
from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE, folder_prefix
from gymnast.sandboxes.lifetime.processes import threads_of_user
from gymnast.sandboxes.lifetime.users import (
    LIMITS,
    LOGIN,
    USER_IDS,
    all_ids_are_here,
    random_user_id,
)
from gymnast.sandboxes.worker.file_room import file_room

OWN_PROCESSES = 2  # the worker and the session
MOST_MORE_THREADS = 1024  # for all boxes, if the kernel counts the threads of the run's user
_NOBODY = 65534

PYTHON_FOLDER = "/python"  # of a box that has a root of its own: links to its Python
_PYTHON_NAMES = ("python", "python3", f"python3.{sys.version_info.minor}")
_DEVICES = ("/dev/null",)
# What a box without a /proc of its own sees of it: files that belong to no process.
_PROC_FILES = (
    "/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo", "/proc/stat",
    "/proc/uptime", "/proc/version", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/pid_max",
    "/proc/sys/vm/overcommit_memory",
)  # fmt: skip
# Where the worker looks for the count of processes that the kernel killed for lack of memory.
OOM_PLACES = {
    "memory.events": "/sys/fs/cgroup/memory.events",
    "memory.oom_control": "/sys/fs/cgroup/memory/memory.oom_control",
}


def check_openings(backend: str, spec: SandboxSpec, *, namespaces: bool = True) -> None:
    """Check that a box on the host's kernel can have what its spec opens.

    Raises:
        SandboxUnavailable: It cannot.
    """
    wanted: list[tuple[str, object]] = [("network", "full"), ("user", spec.user)]
    wanted += [("root", "writable"), ("root", "image"), ("capabilities", spec.capabilities or None)]
    wanted += [] if namespaces else [("network", "endpoint")]
    for name, value in wanted:
        if value is not None and getattr(spec, name) == value:
            without = "" if namespaces else " without namespaces"
            raise SandboxUnavailable(
                f"{name} is {value!r}; a {backend} box{without} cannot have that: use the backend "
                f'"docker", or leave {name} out'
            )


def box_files(spec: SandboxSpec) -> HostFiles:
    """The files of the host that a box sees."""
    return files_here() if spec.packages is None else files_here().with_folder(spec.packages)


def box_environment(
    spec: SandboxSpec, *, python: str, work: str, temporary: str, mark: str
) -> dict[str, str]:
    """The variables of a box.

    Args:
        spec: Adds variables of its own.
        python: The folder of its Python.
        work: The working folder.
        temporary: The folder for temporary files.
        mark: The mark of the box's processes.
    """
    path = os.pathsep.join([python, "/usr/local/bin", "/usr/bin", "/bin"])
    own = {"PATH": path, "HOME": work, "TMPDIR": temporary, "LANG": "C.UTF-8", **LOGIN}
    own["GIT_CONFIG_NOSYSTEM"] = "1"  # git gives up at an /etc/gitconfig that it may not read
    return {**own, **spec.env, **python_path(spec.packages, spec.env), MARK_VARIABLE: mark}


def python_program() -> str:
    """The Python of boxes: the one that runs this, outside of its virtual environment."""
    return ask_python(base_executable()).executable


def python_links() -> list[Step]:
    """Links to the Python of a box that has a root of its own, by its usual names."""
    return [Step("link", f"{PYTHON_FOLDER}/{name}", python_program()) for name in _PYTHON_NAMES]


def make_python_folder(folder: Path) -> str:
    """Make the Python of a box that has the host's root: a virtual environment without packages.

    Otherwise Python would look for packages in the host's folders, which it may not read.

    Returns:
        The program.
    """
    settings = folder / "python" / "pyvenv.cfg"
    programs = folder / "python" / "bin"
    programs.mkdir(parents=True)
    for name in _PYTHON_NAMES:
        (programs / name).symlink_to(python_program())
    settings.write_text(
        f"home = {os.path.dirname(python_program())}\ninclude-system-site-packages = false\n"
    )
    for path, mode in ((programs, 0o755), (settings.parent, 0o755), (settings, 0o644)):
        path.chmod(mode)
    return str(programs / "python3")


def new_user_id() -> int | None:
    """As root, a user that nobody else has; None: keep the run's user."""
    if os.geteuid() != 0:
        return None
    # In a user namespace, root has few other users, or none.
    return random_user_id(all_ids=True) if all_ids_are_here() else _NOBODY


def is_boxes_own(user_id: int | None) -> bool:
    """Whether this user belongs to one box alone."""
    return user_id is not None and user_id in USER_IDS


def make_folder(user_id: int | None, made: contextlib.ExitStack) -> Path:
    """Make the box's folder on the host, which a sweep recognises, and the box's own below it."""
    folder = Path(tempfile.mkdtemp(prefix=folder_prefix()))
    made.callback(delete_folder, folder)
    folder.chmod(0o711)
    for path in (folder / "root", folder / "work", folder / "tmp"):
        path.mkdir(mode=0o700)
        if user_id is not None:
            os.chown(path, user_id, user_id)
    return folder


def make_plan(
    spec: SandboxSpec,
    files: HostFiles,
    folder: Path,
    user_id: int | None,
    groups: Groups,
    namespaces: bool,
) -> Plan:
    """The plan for the launcher."""
    if namespaces:
        view = _own_root(files)
        python, temporary = PYTHON_FOLDER, "/tmp"
    else:
        view = _hosts_root(files, folder)
        python, temporary = str(folder / "python" / "bin"), str(folder / "tmp")
    work = str(folder / "work")
    counter, room = groups.oom_counter, file_room(spec)
    return Plan(
        namespaces=namespaces,
        loopback=spec.network == "endpoint",
        user_id=user_id,
        env=box_environment(spec, python=python, work=work, temporary=temporary, mark=folder.name),
        root=str(folder / "root"),
        work=work,
        folder_bytes=room.size_bytes,
        folder_inodes=room.inodes,
        listable=view.listable,
        readable=view.readable,
        steps=view.steps,
        writable=[work, temporary, *(["/dev/shm"] if namespaces else [])],
        devices=list(_DEVICES),
        placed={OOM_PLACES[counter.name]: str(counter)} if namespaces and counter else {},
        groups=groups.to_join,
        threads=_most_threads(spec, user_id, namespaces),
        cores=None if "cpu" in groups.folders else _some_cores(spec.cpus),
    )


class _View(NamedTuple):
    """A box's files: the paths that Landlock grants, and the steps that make its own root."""

    listable: list[str]
    readable: list[str]
    steps: list[Step]


def _own_root(files: HostFiles) -> _View:
    steps = [step for step in files.steps() if step.kind == "link" or os.path.exists(step.path)]
    readable = [step.path for step in steps if step.kind == "show"]
    devices = [Step("show", path) for path in _DEVICES]
    return _View(["/"], [*readable, "/proc"], [*steps, *python_links(), *devices])


def _hosts_root(files: HostFiles, folder: Path) -> _View:
    readable, listable = files.around()
    wanted = [*readable, *_PROC_FILES, str(folder / "python")]
    return _View(listable, [path for path in wanted if os.path.exists(path)], [])


def _most_threads(spec: SandboxSpec, user_id: int | None, namespaces: bool) -> int:
    """The value for RLIMIT_NPROC, which counts by user and user namespace."""
    own = spec.processes + OWN_PROCESSES
    if is_boxes_own(user_id):
        return own
    if namespaces and user_id is None:
        return own + 1  # the launcher is in the user namespace too
    return _threads_at_start(os.getuid() if user_id is None else user_id) + MOST_MORE_THREADS


@functools.cache
def _threads_at_start(user_id: int) -> int:
    return threads_of_user(user_id)


def _some_cores(cpus: float) -> list[int] | None:
    """Cores for a box, drawn at random so that boxes spread over all; None: all cores."""
    cores = sorted(os.sched_getaffinity(0))
    wanted = math.ceil(cpus)
    return (
        random.Random(secrets.randbits(64)).sample(cores, wanted) if wanted < len(cores) else None
    )


def rlimits(spec: SandboxSpec, groups: Groups) -> dict[str, int]:
    """Limits of each process of a box."""
    largest = file_room(spec).largest_file_bytes
    limits = {"RLIMIT_FSIZE": largest, "RLIMIT_NOFILE": 1024, **LIMITS}
    if "memory" not in groups.folders:
        limits["RLIMIT_DATA"] = spec.memory_bytes
    return limits
