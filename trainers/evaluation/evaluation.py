"""An evaluation: episodes of the evaluation rows, in the run's own environment and in further ones.

Training and `gymnast eval` both come here, through `Trainer.evaluate`; `RunLoop` decides when a run
evaluates. What is measured, and under which names, is in `trainers/evaluation/metrics.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import gymnasium

from gymnast.errors import ConfigError
from gymnast.trainers.evaluation.metrics import PREFIX, check_environment_name, measure_environment
from gymnast.trainers.evaluation.settings import EvaluationSettings
from gymnast.trainers.evaluation.tags import Row, check_tags, tag_expressions
from gymnast.trainers.rollouts.environments import MakeEnvironment, environment_factory
from gymnast.trainers.rollouts.many_episodes import Rollouts
from gymnast.trainers.rollouts.metrics import of_mixture
from gymnast.trainers.rollouts.settings import RolloutLimits, RolloutSettings
from gymnast.trainers.rollouts.shared import SharedRollouts

OF_MIXTURE = {"environment": "environment"}  # by which its evaluations are always divided


class EvaluationEnvironment(NamedTuple):
    """A further environment to evaluate in, and its rows; a plain pair will do.

    Attributes:
        environment: An id, "module:Class", a class, or a function that makes one.
        rows: Its rows.
    """

    environment: str | type[gymnasium.Env[Any, Any]] | MakeEnvironment
    rows: Sequence[Row]


class Evaluated(NamedTuple):
    """The results of an evaluation.

    Attributes:
        metrics: Named `eval/...`.
        rollouts: Those of the run's own environment.
        others: Those of each further environment.
    """

    metrics: dict[str, float]
    rollouts: Rollouts
    others: dict[str, Rollouts]


@dataclass(frozen=True)
class Evaluation:
    """How a run is evaluated.

    Attributes:
        rollouts: Plays rows in the run's own environment.
        settings: How they are played; the seed is the same at every evaluation, so that
            evaluations can be compared.
        limits: In how many episodes of an environment the user's code may raise.
        pass_reward: An episode passes when its reward reaches this.
        tags: What rows are divided by, as `tag_expressions` returns it.
        others: For each further environment, what plays its rows, and the rows.
    """

    rollouts: SharedRollouts
    settings: RolloutSettings
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    pass_reward: float = 1.0
    tags: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, tuple[SharedRollouts, Sequence[Row]]] = field(default_factory=dict)

    def check(self, rows: Sequence[Row] | None) -> None:
        """Check tags and further environments against the rows that will be evaluated.

        Args:
            rows: The evaluation rows of the run's own environment; None if they are not known yet.

        Raises:
            ConfigError: A tag finds nothing in any row, or a further environment has no rows.
        """
        for name, (_, other_rows) in self.others.items():
            check_environment_name(name, "eval_environments")
            if not len(other_rows):
                raise ConfigError(f"eval_environments: {name!r} has no rows; give it some")
        if rows is not None and len(rows):
            check_tags([rows, *(others for _, others in self.others.values())], self.tags)

    def episodes(self, rows: Sequence[Row] | None) -> int:
        """How many episodes an evaluation plays; without `rows` there is none."""
        lengths = [len(rows), *(len(others) for _, others in self.others.values())] if rows else []
        return self.settings.group_size * sum(lengths)

    def run(self, rows: Sequence[Row], purpose: str, *, alone: bool = False) -> Evaluated:
        """Evaluate; a collective call, which every process makes with the same rows.

        Args:
            rows: The evaluation rows of the run's own environment.
            purpose: What the episodes are for, such as "evaluation after step 3"; errors say it.
            alone: Leave the further environments out.

        Raises:
            TooManyFailures: No episode of an environment could be finished.
            UserCodeError: The environment's own code raised in too many episodes.
        """
        rollouts, own_metrics = self._play(self.rollouts, rows, purpose)
        metrics = {f"{PREFIX}{name}": value for name, value in own_metrics.items()}
        others: dict[str, Rollouts] = {}
        for name, (shared, other_rows) in self.others.items() if not alone else ():
            others[name], measured = self._play(shared, other_rows, f"{purpose} in {name}")
            metrics |= {f"{PREFIX}{name}/{metric}": value for metric, value in measured.items()}
        return Evaluated(metrics, rollouts, others)

    def _play(
        self, shared: SharedRollouts, rows: Sequence[Row], purpose: str
    ) -> tuple[Rollouts, dict[str, float]]:
        episodes = self.settings.group_size * len(rows)
        most = self.limits.most_failed_of_evaluation(episodes)
        settings = replace(self.settings, max_failed_episodes=most)
        rollouts = shared.collect(rows, settings, purpose)
        tags = {**OF_MIXTURE, **self.tags} if of_mixture(rollouts.metrics) else self.tags
        measured = measure_environment(
            rows, rollouts, self.settings.group_size, self.pass_reward, tags
        )
        return rollouts, rollouts.metrics | measured


def make_evaluation(
    rollouts: SharedRollouts,
    settings: EvaluationSettings,
    environments: Mapping[str, tuple[Any, Sequence[Row]]],
    tokenizer: Any,
    *,
    played: RolloutSettings,
    limits: RolloutLimits,
) -> Evaluation:
    """A run's evaluation.

    Args:
        rollouts: Plays rows in the run's own environment; all else is the same in further ones.
        settings: Of evaluations.
        environments: Further ones by name, each an `EvaluationEnvironment` or such a pair.
        tokenizer: For their renderers.
        played: How rows are played.
        limits: In how many episodes the user's code may raise.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: It does not make environments.
    """
    length = rollouts.agent.context_length
    return Evaluation(
        rollouts,
        played,
        limits,
        pass_reward=settings.pass_reward,
        tags=tag_expressions(settings.by),
        others={
            name: (replace(rollouts, make_env=environment_factory(named, tokenizer, length)), rows)
            for name, (named, rows) in environments.items()
        },
    )
