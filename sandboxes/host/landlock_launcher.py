"""The process beside a Landlock box: a program that the host's Python runs, one for each box.

It enters the box's namespaces, if it has any, forks, and waits until the child has ended or the
host is gone; then nothing of the box is left. The child is the box's first process: it makes the
view of the files, joins the control groups, gives up all rights, and becomes the worker. All of
that happens in one interpreter, so that a box costs the start of one.

Stdin and stdout are the worker's connection; before the worker's first frame, stdin has one with
the `Plan`, which `plan.py` makes. `landlock_view.py` makes the view, `guest/confine.py` speaks to
Landlock.
"""

# Every import costs time at each start: hence no dataclasses, for example.
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from gymnast.sandboxes.guest import confine, worker
from gymnast.sandboxes.guest.processes import become_subreaper, set_dumpable
from gymnast.sandboxes.host.landlock_view import check_call, make_view

CLEAR_S = 2.0
END_S = 3.0  # for the worker to end, once the host is gone

_NEW_MOUNTS, _NEW_GROUPS, _NEW_NAMES, _NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_CAPABILITIES_VERSION = 0x20080522
_OOM_SCORE = 500  # killed before the run itself, and after what the worker starts
_HOST_NAME = b"box"
_SET_INTERFACE_FLAGS, _UP = 0x8914, 1

_LIBC = ctypes.CDLL(None, use_errno=True)


class Plan(TypedDict):
    """What the launcher is to do."""

    namespaces: bool  # whether the box has its own; otherwise it has the host's
    loopback: bool  # with namespaces: whether the box's own loopback can be used
    user_id: int | None  # the user to become; None: keep this one
    env: dict[str, str]
    root: str  # with namespaces: an empty folder where the box's root is made
    work: str  # the working folder; without namespaces it exists already
    folder_bytes: int  # with namespaces: the size of each writable folder
    folder_inodes: int  # with namespaces: how many files each may have
    listable: list[str]  # folders whose names may be listed, with all folders below them
    readable: list[str]  # files and folders that may be read and run
    steps: Sequence[tuple[str, str, str]]  # with namespaces: what its root shows of the host
    writable: list[str]
    devices: list[str]
    placed: dict[str, str]  # with namespaces: readable files by their paths in the box
    groups: list[str]  # files of control groups to join
    threads: int  # RLIMIT_NPROC
    cores: list[int] | None  # None: all


def main() -> None:
    """Run a box to its end."""
    plan: Plan = json.loads(_take(int.from_bytes(_take(4), "big")))
    os.umask(0o022)  # the run's own could close the box's folders to its user
    user_id, group_id = os.getuid(), os.getgid()
    if plan["namespaces"]:
        _enter_namespaces(user_id, group_id)
    become_subreaper()
    alive, launcher_lives = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(launcher_lives)
            _become_worker(plan, alive, group_id if plan["user_id"] is None else plan["user_id"])
        except SystemExit as end:
            os._exit(0 if end.code in (None, 0) else 70)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(70)
    os.close(alive)
    ended = _ends(child)
    if not plan["namespaces"]:
        _clear()
    os._exit(0 if ended else 1)


def _take(size: int) -> bytes:
    """Read exactly this many bytes from stdin."""
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(70)  # the host has gone
        data += piece
    return data


def _enter_namespaces(user_id: int, group_id: int) -> None:
    """Make the next child process 1 of new namespaces; users other than root need their own."""
    check_call(_LIBC.unshare(_NEW_PROCESSES | (_NEW_USER if user_id != 0 else 0)), "unshare")
    if user_id != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user_id} {user_id} 1")
        Path("/proc/self/gid_map").write_text(f"{group_id} {group_id} 1")


def _become_worker(plan: Plan, alive: int, group_id: int) -> None:
    """Enter the box for good, and serve. Returns when the host is gone, if at all."""
    for group in plan["groups"]:
        Path(group).write_text("0")
    score = Path("/proc/self/oom_score_adj")
    if int(score.read_text()) < _OOM_SCORE:  # anyone may raise it
        score.write_text(str(_OOM_SCORE))
    user_id = os.getuid() if plan["user_id"] is None else plan["user_id"]
    if plan["namespaces"]:
        others = _NEW_MOUNTS | _NEW_GROUPS | _NEW_NAMES | _NEW_IPC | _NEW_NETWORK
        check_call(_LIBC.unshare(others), "unshare")
        check_call(_LIBC.sethostname(_HOST_NAME, len(_HOST_NAME)), "sethostname")
        if plan["loopback"]:
            _start_loopback()
        make_view(
            plan["root"],
            steps=plan["steps"],
            writable=plan["writable"],
            placed=plan["placed"],
            folder_bytes=plan["folder_bytes"],
            folder_inodes=plan["folder_inodes"],
            owner=(user_id, group_id),
        )
    os.chdir(plan["work"])
    _give_up_rights(plan)
    check_call(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")  # forgotten by a new user
    if select.select([alive], [], [], 0)[0]:
        os._exit(70)
    set_dumpable(True)  # the worker has to look at itself; it ends this
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.environ.clear()
    os.environ.update(plan["env"])
    boot = json.loads(_take(int.from_bytes(_take(4), "big")))
    del boot["modules"]  # they are here
    granted = {
        confine.LIST: plan["listable"],
        confine.READ: [*plan["readable"], *plan["placed"]],
        confine.WRITE: plan["writable"],
        confine.USE_DEVICE: plan["devices"],
    }
    worker.main(boot, lambda: confine.use_files_only(granted, tcp=plan["loopback"]))


def _start_loopback() -> None:
    """Switch on the only interface of the box's own network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_INTERFACE_FLAGS, struct.pack("16sh22x", b"lo", _UP))


def _give_up_rights(plan: Plan) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = plan["threads"] if hard == resource.RLIM_INFINITY else min(plan["threads"], hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    if plan["cores"] is not None:
        os.sched_setaffinity(0, plan["cores"])
    if plan["user_id"] is not None:
        os.setgroups([])
        os.setresgid(plan["user_id"], plan["user_id"], plan["user_id"])
        os.setresuid(plan["user_id"], plan["user_id"], plan["user_id"])
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    check_call(_LIBC.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _ends(child: int) -> bool:
    """Wait for the worker, which ends with the connection; False if it had to be killed."""
    ended, host = os.pidfd_open(child), 0
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(host, 0)  # the end of it is always reported
    late = False
    if ended not in dict(poll.poll()):
        poll.unregister(host)
        late = not poll.poll(END_S * 1000)
    if late:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return not late


def _clear() -> None:
    """Kill what has outlived the worker: orphans of the box become this process's children."""
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
