"""Ending what a box on this machine has: its process, its control groups, its folder.

Left out: which processes outlive the worker (`marked.py`, `users.py`); containers.
"""

import contextlib
import socket
import subprocess
from pathlib import Path

from gymnast.sandboxes.cgroups import Groups, remove_group
from gymnast.sandboxes.folder import delete_folder

END_S = 5.0  # for a worker to end, once its connection is closed


def end_process(process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    """Close a worker's connection and wait for its end; kill it if it does not come."""
    with contextlib.suppress(OSError):  # the worker may have closed its end
        connection.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for an answer
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    connection.close()


def delete_place(folder: Path, groups: Groups) -> None:
    """Delete a box's control groups, with what is in them, and its folder."""
    for group in set(groups.folders.values()):
        remove_group(group)
    delete_folder(folder)
