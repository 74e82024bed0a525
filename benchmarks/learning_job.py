"""The README's main job as both sides get it, and the curve that a run leaves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gymnast.agents.loading.load import load_tokenizer, model_context_length
from gymnast.trainers import Trainer, load_config
from gymnast.trainers.build import trainer_settings
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task import RunTask, prepare_task

CONFIG = Path(__file__).parent.parent / "examples" / "arithmetic.yaml"
WINDOW = 3  # steps that a level is averaged over

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One step of training.

    Attributes:
        reward: The mean over its episodes, before its update.
        wall_s: Seconds on the clock since training began, without evaluations.
        cpu_s: CPU seconds of all threads, likewise.
    """

    reward: float
    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Curve:
    """The learning curve of a run.

    Attributes:
        before: The mean reward of the evaluation rows before training.
        after: The same after training.
        steps: All steps, in order.
    """

    before: float
    after: float
    steps: tuple[Step, ...]

    def reached(self, level: float) -> Step | None:
        """The first step at which the mean reward of the last `WINDOW` steps is this high."""
        for end in range(WINDOW, len(self.steps) + 1):
            if sum(step.reward for step in self.steps[end - WINDOW : end]) >= WINDOW * level:
                return self.steps[end - 1]
        return None

    def save(self, path: Path) -> None:
        """Write the curve as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> "Curve":
        """Read what `save` wrote."""
        found = json.loads(path.read_text())
        return cls(found["before"], found["after"], tuple(Step(**s) for s in found["steps"]))


@dataclass(frozen=True)
class Job:
    """The job to train.

    Attributes:
        config: The main job's config.
        task: Its environment and rows.
        rows: The training rows, in the order of the run.
    """

    config: RunConfig
    task: RunTask
    rows: list[Row]

    @property
    def max_turns(self) -> int:
        """How many turns an episode may have."""
        return self.task.make_env().max_turns


def make_job(overrides: Sequence[str]) -> Job:
    """The main job with some settings changed."""
    config = load_config(CONFIG, overrides)
    name = config.model.name
    task = prepare_task(config, load_tokenizer(name), model_context_length(name))
    settings = config.trainer
    rows = [
        row
        for step in range(settings.steps)
        for row in task.training_rows.batch(step, settings.rows_per_step)
    ]
    return Job(config, task, rows)


def evaluation_of(job: Job, model: Any, tokenizer: Any) -> float:
    """The mean reward of a model on the job's evaluation rows, by Gymnast's evaluation."""
    settings = trainer_settings(job.config, job.task) | {"output_dir": None}
    trainer = Trainer(model, tokenizer, job.task.make_env, job.task.training_rows, **settings)
    return trainer.evaluate()["eval/reward/mean"]
