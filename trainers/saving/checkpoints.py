"""Checkpoints: how one is written, how a torn one is told from a whole one, which is the newest.

    checkpoints/step_00004/state.pt   what `run_state.py` puts in, by torch.save
    checkpoints/step_00004/complete   size and SHA-256 of state.pt, as JSON

A checkpoint gets its name when all of it is on the disk, and only then are older ones removed. So
there is no moment at which a kill would cost the newest good one.

Left out: what a checkpoint holds (`trainers/saving/run_state.py`).
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gymnast.errors import CheckpointError
from gymnast.trainers.saving.durable import remove, sweep, written_aside
from gymnast.trainers.saving.full_disk import naming_full_disk
from gymnast.visible import visible_logger

STATE = "state.pt"
COMPLETE = "complete"

logger = visible_logger(__name__)


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: Made when the first one is saved.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, step: int) -> Path:
        """Where that of a step is, or would be."""
        return self.folder / f"step_{step:05d}"

    def save(self, step: int, state: Mapping[str, Any], *, keep: int) -> None:
        """Write one, then remove all but the newest `keep` up to this step.

        Checkpoints of later steps are removed too: the run went back to before them.

        Args:
            step: After how many steps.
            state: Numbers, text, tensors, and dicts and lists of them.
            keep: How many stay, this one included; at least 1.

        Raises:
            DiskFull: There is no room for it; the others are untouched.
        """
        path = self.path(step)
        with naming_full_disk(path, _size(state)), written_aside(path) as aside:
            with (aside / STATE).open("wb") as file:  # given a path, torch hides what went wrong
                torch.save(dict(state), file)
            marker = {STATE: _fingerprint(aside / STATE)}
            (aside / COMPLETE).write_text(json.dumps(marker))
        self.prune(step, keep=keep)
        for later in [n for n in self._by_step() if n > step]:
            remove(self.path(later))

    def prune(self, step: int, *, keep: int) -> None:
        """Of those up to a step, remove all but it and the newest whole ones, `keep` in all."""
        earlier = {n: path for n, path in self._by_step().items() if n < step}
        whole = [n for n in sorted(earlier) if not _torn(earlier[n], by_content=False)]
        for number in earlier.keys() - set(whole[max(0, len(whole) - keep + 1) :]):
            remove(earlier[number])

    def any(self) -> bool:
        """Whether there are any, torn ones included."""
        return self.count() > 0

    def count(self) -> int:
        """How many there are, torn ones included."""
        return len(self._by_step())

    def newest(self, *, by_content: bool = True) -> int | None:
        """The step of the newest whole one; None where there is none. Torn ones are logged.

        Args:
            by_content: Read all of it; else only its size is looked at.
        """
        for step, path in sorted(self._by_step().items(), reverse=True):
            reason = _torn(path, by_content=by_content)
            if not reason:
                return step
            logger.warning("%s is torn (%s): the one before it is used", path, reason)
        return None

    def load(self, step: int) -> dict[str, Any]:
        """The state of a whole one, its tensors on the CPU.

        Raises:
            CheckpointError: It cannot be read.
        """
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
        """All that have a name, torn ones included."""
        found = ((p.name.removeprefix("step_"), p) for p in self.folder.glob("step_*"))
        return {int(number): path for number, path in found if number.isdecimal()}


def _size(state: Any) -> int:
    """Of all tensors in a state, in bytes."""
    if isinstance(state, Mapping):
        return sum(map(_size, state.values()))
    if isinstance(state, list | tuple):
        return sum(map(_size, state))
    return state.nbytes if isinstance(state, torch.Tensor) else 0


def _fingerprint(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _torn(folder: Path, *, by_content: bool = True) -> str:
    """What is wrong with a checkpoint; "" where it is as it was written.

    Args:
        folder: Of the checkpoint.
        by_content: Read the whole file; else only its size is looked at.
    """
    try:
        wanted = json.loads((folder / COMPLETE).read_bytes())[STATE]
        size, digest = wanted["bytes"], wanted["sha256"]
    except FileNotFoundError:
        return f"there is no {COMPLETE}"
    except (OSError, ValueError, LookupError, TypeError):
        return f"{COMPLETE} cannot be read"
    try:
        found = (folder / STATE).stat().st_size
        if found != size:
            return f"{STATE} has {found} bytes of {size}"
        if by_content and _fingerprint(folder / STATE)["sha256"] != digest:
            return f"{STATE} is not what was written"
    except OSError as error:
        return f"{STATE}: {error.strerror}"
    return ""
