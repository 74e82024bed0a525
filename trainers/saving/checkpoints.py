"""Checkpoints: how one is written, how a torn one is told from a whole one, which is the newest.

    checkpoints/step_00004/state.pt   the state of `run_state.py`, by torch.save
    checkpoints/step_00004/complete   size and SHA-256 of state.pt, and the format, as JSON

A checkpoint gets its name when all of it is on the disk, and only then are older ones removed. So a
kill never costs the newest whole one.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gymnast.errors import CheckpointError
from gymnast.trainers.base.formats import CHECKPOINT, KEY, unreadable_format
from gymnast.trainers.saving.disk_space import naming_full_disk
from gymnast.trainers.saving.durable import remove, sweep, written_aside
from gymnast.visible import visible_logger

STATE = "state.pt"
COMPLETE = "complete"

logger = visible_logger(__name__)


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: Where they are; made when the first one is saved.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self.folder / f"step_{step:05d}"

    def save(self, step: int, state: Mapping[str, Any], *, keep: int) -> None:
        """Write a checkpoint, then remove all but the newest `keep` up to this step.

        Checkpoints of later steps are removed too: the run was resumed from before them.

        Args:
            step: How many steps were taken.
            state: Numbers, text, tensors, and dicts and lists of them.
            keep: How many checkpoints stay, this one included; at least 1.

        Raises:
            DiskFull: There is no room for it; the others are untouched.
        """
        path = self.path(step)
        with naming_full_disk(path, _size(state)), written_aside(path) as aside:
            with (aside / STATE).open(
                "wb"
            ) as file:  # given a path, torch hides the cause of errors
                torch.save(dict(state), file)
            marker = {KEY: CHECKPOINT, STATE: _fingerprint(aside / STATE)}
            (aside / COMPLETE).write_text(json.dumps(marker))
        self.prune(step, keep=keep)
        for later in [other for other in self._by_step() if other > step]:
            remove(self.path(later))

    def prune(self, step: int, *, keep: int) -> None:
        """Remove those before a step, but the newest whole ones: `keep` stay, its own included."""
        earlier = {other: path for other, path in self._by_step().items() if other < step}
        whole = [n for n in sorted(earlier) if not _damage(earlier[n], by_content=False)]
        for other in earlier.keys() - set(whole[max(0, len(whole) - keep + 1) :]):
            remove(earlier[other])

    def any(self) -> bool:
        """Whether there are any, torn ones included."""
        return self.count() > 0

    def count(self) -> int:
        """How many there are, torn ones included."""
        return len(self._by_step())

    def newest(self, *, by_content: bool = True) -> int | None:
        """The step of the newest whole checkpoint, or None. Torn ones are logged.

        Args:
            by_content: Check all of its bytes; else only its size.
        """
        for step, path in sorted(self._by_step().items(), reverse=True):
            damage = _damage(path, by_content=by_content)
            if not damage:
                return step
            logger.warning("%s is torn (%s): the one before it is used", path, damage)
        return None

    def load(self, step: int) -> dict[str, Any]:
        """The state in a whole checkpoint, its tensors on the CPU.

        Raises:
            CheckpointError: It cannot be read, or a later version of Gymnast has written it.
        """
        marker = json.loads((self.path(step) / COMPLETE).read_bytes())
        if problem := unreadable_format(str(self.path(step)), marker.get(KEY), CHECKPOINT):
            raise CheckpointError(problem)
        path = self.path(step) / STATE
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise CheckpointError(
                f"{path} cannot be read: {error}. Every process must see the same output_dir, and "
                "a checkpoint is read by the version of torch that wrote it or a later one."
            ) from error
        return state

    def sweep(self) -> None:
        """Clear away what a killed process was writing or removing."""
        sweep(self.folder, "step_*")

    def _by_step(self) -> dict[int, Path]:
        """All checkpoints, torn ones included."""
        named = ((path.name.removeprefix("step_"), path) for path in self.folder.glob("step_*"))
        return {int(step): path for step, path in named if step.isdecimal()}


def _size(state: Any) -> int:
    """The size of all tensors in a state, in bytes."""
    if isinstance(state, Mapping):
        return sum(map(_size, state.values()))
    if isinstance(state, list | tuple):
        return sum(map(_size, state))
    return state.nbytes if isinstance(state, torch.Tensor) else 0


def _fingerprint(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _damage(folder: Path, *, by_content: bool = True) -> str:
    """What is wrong with a checkpoint; "" if it is as it was written.

    Args:
        folder: The checkpoint's.
        by_content: Check all of its bytes; else only its size.
    """
    try:
        marker = json.loads((folder / COMPLETE).read_bytes())
        size, digest = marker[STATE]["bytes"], marker[STATE]["sha256"]
        if marker.get(KEY, 1) < 1:
            return f"{COMPLETE} cannot be read"
    except FileNotFoundError:
        return f"there is no {COMPLETE}"
    except (OSError, ValueError, LookupError, TypeError):
        return f"{COMPLETE} cannot be read"
    try:
        actual = (folder / STATE).stat().st_size
        if actual != size:
            return f"{STATE} has {actual} bytes of {size}"
        if by_content and _fingerprint(folder / STATE)["sha256"] != digest:
            return f"{STATE} is not what was written"
    except OSError as error:
        return f"{STATE}: {error.strerror}"
    return ""
