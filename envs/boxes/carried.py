"""The policy's working folder, carried from its box into a fresh one as plain data.

Carried: regular files with their modes and times, folders, and symbolic links that lead to
something in the folder. Not carried: links that lead out of it, to nothing, to a file of the check
or to a folder that holds one; devices, pipes and sockets; `__pycache__` and `*.pyc`; files that
their owner cannot read. What were hard links are files of their own.

What the policy's box says is read with distrust. Nothing of it is written on the host, and no
more than one piece of the contents is held there. The side in the boxes is `judging/folder.py`;
`fresh_box.py` says when folders are carried.
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
_LISTING_BYTES = 6 * MAX_NAME_BYTES + 128 * MAX_ENTRIES  # what JSON makes of them, at most
_LINE_BYTES = 6 * 2 * 4096 + 128  # likewise, of one entry
READ_S = 60.0  # for all that is read of a folder
_LONGEST_NAME = 255
_NEW_SESSION = "import os; os._exit(0)"


class CannotCarry(Exception):
    """A folder cannot be carried; the message says why."""


@dataclass(frozen=True)
class Folder:
    """A working folder, of which only the contents of its files are still in its box.

    Attributes:
        root: Where it is, as its box says.
        entries: Folders come before what is in them. The contents of the files, one after
            another, are one stream.
        source: Where the stream comes from.
        first: Its first piece.
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
            said = self.source.said(f"_folder.piece({offset}, {_PIECE_BYTES})\n")
            yield _piece(said, min(_PIECE_BYTES, total - offset))


class _Source:
    """The box where the policy has worked, which must not make its readers wait for long."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box
        self._left_s = READ_S

    def said(self, program: str) -> str:
        """What a program printed; raises as `_said` does."""
        if self._left_s <= 0:
            raise CannotCarry(f"reading it takes longer than {READ_S:g} s")
        begun = time.monotonic()
        try:
            return _said(self._box, program, timeout_s=self._left_s)
        finally:
            self._left_s -= time.monotonic() - begun


def read_folder(box: Sandbox, most_bytes: int) -> Folder:
    """Read the working folder of a box, whose Python session ends.

    Args:
        box: Where the policy has worked.
        most_bytes: A folder with more, holes in files included, is refused.

    Raises:
        CannotCarry: It is too large, or the box gives no list of it.
        SandboxDead: The box broke.
    """
    box.python(_NEW_SESSION)  # the last one may be in another folder, or still write to this one
    source = _Source(box)
    limits = MAX_ENTRIES, most_bytes, MAX_NAME_BYTES
    program = f"_folder = folder.Reader(*{limits})\n_folder.say({_PIECE_BYTES})\n"
    said = source.said(folder_program() + program)
    listing, _, contents = said.removesuffix("\n").rpartition("\n")
    root, entries = _listing(listing, most_bytes)
    total = sum(entry.size for entry in entries)
    return Folder(root, entries, source, _piece(contents, min(_PIECE_BYTES, total)))


@dataclass(frozen=True)
class Places:
    """Where things are in a fresh box.

    Attributes:
        root: The folder that is written.
        own: A folder that nothing of the policy's comes into; `home`, `tmp`, `bytecode` and
            `check` are empty folders in it.
        search_paths: `PATH` and its like as they are in the box, where they are set, but for what
            is relative or in `root`.
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
    said = json.loads(_said(box, folder_program() + "folder.prepare()\n"))
    return Places(said["root"], said["own"], said["paths"])


def write_folder(folder: Folder, box: Sandbox, places: Places, placed: Collection[str]) -> None:
    """Write a folder into a box that is prepared.

    Args:
        folder: What to write.
        box: A fresh one.
        places: Where things are there.
        placed: Paths in the folder that have been written already; nothing comes in their way.

    Raises:
        CannotCarry: It does not fit, or its own box does not give it.
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
            _said(box, f"{step}_folder.write()\n")
            step = ""
    except SandboxFileError as error:
        raise CannotCarry(f"the box for the grading has no room: {error}") from None
    if _said(box, "_folder.finish()\n").strip() != "whole":
        raise CannotCarry("its contents are not as long as they were said to be")


def _as_list(entry: Entry, kept: Entry | None) -> Sequence[Any]:
    if kept is None:
        return ["file", None, 0, entry.size, 0]
    if kept.kind == "file":
        return [kept.kind, kept.path, kept.mode, kept.size, kept.changed_ns]
    return [kept.kind, kept.path, kept.target if kept.kind == "link" else kept.mode]


def _listing(text: str, most_bytes: int) -> tuple[str, tuple[Entry, ...]]:
    """What a box says of its folder, if that can be.

    It is read line by line, as a few megabytes of JSON can become hundreds of values.
    """
    if text.count("\n") > MAX_ENTRIES:
        raise CannotCarry("it is larger than its box says")
    try:
        first, *rest = text.split("\n")
        said = _line(first)
        if isinstance(said, dict) and isinstance(said.get("refused"), str):
            raise CannotCarry(said["refused"])
        root, entries = said["root"], tuple(_entry(_line(line)) for line in rest)
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


def _entry(said: Any) -> Entry:
    """One entry, if that can be.

    Raises:
        ValueError: It cannot.
        TypeError: Likewise.
    """
    kind, path, *more = said
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


def _said(box: Sandbox, program: str, timeout_s: float | None = None) -> str:
    """What a program of `judging/` printed.

    Raises:
        CannotCarry: It did not end well.
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
    """Python that defines `folder.py` in a box, by that name alone.

    It imports nothing from the folder that it runs in, where files of the policy's may lie.
    """
    return (
        "import os, sys\n"
        "sys.path[:] = [_place for _place in sys.path if _place.startswith('/') and not "
        "(_place + '/').startswith(os.getcwd() + '/')]\n"
        + module_program("grading", module_sources(Path(__file__).parent, ["folder"]))
        + "del sys.modules['grading.folder'], sys.modules['grading']\n"
    )
