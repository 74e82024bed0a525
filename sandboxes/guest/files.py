"""Reading and writing files for the host, a piece at a time.

The path may come from the model, and links are followed as everywhere in the box. So an opened file
is checked before it is read or changed: it must be a regular file, not a pipe that would block, and
not below /proc, where the worker may do to itself what the guest may not.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Tuple


def read(path: str, offset: int, most: int) -> Tuple[bytes, int]:
    """Read a piece of a file.

    Returns:
        At most `most` bytes from `offset` on, and the size of the file.

    Raises:
        OSError: There is no such regular file, or it may not be read.
    """
    fd = _open_regular(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        os.lseek(fd, offset, os.SEEK_SET)
        pieces = []
        while most > 0:
            piece = os.read(fd, most)
            if not piece:
                break
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces), size
    finally:
        os.close(fd)


def write(path: str, offset: int, data: bytes) -> None:
    """Write a piece of a file; the piece at offset 0 makes the file and its folders, or empties it.

    Raises:
        OSError: It is no regular file, may not be written, or does not fit.
    """
    if offset == 0:
        folder = os.path.dirname(path)
        if folder:
            try:
                os.makedirs(folder, exist_ok=True)
            except RecursionError:  # `makedirs` calls itself for each missing folder
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path) from None
    fd = _open_regular(path, os.O_WRONLY | (os.O_CREAT if offset == 0 else 0))
    try:
        if offset == 0:
            os.ftruncate(fd, 0)
        os.lseek(fd, offset, os.SEEK_SET)
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def _open_regular(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_dev != os.stat("/proc").st_dev:
        return fd
    os.close(fd)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise PermissionError(errno.EACCES, "not a regular file", path)
