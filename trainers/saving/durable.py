"""Files and folders that are there whole or not at all, even if the process is killed.

    .NAME.new    being written; becomes NAME when it is whole and on the disk
    .NAME.old    the former NAME, until the new one is in its place
    .NAME.gone   being removed

A process that is killed leaves some of these behind; `sweep` puts back what is the only copy, and
removes the rest. One process at a time writes a name.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gymnast.trainers.saving.disk_space import naming_full_disk


@contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """A new folder that replaces `target` if the block succeeds.

    It is on the disk before it is renamed. Until then the former folder stays, as `target` or as
    .NAME.old.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    new, old = _beside(target, "new"), _beside(target, "old")
    _recover(target)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
        for path in sorted(new.rglob("*")):
            _sync(path)
        _sync(new)
        if target.exists():
            os.rename(target, old)
        os.rename(new, target)
        _sync(target.parent)
    finally:
        _recover(target)
        shutil.rmtree(new, ignore_errors=True)


def write_text(target: Path, text: str) -> None:
    """Write a file; a reader sees the old text or the new one, never a part.

    Raises:
        DiskFull: There is no room for it.
    """
    with naming_full_disk(target, len(text)), file_written_aside(target) as file:
        file.write(text.encode())


@contextmanager
def file_written_aside(target: Path) -> Iterator[BinaryIO]:
    """A new file, open for writing, that replaces `target` if the block succeeds."""
    new = _beside(target, "new")
    try:
        with new.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, target)
        _sync(target.parent)
    finally:
        new.unlink(missing_ok=True)


def remove(target: Path) -> None:
    """Remove a folder; its name is free at once, however long removing the files takes."""
    gone = _beside(target, "gone")
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(target, gone)
    shutil.rmtree(gone)


def sweep(folder: Path, names: str) -> None:
    """Clear away what a killed process left of some files and folders.

    Args:
        folder: Where they are; it may be missing.
        names: A glob pattern of names, such as "step_*".
    """
    for path in sorted(folder.glob(f".{names}.old")):
        _recover(folder / path.name.removeprefix(".").removesuffix(".old"))
    for path in folder.glob(f".{names}.*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}.{suffix}")


def _recover(target: Path) -> None:
    """Put the old folder back if no new one took its place; else remove it."""
    old = _beside(target, "old")
    if old.exists() and not target.exists():
        os.rename(old, target)
    else:
        shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
