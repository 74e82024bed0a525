"""Running code on this machine in namespaces that bubblewrap (`bwrap`) makes."""

import contextlib
import functools
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from gymnast.errors import SandboxTemporarilyUnavailable, SandboxUnavailable
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.sandboxes.host.bubblewrap_view import Layers, mount_table, view_options
from gymnast.sandboxes.host.cgroups import Groups, make_groups
from gymnast.sandboxes.host.files import HostFiles
from gymnast.sandboxes.host.plan import (
    OWN_PROCESSES,
    PYTHON_FOLDER,
    box_environment,
    box_files,
    check_openings,
    new_user_id,
    python_program,
)
from gymnast.sandboxes.host.removal import (
    delete_folder,
    delete_place,
    end_process,
    undone_unless_whole,
)
from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE, folder_prefix
from gymnast.sandboxes.lifetime.users import LIMITS
from gymnast.sandboxes.seccomp.bpf_filter import BOX_CALLS, NETWORK_CALLS, assemble, has_machine
from gymnast.sandboxes.worker.file_room import file_room
from gymnast.sandboxes.worker.program import command
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from gymnast.visible import visible_line

LEAST_VERSION = (0, 8)  # --disable-userns
WORK_FOLDER = "/box"  # not where a Python may be
USER_ID = 1000  # in the box, which has users of its own; root's boxes are the host's users

# Joins the control groups, whose files are the arguments up to the first "--". Mounts the table
# that follows: the writable folders, as bwrap cannot limit inodes. Mounts the next table, or if
# that fails binds each folder to the place that follows it, up to the next "--". Then runs the
# rest: as a process that the kernel kills before the run itself, with the host's /proc open.
_JOIN = """
while [ "$1" != -- ]; do echo 0 >"$1" || exit 71; shift; done
mount -n -a -T "$2" || exit 72
bind=
mount -n -a -T "$3" 2>/dev/null || bind=yes
shift 3
while [ "$1" != -- ]; do [ -z "$bind" ] || mount -n --rbind "$1" "$2" || exit 73; shift 2; done
shift
read -r score </proc/self/oom_score_adj
[ "$score" -ge 500 ] || echo 500 >/proc/self/oom_score_adj
exec "$@" 3</proc
"""
_PROC = 3
_FOLDERS = {"work": WORK_FOLDER, "tmp": "/tmp", "shm": "/dev/shm"}


class _Box(WorkerSandbox):
    """A box, made without checking first whether boxes work here."""

    def __init__(self, spec: SandboxSpec) -> None:
        super().__init__(spec)
        check_openings("bubblewrap", spec)
        files = box_files(spec)
        user_id = new_user_id()
        with undone_unless_whole() as made:
            # Stays empty on the host; its name tells a sweep whose it is.
            self.folder = folder = Path(tempfile.mkdtemp(prefix=folder_prefix()))
            made.callback(delete_folder, folder)
            for name in _FOLDERS:
                (folder / name).mkdir()
            groups = _groups(self.spec, folder.name)
            made.callback(delete_place, folder, groups)
            self.controllers = frozenset(groups.folders)
            arguments = _arguments(self.spec, files, groups, folder, user_id)
            ours, theirs = socket.socketpair()
            made.callback(ours.close)
            with theirs:
                process = _start([*arguments, *command(python_program())], theirs, folder.name)
        self._process = process
        self._connect(
            ours,
            lambda: _discard(process, ours, folder, groups),
            alone=True,
            rlimits=_rlimits(self.spec, groups),
            seccomp=assemble({**BOX_CALLS, **NETWORK_CALLS[spec.network]}, platform.machine()),
            proc=_PROC,
            forward=True,
        )

    def _name(self) -> str:
        return f"the bubblewrap sandbox {self.folder.name}"

    def _start_failure(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError, OSError):
            errors = self._process.communicate(timeout=1)[1].decode("utf-8", "replace").strip()
            return (errors.splitlines() or [""])[-1]
        return ""


class BubblewrapSandbox(_Box):
    """Runs code on this machine in namespaces of its own: no engine, no daemon, no root.

    For kernels that are too old for `LandlockSandbox`; bwrap 0.8 or newer must be installed. A box
    has a read-only root of its own: /usr, the Python that runs Gymnast with its standard library,
    the folder of `packages`, a few single files, and three folders in memory (`disk_bytes`): /box,
    where code runs, /tmp and /dev/shm. It has its own users, process ids, IPC and network (nothing
    but loopback), no capability and no way to gain one, and seccomp lets it make only the calls of
    `bpf_filter.BOX_CALLS`, with no sockets but local ones. The worker is process 1: when it ends,
    nothing is left. No variable of the host's environment is passed on.

    With control groups, if the run may make them (as root, or where they are delegated to its
    user), these limits hold: `memory_bytes` of all processes together, files in memory included,
    with the verdict "oom"; `processes`, threads included; `cpus`. As root, every box runs as a user
    that no other box has.

    Limits that hold in any case: wall time, output, processes, open files, the size of a file.

    What does not hold, or differs:

    - Without control groups the memory that each single process has to itself is limited
      (`RLIMIT_DATA`); beyond it the process gets an error. Memory that it shares is not limited,
      and what the kernel keeps in pipes and sockets by their number only (1,024 descriptors a
      process); `cpus` is not enforced.
    - /proc tells of the machine what belongs to no process: its CPUs, memory and load.
    - Holes in the kernel, which the box shares with the host, are not closed.

    Args:
        spec: The limits; `image`, `runtime` and `python` mean nothing here. Of what it can open
            there is only the `network` "endpoint".

    Attributes:
        controllers: What control groups limit: some of "memory", "pids", "cpu".

    Raises:
        SandboxUnavailable: There is no bwrap, it is too old, or it may not make namespaces.
    """

    def __init__(self, spec: SandboxSpec | None = None) -> None:
        check_works()
        super().__init__(spec or SandboxSpec())


def check_works() -> None:
    """Try, once a process, whether boxes can be made here.

    Raises:
        SandboxUnavailable: They cannot; the message says why, and the way out.
    """
    if reason := _why_not(os.getpid()):
        raise SandboxUnavailable(
            f'bubblewrap boxes do not work here: {reason}. Another backend is "docker"'
        )


@functools.cache
def _why_not(pid: int) -> str:
    machine = platform.machine()
    if sys.platform != "linux" or not has_machine(machine):
        return f"this is {sys.platform} on {machine}; it takes Linux on x86-64 or 64-bit ARM"
    if shutil.which("bwrap") is None:
        return "there is no bwrap on the PATH: install the package bubblewrap"
    version = subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < LEAST_VERSION:
        return f"{version.strip() or 'bwrap'} is too old; it takes 0.8 or newer"
    for program in ("unshare", "mount", *(("setpriv",) if os.geteuid() == 0 else ())):
        if shutil.which(program) is None:
            return f"there is no {program} on the PATH: it is in the package util-linux"
    try:
        with _Box(SandboxSpec()) as box:
            ended = box.exec(["test", "!", "-r", __file__])
    except SandboxTemporarilyUnavailable:
        raise
    except SandboxUnavailable as error:
        return str(error)
    if ended.exit_code == 1:
        return f"a process in a box could read {__file__}"
    errors = visible_line(ended.stderr[-200:])
    return "" if ended.verdict == "ok" else f"a process in a box ended: {errors}"


def _start(arguments: list[str], connection: socket.socket, mark: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        arguments,
        stdin=connection.fileno(),
        stdout=connection.fileno(),
        stderr=subprocess.PIPE,
        cwd="/",
        env={MARK_VARIABLE: mark},  # the worker hides its own environment
        start_new_session=True,
    )


def _groups(spec: SandboxSpec, name: str) -> Groups:
    return make_groups(
        name,
        memory_bytes=spec.memory_bytes,
        processes=spec.processes + OWN_PROCESSES,
        cpus=spec.cpus,
    )


def _rlimits(spec: SandboxSpec, groups: Groups) -> dict[str, int]:
    largest = file_room(spec).largest_file_bytes
    limits = {"RLIMIT_FSIZE": largest, "RLIMIT_NOFILE": 1024, **LIMITS}
    if "memory" not in groups.folders:
        limits["RLIMIT_DATA"] = spec.memory_bytes
    if "pids" not in groups.folders:  # counted by user and user namespace: the box's own
        limits["RLIMIT_NPROC"] = spec.processes + OWN_PROCESSES
    return limits


def _arguments(
    spec: SandboxSpec, files: HostFiles, groups: Groups, folder: Path, user_id: int | None
) -> list[str]:
    """The command that starts bwrap, its options, and as root the command that gives up its rights.

    Not --die-with-parent, which would end the box with the thread that made it: the worker ends
    with the connection, and everything else with the worker, process 1 of the box.
    """
    namespaces = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
    layers = Layers(folder / "layers", files, devices=user_id is not None)
    room = file_room(spec)
    owner = "" if user_id is None else f",uid={user_id},gid={user_id}"
    options = f"nosuid,nodev,mode=1777,size={room.size_bytes},nr_inodes={room.inodes}{owner}"
    folders = [(str(folder / name), "tmpfs", options) for name in _FOLDERS]
    arguments = [
        *(shutil.which("unshare") or "unshare", "--mount", "--propagation", "private"),
        *(() if user_id is not None else ("--user", "--map-root-user")),
        *("/bin/sh", "-c", _JOIN, "sh", *groups.to_join, "--"),
        *(mount_table(folder / "table", folders), *layers.make(), "--"),
        *(
            shutil.which("bwrap") or "bwrap",
            *namespaces,
            "--unshare-cgroup-try",
            "--as-pid-1",
            "--hostname",
            "box",
        ),
        *("--cap-drop", "ALL"),
    ]
    become = []
    if user_id is None:
        arguments += ["--unshare-user", "--disable-userns"]
        arguments += ["--uid", str(USER_ID), "--gid", str(USER_ID)]
    else:  # in a user namespace, too, the kernel's files (such as /proc/sys) would be root's
        for capability in ("CAP_SETUID", "CAP_SETGID"):
            arguments += ["--cap-add", capability]
        become = [shutil.which("setpriv") or "setpriv", "--no-new-privs", "--inh-caps=-all"]
        become += [f"--reuid={user_id}", f"--regid={user_id}", "--clear-groups"]
    writable = {str(folder / name): place for name, place in _FOLDERS.items()}
    arguments += [*view_options(layers, groups, writable), "--chdir", WORK_FOLDER, "--clearenv"]
    for name, value in box_environment(
        spec, python=PYTHON_FOLDER, work=WORK_FOLDER, temporary="/tmp", mark=folder.name
    ).items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--", *become]


def _discard(
    process: "subprocess.Popen[bytes]", connection: socket.socket, folder: Path, groups: Groups
) -> None:
    """End the worker; with it the kernel ends everything in the box."""
    end_process(process, connection)
    if process.stderr is not None:
        process.stderr.close()
    delete_place(folder, groups)
