"""The files of a run.

    config.yaml                what was run; for a `Trainer` in Python, with rows.jsonl beside it
    environment.json           with what, on what and from what it was made (`trainers/provenance`)
    metrics.jsonl              one line for each step, one for each evaluation
    advice.jsonl               why the run did not learn, and what to do, where it did not
    rollouts/                  the trajectories of steps and evaluations (`kept_rollouts.py`)
    checkpoints/step_00004/    where `train(resume=True)` continues (`checkpoints.py`)
    adapters/                  LoRA adapters alone, loadable by peft
    model/                     the trained model, adapters merged, loadable by plain Transformers
    best/                      the model and adapters of the best evaluation (`best.py`)
    evaluations/001/           an evaluation on its own (`trainers/evaluating/places.py`)
    run.lock                   held by the process that writes here

A kill may tear the last lines of metrics.jsonl and advice.jsonl. They are of steps that a resumed
run drops first, and makes again. All else is there whole or not at all.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

from filelock import FileLock, Timeout

from gymnast.agents.loading.model_source import no_progress_bars
from gymnast.agents.models.merging import save_merged
from gymnast.agents.models.quantized import saved_bytes
from gymnast.errors import ConfigError
from gymnast.trainers.base.formats import ENVIRONMENT_FILE
from gymnast.trainers.saving.checkpoints import Checkpoints
from gymnast.trainers.saving.disk_space import naming_full_disk
from gymnast.trainers.saving.durable import remove, sweep, write_text, written_aside
from gymnast.trainers.saving.model_check import check_saved_model
from gymnast.trainers.saving.saved_runs import ADVICE, FOLDER, rollout_files

CONFIG_FILE = "config.yaml"
METRICS = "metrics.jsonl"
ADAPTERS = "adapters"
MODEL = "model"
BEST = "best"
EVALUATIONS = "evaluations"
LOCK = "run.lock"


class RunFolder:
    """A run's output folder.

    Args:
        path: Made when it does not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other runs from writing here within the block; a killed process lets go.

        Raises:
            ConfigError: Another run is writing here.
        """
        lock = FileLock(self.path / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise ConfigError(
                f"output_dir: another run is writing to {self.path}; wait for it, or name another "
                "folder"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def begin(self) -> None:
        """Make an empty metrics.jsonl: a run that is killed soon is recognised by it."""
        (self.path / METRICS).touch()

    def add_metrics(self, metrics: Mapping[str, float | None]) -> None:
        """Append one line to metrics.jsonl; it is on the disk before any checkpoint of its step."""
        self._append(METRICS, metrics)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, but for one that a kill has torn."""
        path = self.path / METRICS
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        found = list[dict[str, Any]]()
        for line in text.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def add_advice(self, advice: Mapping[str, Any]) -> None:
        """Append one line to advice.jsonl, likewise; it has the step that it holds after."""
        self._append(ADVICE, advice)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        path, line = self.path / name, json.dumps(dict(record)) + "\n"
        with naming_full_disk(path, len(line)), path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def drop_after(self, step: int, warmup_steps: int = 0) -> None:
        """Remove the metrics, advice and rollouts that a resumed run is going to write again.

        A run that begins again loses its best weights too.

        Args:
            step: The last one that is kept; -1 keeps none, step 0 being the first evaluation.
            warmup_steps: How many steps of the warm-up, whose lines have step 0, are kept.
        """
        for path in (self.path / METRICS, self.path / ADVICE):
            if path.exists():
                text = path.read_text(encoding="utf-8", errors="replace")
                place = (step, warmup_steps)
                kept = [line for line in text.splitlines() if _place_of(line) <= place]
                write_text(path, "".join(line + "\n" for line in kept))
        for rollouts in rollout_files(self.path):
            if rollouts.step > step:
                rollouts.path.unlink()
        if step < 0 and (self.path / BEST).exists():
            remove(self.path / BEST)

    @property
    def has_model(self) -> bool:
        """Whether the trained model is saved."""
        return (self.path / MODEL).exists()

    def sweep(self) -> None:
        """Clear away what a killed process was writing or removing."""
        self.checkpoints.sweep()
        for name in (CONFIG_FILE, ENVIRONMENT_FILE, METRICS, ADVICE, ADAPTERS, MODEL, BEST):
            sweep(self.path, name)
        sweep(self.path / FOLDER, "*.parquet")


def holds_results(path: Path) -> bool:
    """Whether a folder holds results of a run: metrics, or a checkpoint."""
    metrics = path / METRICS
    written = metrics.exists() and metrics.stat().st_size > 0
    return written or Checkpoints(path / "checkpoints").any()


def is_over(path: Path) -> bool:
    """Whether a folder holds a run that has ended and cannot be continued."""
    return (path / MODEL).exists() and not Checkpoints(path / "checkpoints").any()


OVER = "holds a run that has ended, and its checkpoints are gone; name another folder"


def save_model(model: Any, tokenizer: Any, folder: str | Path, *, check: bool = True) -> None:
    """Save a model so that plain Transformers loads it, with adapters merged into its weights.

    Args:
        model: Of Transformers, or of peft around one.
        tokenizer: The model's.
        folder: Where it is saved.
        check: Compare its logits with those of the model in memory, which takes some seconds.

    Raises:
        DiskFull: There is no room for it; what was there before is untouched.
        ModelError: The saved model gives other logits; likewise.
    """
    need = saved_bytes(model)
    with (
        naming_full_disk(Path(folder), need),
        written_aside(Path(folder)) as temporary,
        no_progress_bars(),
    ):
        save_merged(model, temporary)
        if check:
            check_saved_model(model, temporary, folder)
        tokenizer.save_pretrained(temporary)


def save_adapters(model: Any, folder: Path) -> None:
    """Save a model's adapters alone, as peft loads them; without adapters, save nothing.

    Raises:
        DiskFull: There is no room for them; what was there before is untouched.
    """
    if not hasattr(model, "peft_config"):
        return
    need = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    with naming_full_disk(folder, need), written_aside(folder) as temporary, catch_warnings():
        filterwarnings("ignore", "Setting `save_embedding_layers` to `True`")  # as it should be
        model.save_pretrained(temporary)


def _place_of(line: str) -> tuple[float, float]:
    """The step of a line of metrics and, at step 0, that of the warm-up; infinity if it is torn."""
    try:
        metrics = json.loads(line)
        return float(metrics["step"]), float(metrics.get("warmup/step", 0))
    except (ValueError, LookupError, TypeError, AttributeError):
        return math.inf, math.inf
