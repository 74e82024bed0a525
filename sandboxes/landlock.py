"""Running code on this machine, held by Landlock and seccomp (the package `sandlock`)."""

import contextlib
import ctypes
import functools
import importlib.util
import json
import math
import os
import platform
import random
import secrets
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from gymnast.errors import SandboxTemporarilyUnavailable, SandboxUnavailable
from gymnast.sandboxes.folder import delete_folder
from gymnast.sandboxes.landlock_launcher import Plan
from gymnast.sandboxes.marked import kill_marked
from gymnast.sandboxes.owner import MARK_VARIABLE, folder_prefix
from gymnast.sandboxes.program import command
from gymnast.sandboxes.seccomp_filter import BOX_RULES, assemble, has_machine
from gymnast.sandboxes.spec import MIB, SandboxSpec
from gymnast.sandboxes.users import kill_all_of_user
from gymnast.sandboxes.worker_sandbox import WorkerSandbox

LEAST_ABI = 6  # Landlock's: scopes for signals and for abstract sockets
END_S = 5.0  # for the worker and its launcher to end, once the connection is closed
PROBE_S = 30.0

_LAUNCHER = Path(__file__).parent / "landlock_launcher.py"
_LAUNCHER_ENV = {"HOME": "/nonexistent"}  # sandlock wants one
_OWN_PROCESSES = 2  # the worker and the session
_OWN_THREADS = 32  # the launcher's
_OWN_MEMORY = 32 * MIB  # the worker and the session, as sandlock counts
_CREATE_RULESET = 444
_USER_IDS = range(1_900_000_000, 2_100_000_000)  # no distribution gives them to anyone
_NOBODY = 65534

# Single files of /etc: all of it would show /etc/shadow to a process that may read it.
_READABLE = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types",
    "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
)  # fmt: skip
_DEVICES = ("/dev/null",)


class LandlockSandbox(WorkerSandbox):
    """Runs code on this machine without an engine, a daemon or root.

    All of a box is in one Landlock domain, below which each call has its own. It reads /usr, the
    folders of the Python that runs Gymnast, a few single files, and /proc, where it sees its own
    processes. It writes to its working folder, /tmp and /dev/shm. It has no socket but local ones,
    can signal, trace and look into nothing outside (nor the worker inside), and seccomp refuses it
    the calls of `seccomp_filter.BOX_RULES` and of sandlock's own list. Nothing of the host's
    environment is passed on, and no privilege can be gained.

    Root is not needed, and given up: where the run is root's, every box runs as a user of its own
    that nobody else is, so that what it started is found by its user. Otherwise it runs as the
    run's user. A small launcher lives beside each box, started by the same Python.

    Limits that hold: wall time, output, processes, memory, the size of a file, open files, CPU
    (`cpus` below 1 as a share; above, whole cores). The writable folders are in memory,
    `disk_bytes` each and gone with the box, and threads are limited, too, as root and where the
    kernel lets users have user namespaces.

    What does not hold, or differs:

    - Without user namespaces, or as another user than root where they are off, the working folder
      and a folder in $TMPDIR are on disk: each file is limited, not their sum; /tmp and /dev/shm
      are not there. Threads are limited by memory alone.
    - Memory is counted as it is asked for, not as it is used, and a fork counts it again. Beyond
      the limit a process gets an error or is killed (exit code 137). The verdict "oom" does not
      occur, as sandlock does not say why it killed. It may come to the worker: verdict "dead".
    - What does not depend on a process can be learnt of the machine from /proc: its CPUs, memory,
      load.
    - Holes in the kernel, which the box shares with the host.

    Args:
        spec: The limits; `image`, `runtime` and `python` mean nothing here.

    Raises:
        SandboxUnavailable: The kernel, the machine or the package does not do; it says which.
    """

    def __init__(self, spec: SandboxSpec | None = None) -> None:
        super().__init__(spec or SandboxSpec())
        check_works()
        self._user_id = _new_user_id()
        self.folder = _make_folder(self._user_id)
        plan = _plan(self.spec, self.folder, self._user_id)
        try:
            ours, process = _launch(plan)
        except OSError as error:
            delete_folder(self.folder)
            raise SandboxTemporarilyUnavailable(
                f"this machine cannot start one more process: {error}"
            ) from None
        self._errors = _Errors(process)
        folder, user_id, errors = self.folder, self._user_id, self._errors
        self._connect(
            ours,
            lambda: _discard(process, ours, errors, folder, user_id),
            alone=False,
            rlimits=_rlimits(self.spec),
            seccomp=assemble(BOX_RULES, platform.machine()),
            scoped=True,
        )

    def _name(self) -> str:
        return f"the Landlock sandbox in {self.folder}"

    def _start_failure(self) -> str:
        return self._errors.text()


def check_works() -> None:
    """Try once in this process whether boxes can be made and hold.

    Raises:
        SandboxUnavailable: They cannot, or do not; it says why, and the way out.
    """
    if reason := _why_not(os.getpid()):
        raise SandboxUnavailable(
            f'Landlock boxes do not work here: {reason}. Another backend is "docker"'
        )


@functools.cache
def _why_not(pid: int) -> str:
    machine = platform.machine()
    if sys.platform != "linux" or not has_machine(machine):
        return f"this is {sys.platform} on {machine}; it takes Linux on x86-64 or 64-bit ARM"
    if importlib.util.find_spec("sandlock") is None:
        return "the package sandlock is missing: pip install 'gymnast[landlock]'"
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
    return _try()


# What must be refused in a box, and what must not. The last line is the answer.
_PROBE = """
import os, socket, sys
leaks = []
for path in sys.argv[2:]:
    try:
        open(path).close()
        leaks.append("could read " + path)
    except OSError:
        pass
try:
    os.kill(os.getppid(), 0)
    leaks.append("could signal its parent")
except PermissionError:
    pass
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
    leaks.append("could connect to the host")
except OSError:
    pass
open("made", "w").close()
print("; ".join(leaks) or "held")
"""


def _try() -> str:
    """Start a process in a box; the reason why that does not do, or nothing."""
    user_id = _new_user_id()
    folder = _make_folder(user_id)
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        secret = folder / "secret"
        secret.write_text("")
        port = str(listener.getsockname()[1])
        plan = _plan(SandboxSpec(), folder, user_id)
        plan.argv = [plan.argv[0], "-I", "-c", _PROBE, port, str(secret), "/etc/passwd"]
        frame = _frame(plan)
        ended = subprocess.run(
            _launcher_command(),
            input=frame,
            capture_output=True,
            timeout=PROBE_S,
            env=_LAUNCHER_ENV,
        )
        said = ended.stdout.decode("utf-8", "replace").strip()
        if ended.returncode == 0:
            return "" if said == "held" else f"a process in a box {said}"
        errors = ended.stderr.decode("utf-8", "replace").strip()
        last = (errors.splitlines() or ["it says nothing"])[-1]
        return f"a process in a box ended with exit code {ended.returncode}: {last}"
    except subprocess.TimeoutExpired:
        return f"a process in a box did not end within {PROBE_S:g} s"
    except OSError as error:
        return str(error)
    finally:
        listener.close()
        delete_folder(folder)


def _new_user_id() -> int | None:
    """As root, a user that nobody else is; None: stay who we are."""
    if os.geteuid() != 0:
        return None
    wanted = secrets.choice(_USER_IDS)
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= wanted < first + count:
            return wanted
    return _NOBODY  # the root of a user namespace has no other


def _make_folder(user_id: int | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=folder_prefix()))
    for path in (folder, folder / "work", folder / "tmp"):
        path.mkdir(mode=0o700, exist_ok=True)
        if user_id is not None:
            os.chown(path, user_id, user_id)
    return folder


def _plan(spec: SandboxSpec, folder: Path, user_id: int | None) -> Plan:
    pythons = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    readable = [path for path in (*_READABLE, *sorted(pythons)) if Path(path).exists()]
    path = [os.path.dirname(os.path.abspath(sys.executable)), "/usr/local/bin", "/usr/bin", "/bin"]
    work = str(folder / "work")
    own = {"PATH": ":".join(path), "HOME": work, "LANG": "C.UTF-8"}
    return Plan(
        argv=command(os.path.abspath(sys.executable)),
        env={**own, **spec.env, MARK_VARIABLE: folder.name},
        user_id=user_id,
        work=work,
        temporary=str(folder / "tmp"),
        folder_bytes=spec.disk_bytes,
        readable=readable,
        devices=list(_DEVICES),
        threads=spec.processes + _OWN_PROCESSES + _OWN_THREADS,
        memory_bytes=spec.memory_bytes + _OWN_MEMORY,
        processes=spec.processes + _OWN_PROCESSES,
        cores=_some_cores(spec.cpus),
        cpu_percent=round(100 * spec.cpus) if spec.cpus < 1 else None,
    )


def _some_cores(cpus: float) -> list[int] | None:
    """Cores for a box, drawn so that many boxes share all; None: it may use every core."""
    cores = sorted(os.sched_getaffinity(0))
    wanted = math.ceil(cpus)
    return (
        random.Random(secrets.randbits(64)).sample(cores, wanted) if wanted < len(cores) else None
    )


def _rlimits(spec: SandboxSpec) -> dict[str, int]:
    return {
        "RLIMIT_CORE": 0,
        "RLIMIT_DATA": spec.memory_bytes,
        "RLIMIT_FSIZE": spec.disk_bytes,
        "RLIMIT_NOFILE": 1024,
    }


def _launcher_command() -> list[str]:
    return [sys.executable, "-I", str(_LAUNCHER)]


def _frame(plan: Plan) -> bytes:
    text = json.dumps(asdict(plan)).encode()
    return len(text).to_bytes(4, "big") + text


def _launch(plan: Plan) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            _launcher_command(),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
            cwd="/",
            env=_LAUNCHER_ENV,
            start_new_session=True,
        )
    ours.sendall(_frame(plan))
    return ours, process


class _Errors:
    """What the launcher says before the worker answers; nothing is written later on."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stderr is not None
        self._stream = process.stderr
        os.set_blocking(self._stream.fileno(), False)

    def text(self) -> str:
        said = b"" if self._stream.closed else self._stream.read() or b""
        return (said.decode("utf-8", "replace").strip().splitlines() or [""])[-1]

    def close(self) -> None:
        self._stream.close()


def _discard(
    process: "subprocess.Popen[bytes]",
    connection: socket.socket,
    errors: _Errors,
    folder: Path,
    user_id: int | None,
) -> None:
    """End the worker and its launcher, and what outlives them; delete the folder."""
    with contextlib.suppress(OSError):  # the worker may have closed its end
        connection.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for an answer
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    connection.close()
    errors.close()
    if user_id is not None and user_id in _USER_IDS:
        kill_all_of_user(user_id)
    elif process.returncode != 0:
        kill_marked(lambda mark: mark == folder.name)
    delete_folder(folder)
