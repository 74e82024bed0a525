"""Disk space: whether a run's files have room when it begins, and the error of a full disk.

A checkpoint holds a float32 weight and two moments of each trained weight, 12 bytes in all, and the
weights of a reference that was refreshed. It is written beside the older ones before one of them is
removed, and so is the model. The best model is a copy of its own, with its adapters.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnast.errors import ConfigError, DiskFull
from gymnast.visible import visible_logger

if TYPE_CHECKING:
    from gymnast.trainers.learner.optimizers.optimizer import Optimizer

BYTES_PER_WEIGHT = 12
OTHER_BYTES = 2**16  # generator states, a tokenizer's files, names

# No space, a quota that is used up, a file larger than this process may write.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

logger = visible_logger(__name__)


@dataclass(frozen=True)
class Need:
    """How much the files of a run take, in bytes.

    Attributes:
        checkpoint: One checkpoint.
        model: The trained model.
        best: What is kept of the best evaluation; 0 where nothing is.
    """

    checkpoint: int
    model: int
    best: int = 0


def estimate_need(
    model: Any, optimizer: "Optimizer", reference: int = 0, *, keeps_best: bool = False
) -> Need:
    """How much a run of this model takes, estimated a little too high.

    Args:
        model: As it is saved.
        optimizer: Of its trained weights.
        reference: What a checkpoint holds of the reference, in bytes.
        keeps_best: Whether the weights of the best evaluation are kept.
    """
    trained = sum(getattr(p, "ds_numel", p.numel()) for p in optimizer.parameters)  # ZeRO-3's
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    best = 2 * (weights + OTHER_BYTES) if keeps_best else 0  # a better one is written beside it
    return Need(BYTES_PER_WEIGHT * trained + reference + OTHER_BYTES, weights + OTHER_BYTES, best)


def check_room(folder: Path, need: Need, *, keep: int, checkpoints: int, has_model: bool) -> None:
    """Check that a run's folder has room for what the run is going to save.

    A run without room for one checkpoint and the model is refused, because it could not be saved.
    One with room for less than it should keep gets a warning.

    Args:
        folder: Of the run, which may hold something already.
        need: Of the run.
        keep: How many checkpoints stay.
        checkpoints: How many there are already.
        has_model: Whether there is a saved model already.

    Raises:
        ConfigError: There is no room.
    """
    usage = shutil.disk_usage(folder)
    if not usage.total:  # a file system that does not tell
        return
    least = need.checkpoint + need.model
    whole = (keep + 1) * need.checkpoint + need.model + need.best
    taken = checkpoints * need.checkpoint + (need.model if has_model else 0)
    if usage.free < (need.checkpoint if checkpoints else least):
        raise ConfigError(
            f"output_dir: {folder} has {shown_size(usage.free)} free; a checkpoint of this run "
            f"takes {shown_size(need.checkpoint)} and its model {shown_size(need.model)}. Free "
            "some space, or name another folder"
        )
    if usage.free + taken < whole:
        less = ", or lower trainer.keep_checkpoints" if keep > 1 else ""
        less += ", or set evaluation.keep_best to false" if need.best else ""
        best = f", the best weights ({shown_size(need.best)} while they are replaced)"
        logger.warning(
            "output_dir: %s has %s free; checkpoints (%d that stay, one being written, %s each)%s "
            "and the model take %s: free some space%s",
            *(folder, shown_size(usage.free), keep),
            *(shown_size(need.checkpoint), best if need.best else "", shown_size(whole), less),
        )


@contextmanager
def naming_full_disk(path: Path, need: int) -> Iterator[None]:
    """Turn a lack of space in the block into one line: the file, what it needs, what is free.

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
        free = shown_size(shutil.disk_usage(folder).free)
        raise DiskFull(
            f"{path} cannot be written: {os.strerror(number)}; it needs {shown_size(need)}, and "
            f"the disk has {free} free. What was written before is intact. Free some space"
        ) from error


def shown_size(size: float) -> str:
    """A number of bytes as people read it: "1.5 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _full(error: BaseException | None) -> int | None:
    """The system's error number, if a lack of space caused an error; else None.

    The errors of torch tell only what followed from it; those of safetensors have the number in
    their text.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return error.errno
        match = re.search(r"\(os error (\d+)\)", str(error))
        if match and int(match[1]) in FULL:
            return int(match[1])
        error = error.__cause__ or error.__context__
    return None
