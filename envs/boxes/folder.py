"""A working folder as plain data: read out of one box, and written into another.

In the policy's box nothing that this program prints can be relied on: the host reads it with
distrust, and a lie gains the policy no more than other files in the folder would. The other box is
fresh. The contents of all files, one after another, are one stream of bytes, carried in pieces.
"""

import binascii
import bisect
import contextlib
import json
import os
import stat
from typing import Any, List, Optional, Sequence

_LONGEST_PATH = 4000  # in bytes; beyond it the system opens nothing
_SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "PERL5LIB", "RUBYLIB", "NODE_PATH")
_OWN = ("home", "tmp", "bytecode", "check")


class Refused(Exception):
    """The folder may not be carried; the message says why."""


class Reader:
    """Reads the current folder as it is now.

    Args:
        most_entries: A folder with more files, folders and links is refused.
        most_bytes: A folder with more contents, holes included, is refused.
        most_name_bytes: A folder whose paths and targets of links are longer together is refused.
    """

    def __init__(self, most_entries: int, most_bytes: int, most_name_bytes: int) -> None:
        self._root = os.getcwd()
        self._most_entries, self._most_bytes = most_entries, most_bytes
        self._names_left = most_name_bytes
        self._entries: List[List[Any]] = []
        self._files: List[str] = []
        self._starts = [0]  # where each file begins in the stream, and where the last one ends

    def say(self, most: int) -> None:
        """Print the folder as lines of JSON, and the first piece of the stream as the last one."""
        try:
            self._walk()
        except (Refused, OSError) as error:
            print(json.dumps({"refused": str(error)}))
            print()
            return
        for line in ({"root": self._root}, *self._entries):
            print(json.dumps(line))
        self.piece(0, most)

    def piece(self, offset: int, most: int) -> None:
        """Print `most` bytes of the stream, or what is left of it, as base64."""
        until = min(offset + most, self._starts[-1])
        data = bytearray()
        at = bisect.bisect_right(self._starts, offset) - 1
        while offset + len(data) < until:
            begin = offset + len(data) - self._starts[at]
            wanted = min(until, self._starts[at + 1]) - offset - len(data)
            content = _content(self._files[at], begin, wanted)
            data += content + bytes(wanted - len(content))  # the file may have become shorter
            at += 1
        print(binascii.b2a_base64(data, newline=False).decode())

    def _walk(self) -> None:
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            with _listed(folder) as entries:
                for entry in entries:
                    self._add(entry, waiting)

    def _add(self, entry: "os.DirEntry[str]", waiting: List[str]) -> None:
        path = entry.path[2:]  # without "./"
        self._count(path)
        status = entry.stat(follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            if entry.name != "__pycache__":
                self._entries.append(["folder", path, mode])
                waiting.append(path)
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)
            self._count(target)
            self._entries.append(["link", path, target])
        elif stat.S_ISREG(status.st_mode) and _can_be_read(path, mode):
            end = self._starts[-1] + status.st_size
            if end > self._most_bytes:
                raise Refused("it has more than %d bytes" % self._most_bytes)
            self._entries.append(["file", path, mode, status.st_size, status.st_mtime_ns])
            self._files.append(path)
            self._starts.append(end)

    def _count(self, name: str) -> None:
        length = len(os.fsencode(name))
        self._names_left -= length
        self._most_entries -= 1
        if self._most_entries < 0:
            raise Refused("it has too many files, folders and links")
        if self._names_left < 0 or length > _LONGEST_PATH:
            raise Refused("its paths are too long")


def _listed(folder: str) -> Any:
    path = "./" + folder if folder else "."
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        if mode & 0o700 != 0o700:
            os.chmod(path, mode | 0o700)
    try:
        return os.scandir(path)
    except PermissionError:
        return contextlib.nullcontext([])


def _can_be_read(path: str, mode: int) -> bool:
    """Whether its owner, who may have removed the right to, can read a file."""
    with contextlib.suppress(OSError):
        if not mode & 0o400:
            os.chmod(path, mode | 0o400)
    return os.access(path, os.R_OK)


def _content(path: str, offset: int, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        pieces = []
        while size > 0:
            piece = os.pread(fd, size, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(fd)


def prepare() -> None:
    """Make the folders that the grader has to itself; print where they are, and the search paths.

    The folder to fill is the current one, unless that is the one for temporary files too.
    """
    root = os.path.realpath(os.getcwd())
    temporary = os.path.realpath(os.environ.get("TMPDIR") or "/tmp")
    own = os.path.join(temporary, "grading-" + os.urandom(8).hex())
    for name in ("", *_OWN):
        os.mkdir(os.path.join(own, name), 0o700)
    if _is_below(own, root):
        root = os.path.join(own, "work")
        os.mkdir(root, 0o700)
    paths = {name: os.environ[name] for name in _SEARCHED if name in os.environ}
    safe = {name: _safe_paths(value, os.getcwd()) for name, value in paths.items()}
    print(json.dumps({"root": root, "own": own, "paths": safe}))


def _safe_paths(value: str, folder: str) -> str:
    """A search path without parts that are relative or in a folder with the policy's files."""
    folder = os.path.realpath(folder)
    parts = [part for part in value.split(":") if os.path.isabs(part)]
    return ":".join(part for part in parts if not _is_below(os.path.realpath(part), folder))


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


class Writer:
    """Fills a folder.

    Args:
        root: The folder.
        own: A folder for the host's files: `plan`, a JSON list of the entries to make, parents
            first, and then one `piece` of the stream after another. A file without a path is
            skipped.
    """

    def __init__(self, root: str, own: str) -> None:
        self._root = root
        self._source = os.path.join(own, "piece")
        self._plan: List[Sequence[Any]] = json.loads(_taken(os.path.join(own, "plan")))
        self._folders: List[Sequence[Any]] = []
        self._at = 0
        self._fd: Optional[int] = None
        self._left = 0
        os.umask(0)
        self._go_on()

    def write(self) -> None:
        """Take the next piece of the stream."""
        data = memoryview(_taken(self._source))
        while data:
            taken = data[: self._left]
            data = data[len(taken) :]
            self._left -= len(taken)
            while self._fd is not None and taken:
                taken = taken[os.write(self._fd, taken) :]
            if self._left == 0:
                self._end_file()
                self._go_on()

    def finish(self) -> None:
        """Give the folders their modes; print whether everything is written."""
        for _, path, mode in reversed(self._folders):
            _change_mode(os.path.join(self._root, path), mode)
        print("whole" if self._at == len(self._plan) and self._left == 0 else "cut")

    def _go_on(self) -> None:
        """Make the entries up to the next file that is not empty."""
        while self._at < len(self._plan):
            made = self._plan[self._at]
            path = None if made[1] is None else os.path.join(self._root, made[1])
            if made[0] == "file":
                self._left = made[3]
                if path is not None:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    self._fd = os.open(path, flags, made[2])
                if self._left:
                    return
                self._end_file()
            else:
                self._at += 1
                if made[0] == "folder":
                    os.mkdir(path or "", made[2] | 0o700)
                    self._folders.append(made)
                else:
                    os.symlink(made[2], path or "")

    def _end_file(self) -> None:
        _, path, mode, _, changed_ns = self._plan[self._at]
        self._at += 1
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            path = os.path.join(self._root, path)
            with contextlib.suppress(OSError, OverflowError):
                os.utime(path, ns=(changed_ns, changed_ns))
            if mode & ~0o777:
                _change_mode(path, mode)


def _taken(path: str) -> bytes:
    with open(path, "rb") as stream:
        data = stream.read()
    os.unlink(path)
    return data


def _change_mode(path: str, mode: int) -> None:
    """Change a mode if the box allows it: some refuse every change of rights."""
    if stat.S_IMODE(os.lstat(path).st_mode) != mode:
        with contextlib.suppress(OSError):
            os.chmod(path, mode)
