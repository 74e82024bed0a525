"""What a run leaves on disk, and how it is written so that a kill leaves nothing torn.

    metrics.jsonl            one line a step, one an evaluation
    rollouts/step_00001.jsonl  the trajectories of a step; rollouts/eval_00000.jsonl likewise
    checkpoints/step_00004/  what `train(resume=True)` goes on from
    model/                   the trained model, loadable by plain Transformers

Folders are written beside their place and renamed; a checkpoint without its last file is torn
and passed over.
"""

import copy
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gymnast.agents.quiet import no_progress_bars
from gymnast.errors import CheckpointError
from gymnast.types import Trajectory

STATE = "state.pt"
COMPLETE = "complete"


class RunFolder:
    """A run's output folder.

    Args:
        path: Made when it does not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    def add_metrics(self, metrics: Mapping[str, float | None]) -> None:
        """Append one line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(dict(metrics)) + "\n")

    def drop_metrics_after(self, step: int) -> None:
        """Remove what a resumed run is going to write again."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            lines = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
            kept = path.with_suffix(".kept")
            kept.write_text("".join(line + "\n" for line in lines))
            kept.replace(path)

    def save_rollouts(self, name: str, groups: Sequence[Sequence[Trajectory]]) -> None:
        """Write trajectories to rollouts/NAME.jsonl, one a line."""
        folder = self.path / "rollouts"
        folder.mkdir(exist_ok=True)
        with (folder / f"{name}.jsonl").open("w") as file:
            for number, group in enumerate(groups):
                for trajectory in group:
                    record = asdict(trajectory) | {"group": number, "reward": trajectory.reward}
                    file.write(json.dumps(record, default=str, ensure_ascii=False) + "\n")

    def save_checkpoint(self, step: int, state: Mapping[str, Any], *, keep: int) -> None:
        """Write checkpoints/step_N and remove all but the newest `keep` that are complete."""
        folder = self.path / "checkpoints"
        with written_aside(folder / f"step_{step:05d}") as temporary:
            torch.save(dict(state) | {"step": step}, temporary / STATE)
            (temporary / COMPLETE).touch()
        kept = self._checkpoints()[-keep:]
        for path in folder.glob("step_*"):
            if path not in kept:
                shutil.rmtree(path)

    def load_checkpoint(self) -> dict[str, Any]:
        """The newest complete checkpoint.

        Raises:
            CheckpointError: There is none.
        """
        found = self._checkpoints()
        if not found:
            raise CheckpointError(
                f"{self.path / 'checkpoints'} holds no complete checkpoint to resume from. Start "
                "without --resume, and set trainer.checkpoint_every_steps to have some."
            )
        state: dict[str, Any] = torch.load(found[-1] / STATE, map_location="cpu", weights_only=True)
        return state

    def _checkpoints(self) -> list[Path]:
        """The complete ones, oldest first."""
        found = (self.path / "checkpoints").glob("step_*")
        complete = [path for path in found if (path / COMPLETE).exists()]
        return sorted(complete, key=lambda path: int(path.name.removeprefix("step_")))


def save_model(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Save a model so that plain Transformers loads it; adapters are merged into a copy."""
    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model).merge_and_unload()
    with written_aside(Path(folder)) as temporary, no_progress_bars():
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


@contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `target` when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _step_of(line: str) -> float:
    """The step of a line of metrics; that of a line torn by a kill comes after all others."""
    try:
        step: int = json.loads(line)["step"]
    except json.JSONDecodeError:
        return math.inf
    return step
