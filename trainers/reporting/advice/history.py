"""The steps that advice is made from: the first ones of a run and the latest."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gymnast.trainers.base.observer import EvaluatedPolicy
from gymnast.trainers.evaluation.estimates import student_t
from gymnast.trainers.reporting.advice.seen import SeenStep

# Steps whose mean stands for how a run began, and for how it does now: fewer are noise.
A_FEW = 5
# Within fewer steps, that a reward does not rise says little; then both halves are `A_FEW`.
MANY = 2 * A_FEW
WARM_UP = "warm up (warmup: {demonstrations: solve, steps: 20})"
# What all of the last so many steps show is no accident of one batch, and is said soon.
LATEST = 2


@dataclass(frozen=True)
class SeenEvaluation(EvaluatedPolicy):
    """An evaluation.

    Attributes:
        error: The standard error of its mean reward, from how rows differ.
        std: The standard deviation of an episode's reward.
        rows: The number of its rows.
    """

    error: float = math.inf
    std: float = 0.0
    rows: int = 0

    @staticmethod
    def of(evaluated: EvaluatedPolicy, metrics: Mapping[str, float]) -> "SeenEvaluation":
        """What is remembered of an evaluation.

        Args:
            evaluated: Its policy.
            metrics: Named `eval/...`.
        """
        rows = int(metrics.get("eval/rows", 0))
        error = math.inf
        if rows > 1:
            error = (metrics["eval/reward/high"] - evaluated.reward) / student_t(rows - 1)
        std = metrics.get("eval/reward/std", 0.0)
        return SeenEvaluation(**asdict(evaluated), error=error, std=std, rows=rows)


@dataclass
class History:
    """What is remembered of a run.

    Attributes:
        beginning: The first steps, `A_FEW` at most.
        recent: The latest, `MANY` at most.
        best: The evaluation with the highest mean reward; of equal ones the first.
        last: The last evaluation.
    """

    beginning: list[SeenStep] = field(default_factory=list)
    recent: list[SeenStep] = field(default_factory=list)
    best: SeenEvaluation | None = None
    last: SeenEvaluation | None = None

    def add(self, step: SeenStep) -> None:
        """Remember a step."""
        if len(self.beginning) < A_FEW:
            self.beginning.append(step)
        self.recent = [*self.recent, step][-MANY:]

    def add_evaluation(self, evaluation: SeenEvaluation) -> None:
        """Remember an evaluation."""
        if self.best is None or evaluation.reward > self.best.reward:
            self.best = evaluation
        self.last = evaluation

    @property
    def latest(self) -> list[SeenStep]:
        """The last `LATEST` steps; none while there are fewer."""
        return self.recent[-LATEST:] if len(self.recent) >= LATEST else []

    @property
    def span(self) -> str:
        """What the latest steps are called."""
        return f"the last {len(self.latest)} steps"

    @property
    def few(self) -> list[SeenStep]:
        """The last `A_FEW` steps; none while there are fewer after the beginning."""
        last = self.recent[-A_FEW:]
        return last if last and last[0].number > self.beginning[-1].number else []

    def warm_up(self, steps: int) -> str:
        """How demonstrations may teach what the policy does not do.

        Args:
            steps: How many the run's warm-up has; 0: there is none.
        """
        there = f"there is a warm-up of {_counted(steps)}"
        return f"raise warmup.steps or warmup.learning_rate ({there})" if steps else WARM_UP

    def to_dict(self) -> dict[str, Any]:
        """As a run's state keeps it."""
        return {
            "beginning": [step.to_dict() for step in self.beginning],
            "recent": [step.to_dict() for step in self.recent],
            "best": None if self.best is None else asdict(self.best),
            "last": None if self.last is None else asdict(self.last),
        }

    @staticmethod
    def from_dict(kept: dict[str, Any]) -> "History":
        """What `to_dict` returned, as it was."""
        best, last = kept.get("best"), kept.get("last")  # earlier versions kept neither
        return History(
            [SeenStep.from_dict(step) for step in kept["beginning"]],
            [SeenStep.from_dict(step) for step in kept["recent"]],
            None if best is None else SeenEvaluation(**best),
            None if last is None else SeenEvaluation(**last),
        )


@dataclass
class DryRun(History):
    """What a dry run played: its one step says all that there is to say."""

    @property
    def latest(self) -> list[SeenStep]:
        """The step, once it is there."""
        return self.recent[-1:]

    @property
    def span(self) -> str:
        """What the latest steps are called."""
        return "this dry run"

    def warm_up(self, steps: int) -> str:
        """The same; what a dry run plays comes before the run's warm-up."""
        if not steps:
            return WARM_UP
        return (
            f"see whether the warm-up of {_counted(steps)}, which a dry run leaves out, is enough "
            "(warmup.steps, warmup.learning_rate)"
        )


def _counted(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def values(name: str, steps: Sequence[SeenStep]) -> list[float]:
    """A metric, where it was measured."""
    return [step.metrics[name] for step in steps if name in step.metrics]


def mean(name: str, steps: Sequence[SeenStep]) -> float:
    """The mean of a metric over the steps that have it; NaN, which compares with nothing, if none.

    Args:
        name: The metric's.
        steps: Some of a history.
    """
    found = values(name, steps)
    return sum(found) / len(found) if found else math.nan


def reward_error(steps: Sequence[SeenStep]) -> float:
    """The standard error of the mean reward of some steps, from how their means vary.

    Rewards of one row are alike, so those within a step would say less than there is.
    """
    means = values("reward/mean", steps)
    if len(means) < LATEST:
        return math.inf
    return statistics.stdev(means) / math.sqrt(len(means))


def rises(history: History) -> bool:
    """Whether the reward of the last steps is above that of the steps before, or may yet be."""
    recent = history.recent
    if len(recent) < MANY:
        return True
    return mean("reward/mean", recent[A_FEW:]) > mean("reward/mean", recent[:A_FEW])
