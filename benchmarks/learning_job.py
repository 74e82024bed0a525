"""A job of `learning.py`: a config with some settings changed, and the rows it trains on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnast.agents.loading.load import load_tokenizer, model_context_length
from gymnast.trainers import Trainer, load_config
from gymnast.trainers.build import trainer_settings
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task import RunTask, prepare_task

CONFIG = Path(__file__).parent.parent / "examples" / "arithmetic.yaml"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """The job to train.

    Attributes:
        config: The job's config.
        task: Its environment and rows.
    """

    config: RunConfig
    task: RunTask

    @property
    def rows(self) -> list[Row]:
        """The training rows, in the order of the run."""
        settings = self.config.trainer
        return [
            row
            for step in range(settings.steps)
            for row in self.task.training_rows.batch(step, settings.rows_per_step)
        ]

    @property
    def max_turns(self) -> int:
        """How many turns an episode may have."""
        return self.task.make_env().max_turns


def make_job(overrides: Sequence[str], config: Path = CONFIG) -> Job:
    """A config, by default the main job's, with some settings changed."""
    changed = load_config(config, overrides)
    name = changed.model.name
    return Job(changed, prepare_task(changed, load_tokenizer(name), model_context_length(name)))


def evaluation_of(job: Job, model: Any, tokenizer: Any) -> float:
    """The mean reward of a model on the job's evaluation rows, by Gymnast's evaluation."""
    settings = trainer_settings(job.config, job.task) | {"output_dir": None}
    trainer = Trainer(model, tokenizer, job.task.make_env, job.task.training_rows, **settings)
    return trainer.evaluate()["eval/reward/mean"]
