"""All settings of a trainer, as its keywords give them; each class is declared in its room."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from gymnast.errors import ConfigError
from gymnast.trainers.ahead.settings import StalenessSettings
from gymnast.trainers.algorithms.algorithm import Algorithm
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.base.settings import GroupSettings, RunSettings, StepSettings, unusual
from gymnast.trainers.cluster.settings import WorkerSettings
from gymnast.trainers.data.input_paths import absolute
from gymnast.trainers.data.rows import DatasetRows, RowSource
from gymnast.trainers.data.settings import RowSettings
from gymnast.trainers.evaluation.settings import EvaluationSettings
from gymnast.trainers.learner.optimizers.weight_kinds import has_adapters
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.trainers.rollouts.settings import DynamicSampling, RolloutLimits, RolloutSettings
from gymnast.trainers.saving.settings import RolloutKeeping, SavingSettings
from gymnast.types import Sampling, Trajectory


class TrainerSettings(NamedTuple):
    """The settings of `gymnast.trainers.Trainer`."""

    steps: StepSettings
    group: GroupSettings
    rows: RowSettings
    learning: LearnerSettings
    rollouts: RolloutLimits
    staleness: StalenessSettings
    evaluation: EvaluationSettings
    saving: SavingSettings
    kept: RolloutKeeping
    workers: WorkerSettings
    run: RunSettings

    @classmethod
    def collect(cls, keywords: Mapping[str, Any]) -> Self:
        """The settings among keywords of `Trainer`; others are ignored.

        Raises:
            ConfigError: Values do not hold; one line each.
        """
        settings, errors = [], []
        for kind in cls.__annotations__.values():
            try:
                settings.append(kind.collect(keywords))
            except ConfigError as error:
                errors.append(str(error))
        if errors:
            raise ConfigError("\n".join(errors))
        return cls(*settings)

    @property
    def folder(self) -> str | None:
        """The run's, as it is now: the user's code may change the working folder."""
        path = self.run.output_dir
        return None if path is None else str(absolute(path, Path.cwd()))

    def check_algorithm(self, algorithm: Algorithm) -> None:
        """Check that groups are as an algorithm needs them.

        Raises:
            ConfigError: They are not.
        """
        algorithm.check_group_size(self.group.group_size)
        if self.rows.dynamic_sampling is not None:
            algorithm.check_compares_members("dynamic_sampling")

    def of_steps(
        self,
        sampling: Sampling,
        rewards: Sequence[Reward],
        *,
        concurrency: int,
        hints: bool,
        has_spread: Callable[[Sequence[Trajectory]], bool],
    ) -> RolloutSettings:
        """How the episodes of steps are played.

        Args:
            sampling: Of training.
            rewards: Besides the environment's own.
            concurrency: Episodes that run at once.
            hints: Whether the environment is asked for them.
            has_spread: Which groups dynamic sampling keeps.
        """
        wanted = None
        if self.rows.dynamic_sampling is not None:
            wanted = DynamicSampling(self.steps.rows_per_step, has_spread)
        return RolloutSettings(
            group_size=self.group.group_size,
            sampling=sampling,
            concurrency=concurrency,
            deadline_s=self.rollouts.rollout_deadline_s,
            deterministic=self.run.deterministic,
            rewards=rewards,
            dynamic_sampling=wanted,
            hints=hints,
        )

    def of_step(self, played: RolloutSettings, step: int, rows: int) -> RolloutSettings:
        """How the episodes of one step are played.

        Args:
            played: How those of all steps are.
            step: Its number; the first is 1.
            rows: How many it has.
        """
        most = self.rollouts.most_failed(step, rows * self.group.group_size)
        return replace(played, seed=derive(self.run.seed, "step", step), max_failed_episodes=most)

    def of_evaluations(
        self, sampling: Sampling, rewards: Sequence[Reward], concurrency: int
    ) -> RolloutSettings:
        """How the episodes of evaluations are played; all of them are waited for."""
        return RolloutSettings(
            group_size=self.evaluation.group_size,
            sampling=sampling,
            concurrency=concurrency,
            seed=derive(self.run.seed, "evaluation"),
            deterministic=self.run.deterministic,
            rewards=rewards,
        )

    def unusual(self, rows: RowSource, model: Any) -> list[str]:
        """Sentences about settings that are valid but hardly intended.

        Args:
            rows: Of training.
            model: That is trained.
        """
        return unusual(
            self.learning.learning_rate,
            self.steps.rows_per_step,
            len(rows) if isinstance(rows, DatasetRows) else None,
            self.learning.rate_of_adapters if has_adapters(model) else None,
        )
