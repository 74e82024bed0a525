"""The policy's working folder, carried from its box into a fresh one as plain data.

Carried: regular files with their modes and times, folders, and symbolic links that lead to
something in the folder. Not carried: links that lead out of it, to nothing, to a file of the
grader's or to a folder that holds one; devices, pipes and sockets; `__pycache__` and `*.pyc`; files
that their owner cannot read. Hard links become separate files.

What comes from the policy's box is read with distrust. None of it is written to the host's disk,
and only one piece of the contents at a time is in its memory. `folder.py` is the side in the boxes;
`fresh_box.py` decides when a folder is carried.
"""

import json
import os
import time
from base64 import b64decode
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gymnast.envs.boxes.carried_links import Entry, kept_entries
from gymnast.errors import SandboxDead, SandboxFileError
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.module_program import module_program, module_sources
from gymnast.sandboxes.contract.spec import ExecResult

MAX_ENTRIES = 1 << 14
MAX_NAME_BYTES = 2 << 20

_PIECE_BYTES = 1 << 20
_LISTING_BYTES = 6 * MAX_NAME_BYTES + 128 * MAX_ENTRIES  # the longest list, as JSON
_LINE_BYTES = 6 * 2 * 4096 + 128  # the longest entry, as JSON
READ_S = 60.0  # for reading a whole folder
_LONGEST_NAME = 255
_NEW_SESSION = "import os; os._exit(0)"


class CannotCarry(Exception):
    """A folder cannot be carried; the message says why."""


@dataclass(frozen=True)
class Folder:
    """The list of a working folder; the contents of its files are still in its box.

    Attributes:
        root: Its path, according to its box.
        entries: Its entries, folders before what they contain. The contents of the files, one
            after another, are one stream.
        source: Where the rest of the stream is read from.
        first: The first piece of the stream.
    """

    root: str
    entries: tuple[Entry, ...]
    source: "_Source"
    first: bytes

    def pieces(self) -> Iterator[bytes]:
        """The stream.

        Raises:
            CannotCarry: The box gives something else.
            SandboxDead: It broke.
        """
        total = sum(entry.size for entry in self.entries)
        yield self.first
        for offset in range(_PIECE_BYTES, total, _PIECE_BYTES):
            text = self.source.run(f"_folder.piece({offset}, {_PIECE_BYTES})\n")
            yield _piece(text, min(_PIECE_BYTES, total - offset))


class _Source:
    """The box in which the policy has worked, which must not keep its readers waiting."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box
        self._left_s = READ_S

    def run(self, program: str) -> str:
        """The output of a program; raises as `_run` does."""
        if self._left_s <= 0:
            raise CannotCarry(f"reading it takes longer than {READ_S:g} s")
        begun = time.monotonic()
        try:
            return _run(self._box, program, timeout_s=self._left_s)
        finally:
            self._left_s -= time.monotonic() - begun


def read_folder(box: Sandbox, most_bytes: int) -> Folder:
    """Read the working folder of a box. This ends the box's Python session.

    Args:
        box: The box in which the policy has worked.
        most_bytes: A folder with more bytes, holes in files included, is refused.

    Raises:
        CannotCarry: The folder is too large, or the box gives no list of it.
        SandboxDead: The box broke.
    """
    box.python(_NEW_SESSION)  # the last one may be in another folder, or still write to this one
    source = _Source(box)
    limits = MAX_ENTRIES, most_bytes, MAX_NAME_BYTES
    program = f"_folder = folder.Reader(*{limits})\n_folder.say({_PIECE_BYTES})\n"
    output = source.run(folder_program() + program)
    listing, _, contents = output.removesuffix("\n").rpartition("\n")
    root, entries = _listing(listing, most_bytes)
    total = sum(entry.size for entry in entries)
    return Folder(root, entries, source, _piece(contents, min(_PIECE_BYTES, total)))


@dataclass(frozen=True)
class Places:
    """The paths in a fresh box.

    Attributes:
        root: The folder that the policy's files are written to.
        own: A folder that gets nothing of the policy's; `home`, `tmp`, `bytecode` and `check` are
            empty folders in it.
        search_paths: `PATH` and its like, if the box sets them, without relative paths and paths
            in `root`.
    """

    root: str
    own: str
    search_paths: Mapping[str, str]


def prepare_box(box: Sandbox) -> Places:
    """Make the folders that grading needs in a fresh box.

    Raises:
        CannotCarry: The box has no room for them.
        SandboxDead: It broke.
    """
    places = json.loads(_run(box, folder_program() + "folder.prepare()\n"))
    return Places(places["root"], places["own"], places["paths"])


def write_folder(folder: Folder, box: Sandbox, places: Places, placed: Collection[str]) -> None:
    """Write a folder into a box that `prepare_box` has prepared.

    Args:
        folder: The folder to write.
        box: The fresh box.
        places: What `prepare_box` returned for it.
        placed: Paths in the folder that are written already, and are kept.

    Raises:
        CannotCarry: The folder does not fit, or its own box does not give its contents.
        SandboxDead: One of the boxes broke.
    """
    kept = kept_entries(folder.entries, folder.root, places.root, placed)
    plan = [
        _as_list(entry, kept.get(entry.path))
        for entry in folder.entries
        if entry.kind == "file" or entry.path in kept
    ]
    try:
        box.write_file(f"{places.own}/plan", json.dumps(plan))
        step = f"_folder = folder.Writer({places.root!r}, {places.own!r})\n"
        for piece in folder.pieces():
            box.write_file(f"{places.own}/piece", piece)
            _run(box, f"{step}_folder.write()\n")
            step = ""
    except SandboxFileError as error:
        raise CannotCarry(f"the box for the grading has no room: {error}") from None
    if _run(box, "_folder.finish()\n").strip() != "whole":
        raise CannotCarry("its contents are shorter or longer than its box had announced")


def _as_list(entry: Entry, kept: Entry | None) -> Sequence[Any]:
    if kept is None:
        return ["file", None, 0, entry.size, 0]
    if kept.kind == "file":
        return [kept.kind, kept.path, kept.mode, kept.size, kept.changed_ns]
    return [kept.kind, kept.path, kept.target if kept.kind == "link" else kept.mode]


def _listing(text: str, most_bytes: int) -> tuple[str, tuple[Entry, ...]]:
    """The root and the entries that a box lists, if that list is possible.

    It is read line by line, as a few megabytes of JSON can become hundreds of megabytes of values.
    """
    if text.count("\n") > MAX_ENTRIES:
        raise CannotCarry("it is larger than its box says")
    try:
        first, *rest = text.split("\n")
        header = _line(first)
        if isinstance(header, dict) and isinstance(header.get("refused"), str):
            raise CannotCarry(header["refused"])
        root, entries = header["root"], tuple(_entry(_line(line)) for line in rest)
        if not isinstance(root, str) or not root.startswith("/"):
            raise ValueError("its folder is nowhere")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CannotCarry(f"its box gives no list of it: {error!r:.200}") from None
    if len(entries) > MAX_ENTRIES or sum(entry.size for entry in entries) > most_bytes:
        raise CannotCarry("it is larger than its box says")
    folders = {""}
    for entry in entries:
        if entry.path.rpartition("/")[0] not in folders:
            raise CannotCarry("its box gives no list of it: a file is in no folder")
        if entry.kind == "folder":
            folders.add(entry.path)
    if len({entry.path for entry in entries}) != len(entries):
        raise CannotCarry("its box gives no list of it: a file is there twice")
    return root, entries


def _line(text: str) -> Any:
    if len(text) > _LINE_BYTES:
        raise ValueError("a line is too long")
    return json.loads(text)


def _entry(listed: Any) -> Entry:
    """One entry of the list, if it is a possible one.

    Raises:
        ValueError: It is not.
        TypeError: It is not.
    """
    kind, path, *more = listed
    if not _is_text(path) or not all(map(_is_name, path.split("/"))):
        raise ValueError("no path")
    if kind == "link":
        (target,) = more
        if not _is_text(target) or not target:
            raise ValueError("no target")
        return Entry(kind, path, target=target)
    mode, size, changed_ns = more if kind == "file" else (*more, 0, 0)
    numbers = (mode, 0o7777), (size, 1 << 62), (abs(changed_ns), 1 << 93)
    if any(type(number) is not int or not 0 <= number <= most for number, most in numbers):
        raise ValueError("no number")
    if kind not in ("file", "folder"):
        raise ValueError("no kind")
    return Entry(kind, path, mode, size, changed_ns)


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    os.fsencode(value)
    return True


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and len(os.fsencode(part)) <= _LONGEST_NAME


def _piece(text: str, length: int) -> bytes:
    try:
        data = b64decode(text.strip().encode("ascii"), validate=True)
    except ValueError as error:
        raise CannotCarry(f"its box gives no contents: {error!r:.200}") from None
    if len(data) != length:
        raise CannotCarry(f"its box gives {len(data)} bytes in place of {length}")
    return data


def _run(box: Sandbox, program: str, timeout_s: float | None = None) -> str:
    """Run a program of `folder.py`; return what it printed.

    Raises:
        CannotCarry: It failed.
        SandboxDead: The box broke.
    """
    most = _LISTING_BYTES + 2 * _PIECE_BYTES
    result = box.python(program, timeout_s=timeout_s, max_output_bytes=most)
    if result.verdict == "dead":
        raise SandboxDead(f"a box broke while its working folder was carried: {_last(result)}")
    if result.verdict != "ok":
        raise CannotCarry(f"its box did not read or write it ({result.verdict}): {_last(result)}")
    return result.stdout


def _last(result: ExecResult) -> str:
    return repr(result.stderr.strip()[-200:])


@cache
def folder_program() -> str:
    """Python that defines the module `folder` in a box, and leaves no other trace of it.

    It imports nothing from the folder that it runs in, where files of the policy's may lie.
    """
    return (
        "import os, sys\n"
        "sys.path[:] = [_place for _place in sys.path if _place.startswith('/') and not "
        "(_place + '/').startswith(os.getcwd() + '/')]\n"
        + module_program("grading", module_sources(Path(__file__).parent, ["folder"]))
        + "del sys.modules['grading.folder'], sys.modules['grading']\n"
    )
