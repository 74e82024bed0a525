"""A full disk: one line that names the file, what it needs and how much is free."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gymnast.errors import DiskFull

# No space, a quota that is used up, a file larger than this process may write.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def naming_full_disk(path: Path, need: int) -> Iterator[None]:
    """Say in one line that the block cannot write for lack of space.

    Args:
        path: What is written; a part of it is removed before the block ends.
        need: Its size, in bytes.

    Raises:
        DiskFull: The disk is full, a quota is used up, or a file may not be so large.
    """
    try:
        yield
    except Exception as error:
        if (number := _full(error)) is None:
            raise
        folder = next(parent for parent in path.parents if parent.exists())
        room = shown(shutil.disk_usage(folder).free)
        raise DiskFull(
            f"{path} cannot be written: {os.strerror(number)}; it needs {shown(need)}, and the "
            f"disk has {room} free. What was written before is intact. Free some space"
        ) from error


def shown(size: float) -> str:
    """A number of bytes for people: "1.5 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _full(error: BaseException | None) -> int | None:
    """The system's number for a lack of space, if that caused an error.

    torch's own errors are about what followed; safetensors has the number in its text.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return error.errno
        said = re.search(r"\(os error (\d+)\)", str(error))
        if said and int(said[1]) in FULL:
            return int(said[1])
        error = error.__cause__ or error.__context__
    return None
