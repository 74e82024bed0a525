"""Removing a box from this machine, finished or half made: its process, control groups and folder.

Processes that outlive the worker are killed by `lifetime/processes.py`.
"""

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gymnast.errors import SandboxTemporarilyUnavailable, SandboxUnavailable
from gymnast.sandboxes.host.cgroups import Groups, remove_group

ANSWER_S = 0.5  # for a worker to end by itself, once its connection is closed
END_S = 3.0  # for the process beside it, once the worker is killed


@contextlib.contextmanager
def undone_unless_whole() -> Iterator[contextlib.ExitStack]:
    """Make a box: the body pushes how to undo each part, which happens if a later part fails.

    Raises:
        SandboxTemporarilyUnavailable: The machine lacks memory, disk space or the like.
        SandboxUnavailable: This process may not make boxes.
    """
    with contextlib.ExitStack() as made:
        try:
            yield made
        except OSError as error:
            refused = isinstance(error, PermissionError | FileNotFoundError)
            refused = refused or error.errno == errno.EROFS
            kind = SandboxUnavailable if refused else SandboxTemporarilyUnavailable
            raise kind(f"this machine cannot start one more box: {error}") from None
        made.pop_all()


def end_process(process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    """Close a worker's connection and wait until the worker has ended; kill it if it does not end.

    Args:
        process: The worker's parent, which ends after it.
        connection: The worker's connection.
    """
    with contextlib.suppress(OSError):  # the worker may have closed its end
        connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer
    try:
        process.wait(ANSWER_S)
    except subprocess.TimeoutExpired:  # one of them was stopped, or hangs
        _kill_children(process.pid)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    connection.close()


def delete_place(folder: Path, groups: Groups) -> None:
    """Kill what is in a box's control groups, and delete the groups and its folder."""
    for group in set(groups.folders.values()):
        remove_group(group)
    delete_folder(folder)


def delete_folder(folder: Path) -> None:
    """Delete a folder and what is in it, whatever the guest has made of it; follow no links."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # it has a folder that may not be entered, or is too deep for Python
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run(
                [*command, str(folder)], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )


def _kill_children(pid: int) -> None:
    """Kill the children of a process of ours: stopped ones react to no other signal."""
    for child in _children(pid):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(child)
            try:
                if child in _children(pid):  # the id may belong to another process by now
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:  # it has ended, or the kernel has no such file
        return []
    return [int(child) for child in text.split()]
