"""Disk space: how much a run's files take, and whether it is free when the run begins.

A checkpoint holds a float32 weight and two moments of each trained weight, 12 bytes in all. It is
written beside the older ones before one of them is removed, and so is the model.

Left out: a disk that fills up later (`trainers/saving/full_disk.py`).
"""

import shutil
from dataclasses import dataclass
from typing import Any

from gymnast.errors import ConfigError
from gymnast.trainers.learner.optimizer import Optimizer
from gymnast.trainers.saving.full_disk import shown
from gymnast.trainers.saving.run_folder import MODEL, RunFolder
from gymnast.visible import visible_logger

BYTES_A_WEIGHT = 12
OTHER_BYTES = 2**16  # of the generators' states, a tokenizer's files, names

logger = visible_logger(__name__)


@dataclass(frozen=True)
class Need:
    """What the files of a run take, in bytes.

    Attributes:
        checkpoint: One of them.
        model: The trained model.
    """

    checkpoint: int
    model: int


def need_of(model: Any, optimizer: Optimizer) -> Need:
    """What a run of this model takes; estimated, a little too high.

    Args:
        model: As it is saved.
        optimizer: Over its trained weights.
    """
    trained = sum(getattr(p, "ds_numel", p.numel()) for p in optimizer.parameters)  # ZeRO-3's
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return Need(BYTES_A_WEIGHT * trained + OTHER_BYTES, weights + OTHER_BYTES)


def check_room(folder: RunFolder, need: Need, *, keep: int) -> None:
    """Check that a run's folder has room for what the run is going to save.

    Without room for one checkpoint and the model, the run is refused: it could not be saved. With
    room for fewer checkpoints than it should keep, it is warned.

    Args:
        folder: Of the run, which may hold something already.
        need: Of the run.
        keep: How many checkpoints stay.

    Raises:
        ConfigError: There is no room.
    """
    usage = shutil.disk_usage(folder.path)
    if not usage.total:  # a file system that does not say
        return
    there = folder.checkpoints.count()
    least, whole = need.checkpoint + need.model, (keep + 1) * need.checkpoint + need.model
    taken = there * need.checkpoint + (need.model if (folder.path / MODEL).exists() else 0)
    if usage.free < (need.checkpoint if there else least):
        raise ConfigError(
            f"output_dir: {folder.path} has {shown(usage.free)} free; a checkpoint of this run "
            f"takes {shown(need.checkpoint)} and its model {shown(need.model)}. Free some space, "
            "or name another folder"
        )
    if usage.free + taken < whole:
        less = ", or lower trainer.keep_checkpoints" if keep > 1 else ""
        logger.warning(
            "output_dir: %s has %s free; checkpoints (%d that stay, one being written, %s each) "
            "and the model take %s: free some space%s",
            *(folder.path, shown(usage.free), keep, shown(need.checkpoint), shown(whole), less),
        )
