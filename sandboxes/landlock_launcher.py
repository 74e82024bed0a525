"""The process around a Landlock box: run as a program, by the host's Python, one for each box.

It makes the mounts of the box where it may, gives up its rights, starts sandlock, and ends when
the worker has and nothing that the box started is left. Not in the run's own process, since
sandlock forks, has threads, and answers for the box's system calls as long as it lives.

Stdin and stdout are the worker's connection; a frame on stdin comes before the worker's first:
what to do, as the fields of `Plan`. Left out: what a box is given (`landlock.py`).

    mounts     with a mount namespace (as root, or where users may have user namespaces): /tmp,
               /dev/shm and the working folder are new, empty file systems in memory with a size,
               and folders on the way to Python that the box's user may not enter are replaced by
               ones that hold nothing but Python
    no mounts  the working folder and a folder for temporary files are on the host's disk
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLEAR_S = 2.0

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_NOSUID, _NODEV, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 4096, 16384, 1 << 18
_INODES = 1 << 16
_EMPTY_BYTES = 1 << 16
_FORKS = frozenset({"clone", "clone3", "fork", "vfork"})

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class Plan:
    """What the launcher is told.

    Attributes:
        argv: What runs in the box.
        env: Its variables.
        user_id: Whom to become; None: stay who we are.
        work: The working folder; it is there.
        temporary: Where temporary files go without mounts; it is there.
        folder_bytes: The size of each writable folder, where there are mounts.
        readable: Files and folders that the box may read and run.
        devices: Those that it may write to.
        threads: How many of them and of processes there may be, the launcher's own included,
            where the kernel can count those of the box.
        memory_bytes, processes, cores, cpu_percent: Limits that sandlock enforces.
    """

    argv: list[str]
    env: dict[str, str]
    user_id: int | None
    work: str
    temporary: str
    folder_bytes: int
    readable: list[str]
    devices: list[str]
    threads: int
    memory_bytes: int
    processes: int
    cores: list[int] | None
    cpu_percent: int | None


def main() -> None:
    """Run a box to its end."""
    plan = Plan(**json.loads(_take(int.from_bytes(_take(4), "big"))))
    import sandlock  # before the rights to read it are given up

    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    Path("/proc/self/oom_score_adj").write_text("1000")  # before the run itself, if it comes to it
    writable = [plan.work, plan.temporary]
    own_view = _make_mounts(plan)
    if own_view:
        writable = [plan.work, "/tmp", "/dev/shm"]
        plan.env.setdefault("TMPDIR", "/tmp")
    plan.env.setdefault("TMPDIR", plan.temporary)
    if plan.user_id is not None:
        os.setgroups([])
        os.setresgid(plan.user_id, plan.user_id, plan.user_id)
        os.setresuid(plan.user_id, plan.user_id, plan.user_id)
    if plan.user_id is not None or own_view:
        # Counted by user and user namespace: here the box's alone.
        resource.setrlimit(resource.RLIMIT_NPROC, (plan.threads, plan.threads))
    _prctl(_PR_SET_DUMPABLE, 1)  # sandlock looks into /proc/self; the box can look into neither
    box = sandlock.Sandbox(
        fs_readable=plan.readable,
        fs_writable=[*writable, *plan.devices],
        max_memory=plan.memory_bytes,
        max_processes=plan.processes,
        max_cpu=plan.cpu_percent,
        cpu_cores=plan.cores,
        cwd=plan.work,
        clean_env=True,
        env=plan.env,
        net_deny=["0.0.0.0/0", "::/0"],  # with a policy, sandlock allows what no rule denies
        policy_fn=_keep_worker_hidden(),
    )
    result = box.popen(plan.argv).wait()
    _clear()
    if result.error:
        sys.exit(f"sandlock: {result.error}")
    sys.exit(result.exit_code if result.exit_code >= 0 else 128 + signal.SIGKILL)


def _keep_worker_hidden() -> Callable[[Any, Any], bool]:
    """A policy that refuses everyone the worker's folder in /proc.

    sandlock opens what is below /proc for the caller, so that a domain of Landlock's own would not
    keep code away from the worker's memory. The worker is the first process of the box; until it
    forks for the first time it is alone, and opens there what it needs.
    """
    hidden = False

    def policy(event: Any, context: Any) -> bool:
        nonlocal hidden
        if not hidden and event.syscall in _FORKS:
            context.deny_path(f"/proc/{event.pid}")
            hidden = True
        return False  # allowed, as far as this policy is concerned

    return policy


def _take(size: int) -> bytes:
    """Read from stdin, and nothing of what follows."""
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit("the host has gone")
        data += piece
    return data


def _make_mounts(plan: Plan) -> bool:
    """Give the box a view of its own of the files; False where that is not allowed."""
    user_id, group_id = os.getuid(), os.getgid()
    flags = _NEW_MOUNTS if user_id == 0 else _NEW_MOUNTS | _NEW_USER
    if _LIBC.unshare(flags) != 0:
        return False
    if user_id != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user_id} {user_id} 1")
        Path("/proc/self/gid_map").write_text(f"{group_id} {group_id} 1")
    _mount("none", "/", "", _RECURSIVE | _PRIVATE, "")
    owner = user_id if plan.user_id is None else plan.user_id
    hidden = sorted({"/tmp", *(_closed_to(owner, path) for path in plan.readable)} - {""})
    kept = {path: os.open(path, os.O_PATH) for path in plan.readable if _below(path, hidden)}
    own = f"uid={owner},gid={owner if plan.user_id is not None else group_id}"
    sized = f"{own},size={plan.folder_bytes},nr_inodes={_INODES}"
    for folder in hidden:
        _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, _hiding(folder, sized))
    for path, fd in kept.items():
        _bind(fd, path)
    os.makedirs(plan.work, exist_ok=True)
    for folder, mode in ((plan.work, "700"), ("/dev/shm", "1777")):
        _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, f"{sized},mode={mode}")
    return True


def _hiding(folder: str, sized: str) -> str:
    return f"{sized},mode=1777" if folder == "/tmp" else f"size={_EMPTY_BYTES},mode=755"


def _below(path: str, folders: list[str]) -> bool:
    return any(path.startswith(folder + "/") for folder in folders)


def _closed_to(user_id: int, path: str) -> str:
    """The first folder on the way to a path that only others than this user may enter, or ""."""
    if os.getuid() != 0:
        return ""
    for folder in [*reversed(Path(path).parents)][1:]:
        found = folder.stat()
        if found.st_uid != user_id and not found.st_mode & 0o001:
            return str(folder)
    return ""


def _bind(fd: int, path: str) -> None:
    """Put what a descriptor has open where a path is."""
    source = f"/proc/self/fd/{fd}"
    if os.path.isdir(source):
        os.makedirs(path, mode=0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        Path(path).touch()
    _mount(source, path, "", _BIND | _RECURSIVE, "")
    os.close(fd)


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    arguments = [text.encode() for text in (source, target, kind)]
    if _LIBC.mount(*arguments, ctypes.c_ulong(flags), options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, *[ctypes.c_ulong(number) for number in (value, 0, 0, 0)]) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _clear() -> None:
    """Kill what has outlived the worker: orphans of the box are this process's children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    until = time.monotonic() + CLEAR_S
    while time.monotonic() < until:
        for pid in children.read_text().split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.001)
            continue
        return


if __name__ == "__main__":
    main()
