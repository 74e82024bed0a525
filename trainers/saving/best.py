"""The best evaluation of a run, and the weights that earned it.

    best/best.json     {"reward": 0.854, "step": 0, "warmup_steps": 12}
    best/model/        the model as it was then, adapters merged, as at the end of a run
    best/adapters/     its adapters alone

`best/` is written when an evaluation has a higher mean reward than all before it, and is there
whole or not at all. Of equal rewards the earlier one stays: it took less training, and nothing is
written again. The untrained model counts, so that a run that never got better says so, but it is
not saved: `model.name` names it.
"""

import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from gymnast.errors import DiskFull
from gymnast.trainers.base.observer import EvaluatedPolicy
from gymnast.trainers.distributed.processes import together
from gymnast.trainers.saving.disk_space import shown_size
from gymnast.trainers.saving.durable import written_aside
from gymnast.trainers.saving.run_folder import (
    ADAPTERS,
    BEST,
    MODEL,
    RunFolder,
    save_adapters,
    save_model,
)
from gymnast.visible import visible_logger

RECORD = "best.json"

logger = visible_logger(__name__)


class BestPolicy:
    """Keeps the weights of the evaluation with the highest mean reward; a part of a run's state.

    Args:
        folder: Of the run; None keeps no weights.
        accelerator: Of this process; the main one writes.
        model: As it is saved.
        tokenizer: The model's.
        keep: Whether weights are kept.

    Attributes:
        reserved: Bytes of the disk that stay free for a checkpoint and the final model.
        best: The best evaluation so far; None before the first.
        latest: The last evaluation.
    """

    def __init__(
        self,
        folder: RunFolder | None,
        accelerator: Accelerator,
        model: Any,
        tokenizer: Any,
        *,
        keep: bool,
    ) -> None:
        self._path = folder.path / BEST if folder is not None and keep else None
        self._accelerator, self._model, self._tokenizer = accelerator, model, tokenizer
        self.reserved = 0
        self._checked = False
        self.best: EvaluatedPolicy | None = None
        self.latest: EvaluatedPolicy | None = None

    @property
    def keeps(self) -> bool:
        """Whether the weights of the best evaluation are kept."""
        return self._path is not None

    @property
    def folder(self) -> Path | None:
        """The folder with the weights of the best evaluation; None where they are not kept."""
        kept = self._path is not None and self.best is not None and self.best.is_trained
        return self._path if kept else None

    @property
    def summary(self) -> dict[str, Any]:
        """The best and the latest evaluation, as a run's summary has them; {} without any."""
        if self.best is None or self.latest is None:
            return {}
        folder = None if self.folder is None else str(self.folder)
        return {"best": self.best, "latest": self.latest, "best_folder": folder}

    def see(self, evaluated: EvaluatedPolicy) -> None:
        """Compare an evaluation with the best one, and keep its weights if it is better.

        Without room on the disk, a warning says so and the weights before stay: the run is worth
        more than this copy. A collective call.

        Args:
            evaluated: The evaluation of the policy as it is now.
        """
        self.latest = evaluated
        better = self.best is None or evaluated.reward > self.best.reward
        if better and self._saved(evaluated):
            self.best = evaluated

    def _saved(self, evaluated: EvaluatedPolicy) -> bool:
        """Whether the weights are saved, where they are to be; the same in all processes."""
        if self._path is None or not evaluated.is_trained:
            return True
        path = self._path

        def write() -> bool:
            try:
                self._check_room(path)
                with written_aside(path) as aside:
                    save_adapters(self._model, aside / ADAPTERS)
                    # Later ones are written in the same way, and the last model is compared again.
                    check = not self._checked
                    save_model(self._model, self._tokenizer, aside / MODEL, check=check)
                    self._checked = True
                    (aside / RECORD).write_text(json.dumps(asdict(evaluated)))
            except DiskFull as error:
                logger.warning(
                    "evaluation.keep_best: the best weights so far, %s, are not kept: %s, or set "
                    "evaluation.keep_best to false",
                    evaluated.when,
                    error,
                )
                return False
            return True

        main = self._accelerator.is_main_process
        return together(self._accelerator, write if main else bool)[0]

    def _check_room(self, path: Path) -> None:
        """Check that the run can still be saved when these weights are written.

        Raises:
            DiskFull: It cannot.
        """
        usage = shutil.disk_usage(path.parent)
        need = sum(weight.nbytes for weight in self._model.parameters())
        if usage.total and usage.free < need + self.reserved:
            raise DiskFull(
                f"{path} takes {shown_size(need)}, a checkpoint and the final model take "
                f"{shown_size(self.reserved)}, and the disk has {shown_size(usage.free)} free. "
                "Free some space"
            )

    def state_dict(self) -> dict[str, Any]:
        """The best and the last evaluation."""
        shown = (("best", self.best), ("latest", self.latest))
        return {name: None if each is None else asdict(each) for name, each in shown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned, and from the weights in the folder.

        A killed run may have kept weights after its last checkpoint: they earned their reward, and
        those before them are gone. So the folder decides, where it holds more than the state knows.
        """
        found = {name: EvaluatedPolicy(**each) for name, each in state.items() if each is not None}
        self.best, self.latest = found.get("best"), found.get("latest")
        if self._path is None:
            return
        kept = read_best(self._path)
        if self.best is not None and self.best.is_trained and kept is None:
            self.best = None  # somebody removed the weights
        if kept is not None and (self.best is None or kept.reward > self.best.reward):
            self.best = kept


def read_best(folder: Path) -> EvaluatedPolicy | None:
    """The evaluation whose weights a folder holds; None where it holds none.

    Args:
        folder: The `best` of a run.
    """
    try:
        read = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        numbers = (float(read["reward"]), int(read["step"]), int(read["warmup_steps"]))
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
    return EvaluatedPolicy(*numbers) if math.isfinite(numbers[0]) else None


def run_of(folder: Path) -> Path:
    """The run that a folder belongs to: that of a run's `best` is its parent, of a run the run.

    Args:
        folder: Of a run, or its `best`.
    """
    return folder.parent if read_best(folder) is not None else folder
