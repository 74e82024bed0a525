"""What a run leaves on disk.

    config.yaml              what was run; of a `Trainer` in Python, with rows.jsonl beside it
    metrics.jsonl            one line a step, one an evaluation
    rollouts/step_00001.jsonl  the trajectories of a step; rollouts/eval_00000.jsonl likewise
    checkpoints/step_00004/  what `train(resume=True)` goes on from
    (`trainers/saving/checkpoints.py`)
    adapters/                LoRA adapters alone, loadable by peft
    model/                   the trained model, adapters merged, loadable by plain Transformers
    run.lock                 held by the process that writes here

A kill may tear the last line of metrics.jsonl and the newest file of rollouts/, both of steps that
a resumed run makes again, and drops first. All else is there whole or not at all.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gymnast.agents.models.merging import save_merged
from gymnast.agents.models.quiet import no_progress_bars
from gymnast.errors import ConfigError
from gymnast.trainers.saving.checkpoints import Checkpoints
from gymnast.trainers.saving.durable import sweep, write_text, written_aside
from gymnast.trainers.saving.full_disk import naming_full_disk
from gymnast.types import Trajectory

CONFIG_FILE = "config.yaml"
METRICS = "metrics.jsonl"
ADAPTERS = "adapters"
MODEL = "model"
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
        """Let no other run write here meanwhile; a process that is killed lets go.

        Raises:
            ConfigError: Another run does.
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
        """Make metrics.jsonl, by which a run that is killed soon is known."""
        (self.path / METRICS).touch()

    def add_metrics(self, metrics: Mapping[str, float | None]) -> None:
        """Append one line to metrics.jsonl; it is on the disk before any checkpoint of its step."""
        path, line = self.path / METRICS, json.dumps(dict(metrics)) + "\n"
        with naming_full_disk(path, len(line)), path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def drop_after(self, step: int) -> None:
        """Remove the metrics and rollouts that a resumed run is going to write again.

        Args:
            step: The last one that is kept; -1 keeps none, step 0 being the first evaluation.
        """
        path = self.path / METRICS
        if path.exists():
            text = path.read_text(encoding="utf-8", errors="replace")
            kept = [line for line in text.splitlines() if _step_of(line) <= step]
            write_text(path, "".join(line + "\n" for line in kept))
        for rollouts in (self.path / "rollouts").glob("*.jsonl"):
            number = re.match(r"(?:step|eval)_(\d+)(?:_|$)", rollouts.stem)
            if number is not None and int(number[1]) > step:
                rollouts.unlink()

    def sweep(self) -> None:
        """Clear away what a killed process was writing or removing."""
        self.checkpoints.sweep()
        for name in (CONFIG_FILE, METRICS, ADAPTERS, MODEL):
            sweep(self.path, name)

    def save_rollouts(self, name: str, groups: Sequence[Sequence[Trajectory]]) -> None:
        """Write trajectories to rollouts/NAME.jsonl, one a line; null is no finite number."""
        folder = self.path / "rollouts"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.jsonl"
        lines = [
            _as_json(asdict(trajectory) | {"group": number, "reward": trajectory.reward}) + "\n"
            for number, group in enumerate(groups)
            for trajectory in group
        ]
        # Half a surrogate pair, which a row's JSON may hold, is written as JSON escapes it.
        with (
            naming_full_disk(path, sum(map(len, lines))),
            path.open("w", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.writelines(lines)


def _as_json(record: Mapping[str, Any]) -> str:
    """JSON, which has neither NaN nor infinity; a model that diverges gives such logprobs."""
    try:
        return json.dumps(record, default=str, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(record, default=str, ensure_ascii=False)
        return json.dumps(json.loads(text, parse_constant=lambda _: None), ensure_ascii=False)


def holds_results(path: Path) -> bool:
    """Whether a folder holds what a run has come to: metrics, or a checkpoint."""
    metrics = path / METRICS
    written = metrics.exists() and metrics.stat().st_size > 0
    return written or Checkpoints(path / "checkpoints").any()


def is_over(path: Path) -> bool:
    """Whether a folder holds a run that has ended and cannot be continued."""
    return (path / MODEL).exists() and not Checkpoints(path / "checkpoints").any()


OVER = "holds a run that has ended, and its checkpoints are gone; name another folder"


def save_model(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Save a model so that plain Transformers loads it, with adapters merged into its weights.

    Raises:
        DiskFull: There is no room for it; what was there before is untouched.
    """
    need = sum(weight.nbytes for weight in model.parameters())
    with (
        naming_full_disk(Path(folder), need),
        written_aside(Path(folder)) as temporary,
        no_progress_bars(),
    ):
        save_merged(model, temporary)
        tokenizer.save_pretrained(temporary)


def save_adapters(model: Any, folder: Path) -> None:
    """Save the adapters of a model alone, as peft loads them; one without any saves nothing.

    Raises:
        DiskFull: There is no room for them; what was there before is untouched.
    """
    if not hasattr(model, "peft_config"):
        return
    need = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    with naming_full_disk(folder, need), written_aside(folder) as temporary:
        model.save_pretrained(temporary)


def _step_of(line: str) -> float:
    """The step of a line of metrics; that of a line torn by a kill comes after all others."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, LookupError, TypeError):
        return math.inf
