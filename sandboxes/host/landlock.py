"""Running code on this machine, confined by the kernel itself: Landlock, seccomp, namespaces."""

import ctypes
import functools
import os
import platform
import socket
import sys
import tempfile

from gymnast.errors import SandboxTemporarilyUnavailable, SandboxUnavailable
from gymnast.sandboxes.contract.spec import Network, SandboxSpec
from gymnast.sandboxes.host.cgroups import make_groups
from gymnast.sandboxes.host.landlock_process import Errors, discard, launch
from gymnast.sandboxes.host.plan import (
    OWN_PROCESSES,
    box_files,
    check_openings,
    is_boxes_own,
    make_folder,
    make_plan,
    make_python_folder,
    new_user_id,
    python_program,
    rlimits,
)
from gymnast.sandboxes.host.removal import delete_place, undone_unless_whole
from gymnast.sandboxes.seccomp.bpf_filter import (
    BOX_CALLS,
    NETWORK_CALLS,
    NO_ATTRIBUTES,
    NO_CHANGE_OF_RIGHTS,
    NO_LOCAL_SOCKETS,
    Rules,
    assemble,
    has_machine,
)
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from gymnast.visible import visible_line, visible_logger

LEAST_ABI = 6  # Landlock's: scopes for signals and for abstract sockets
_CREATE_RULESET = 444

log = visible_logger("gymnast.sandboxes")


class _Box(WorkerSandbox):
    """A box, made without checking first whether boxes confine code here."""

    def __init__(self, spec: SandboxSpec, *, namespaces: bool) -> None:
        super().__init__(spec)
        self.namespaces = namespaces
        check_openings("Landlock", spec, namespaces=namespaces)
        files = box_files(spec)
        user_id = new_user_id()
        with undone_unless_whole() as made:
            self.folder = folder = make_folder(user_id, made)
            python = python_program() if namespaces else make_python_folder(folder)
            groups = make_groups(
                folder.name,
                memory_bytes=spec.memory_bytes,
                processes=spec.processes + OWN_PROCESSES,
                cpus=spec.cpus,
            )
            made.callback(delete_place, folder, groups)
            self.controllers = frozenset(groups.folders)
            plan = make_plan(spec, files, folder, user_id, groups, namespaces)
            ours, process = launch(python, plan, folder.name)
        self._errors = errors = Errors(process)
        self._connect(
            ours,
            lambda: discard(process, ours, errors, folder, groups, user_id),
            alone=namespaces,
            rlimits=rlimits(spec, groups),
            seccomp=_filter(namespaces, is_boxes_own(user_id), spec.network),
            scoped=not namespaces,
            forward=True,
        )

    def _name(self) -> str:
        return f"the Landlock sandbox in {self.folder}"

    def _start_failure(self) -> str:
        return self._errors.text()

    def _start_hint(self) -> str:
        return ""


class LandlockSandbox(_Box):
    """Runs code on this machine without an engine, a daemon, root or any package.

    Always: a box can read /usr, the Python that runs Gymnast with its standard library, the folder
    of `packages` and a few single files; no other package, and nothing else of the environment
    that runs Gymnast (`files.py`). It can write to its working folder and to a folder for
    temporary files. It is in a Landlock domain, from which it can signal and trace nothing outside,
    and seccomp lets it make only the calls of `bpf_filter.BOX_CALLS`, with no sockets but local
    ones. No variable of the host's environment is passed on, and no privilege can be gained. A
    small process lives beside each box.

    With namespaces, that is as root, or if the kernel lets users make user namespaces: the box has
    a root of its own with nothing but the above in it, and its own process ids, /proc, IPC, and
    network, which has no interface. The working folder, /tmp and /dev/shm are in memory
    (`disk_bytes`), and gone with the box. The worker is process 1: when it ends, nothing is left.
    As root, every box runs as a user that no other box has.

    With control groups, if the run may make them (as root, or where they are delegated to its
    user), these limits hold: `memory_bytes` of all processes together, files in memory included,
    with the verdict "oom"; `processes`, threads included; `cpus`.

    Limits that hold in any case: wall time, output, the size of a file, open files.

    What does not hold, or differs:

    - Without namespaces a box can find out, for every path of the host that its user could reach,
      whether a file exists, its size, owner, rights and times, and where a link leads; and whether
      a process exists. It can neither open nor list them, nor read extended attributes (to it, no
      file has any). It can list the names of the packages that it may not read.
      `open_sandbox("auto")` prefers every other backend that isolates to such a box.
    - Without namespaces the working folder and a folder in $TMPDIR are on disk: each file is
      limited, not their sum; there is no /tmp and no /dev/shm. Of /proc a box sees only single
      files that belong to no process, so `ps` and the like do not work. There are no local sockets
      but pairs. "oom" does not occur.
    - Without namespaces, and not as root, a box runs as the run's user: `chmod` and `chown` are
      refused, even on its own files; the times of the run's files can be changed.
    - Without control groups the memory that each single process has to itself is limited
      (`RLIMIT_DATA`); beyond it the process gets an error. Memory that it shares is not limited,
      and what the kernel keeps in pipes and sockets by their number only (1,024 descriptors a
      process). A share of a core is a whole one; above 1, whole cores.
    - Without control groups and namespaces, and not as root, the kernel counts the threads of the
      run's user together: all boxes may have 1,024 more than the run had at the start.
    - /proc tells of the machine what belongs to no process: its CPUs, memory and load.
    - Holes in the kernel, which the box shares with the host, are not closed.

    Args:
        spec: The limits; `image`, `runtime` and `python` mean nothing here. Of what it can open
            there is only the `network` "endpoint", with namespaces.

    Attributes:
        folder: The box's folder on the host.
        namespaces: Whether it has namespaces of its own.
        controllers: What control groups limit: some of "memory", "pids", "cpu".

    Raises:
        SandboxUnavailable: The kernel or the machine lacks something; the message says what.
    """

    def __init__(self, spec: SandboxSpec | None = None) -> None:
        check_works()
        missing = _why_no_namespaces(os.getpid())
        if missing:
            _warn_once(missing)
        super().__init__(spec or SandboxSpec(), namespaces=not missing)


@functools.cache
def _warn_once(missing: str) -> None:
    log.warning(
        "Landlock boxes have no namespaces of their own here (%s): code in them can tell which "
        "files of the host there are, and where links lead; see the docstring of LandlockSandbox",
        missing,
    )


def check_works(*, namespaces: bool = False) -> None:
    """Try, once a process, whether boxes can be made here and confine code.

    Args:
        namespaces: Whether they must have namespaces of their own.

    Raises:
        SandboxUnavailable: They cannot, or do not; the message says why, and the way out.
    """
    reason = _why_not(os.getpid())
    if namespaces and not reason and (missing := _why_no_namespaces(os.getpid())):
        reason = f"boxes can have no namespaces of their own ({missing})"
    if reason:
        raise SandboxUnavailable(
            f'Landlock boxes do not work here: {reason}. Another backend is "docker"'
        )


@functools.cache
def _why_not(pid: int) -> str:
    machine = platform.machine()
    if sys.platform != "linux" or not has_machine(machine):
        return f"this is {sys.platform} on {machine}; it takes Linux on x86-64 or 64-bit ARM"
    abi = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, 1)
    if abi < 0:
        return (
            f"the kernel ({platform.release()}) has no Landlock, it is off (see `lsm=` of the "
            "kernel's command line), or a container's seccomp profile refuses it"
        )
    if abi < LEAST_ABI:
        return (
            f"the kernel ({platform.release()}) has Landlock ABI {abi}; it takes {LEAST_ABI}, "
            "which Linux has from 6.12 on"
        )
    missing = _why_no_namespaces(pid)
    reason = _try(namespaces=False) if missing else ""
    return reason and f"{reason}; with namespaces of their own: {missing}"


@functools.cache
def _why_no_namespaces(pid: int) -> str:
    return _try(namespaces=True)


# Tries what must be refused in a box and what must not. The last line is the answer.
_PROBE = """
import os, socket
leaks = []
for path in {paths!r}:
    try:
        open(path).close()
        leaks.append("could read " + path)
    except OSError:
        pass
try:
    os.kill({pid}, 0)
    if os.getppid() != 1:
        leaks.append("could signal the run")
except OSError:
    pass
try:
    socket.create_connection(("127.0.0.1", {port}), 5)
    leaks.append("could connect to the host")
except OSError:
    pass
open("made", "w").close()
print("; ".join(leaks) or "held")
"""


class _Trial(_Box):
    """A box that logs no warning when it breaks: the caller asks for the reason."""

    def _break(self, why: str) -> None:
        self._why_dead = self._why_dead or why
        self._discard()


def _try(*, namespaces: bool) -> str:
    """Run code in a box; return why boxes do not work here, or "".

    Raises:
        SandboxTemporarilyUnavailable: They may work later.
    """
    with (
        undone_unless_whole(),
        tempfile.NamedTemporaryFile(prefix="gymnast-") as secret,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        os.chmod(secret.name, 0o644)
        code = _PROBE.format(
            paths=[secret.name, "/etc/passwd", __file__],
            pid=os.getpid(),
            port=listener.getsockname()[1],
        )
        try:
            with _Trial(SandboxSpec(), namespaces=namespaces) as box:
                ended = box.python(code)
        except SandboxTemporarilyUnavailable:
            raise
        except SandboxUnavailable as error:
            return str(error)
    said = ended.stdout.strip() or f"ended: {ended.verdict} {ended.stderr.strip()[-200:]}"
    return "" if said == "held" else f"a process in a box {visible_line(said)}"


@functools.cache
def _filter(namespaces: bool, own_user: bool, network: Network) -> bytes:
    """The calls that a box may make."""
    rules: Rules = {**BOX_CALLS, **NETWORK_CALLS[network]}
    if not namespaces:
        rules = {**rules, **NO_LOCAL_SOCKETS, **NO_ATTRIBUTES}
        rules = rules if own_user else {**rules, **NO_CHANGE_OF_RIGHTS}
    return assemble(rules, platform.machine())
