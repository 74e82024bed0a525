"""A reward that falls at once: from one step to the next, or from the best evaluation to the last.

A step plays few rows, and a step of hard rows earns less than the one before it without any change
of the policy. So a fall is told from chance by how the rows of a step differ: the rows are
clusters, as in an evaluation, and the standard error is that of their means. Fewer than 1 of 100
runs of a policy that does not change are warned. Few rows a step prove nothing in one step; the
next evaluation does, and its advice names the step in which the rollouts fell.
"""

import math
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from gymnast.trainers.evaluation.estimates import student_t
from gymnast.trainers.reporting.advice.history import A_FEW, History, SeenEvaluation
from gymnast.trainers.reporting.advice.seen import SeenStep

# A fall is beyond what chance does in 1 of 10,000 steps: runs have many steps.
LEVEL = 0.9998
# Steps after a fall that are compared with the steps before it.
AFTER = (1, 2)
# A fall of less than this share of the range of the rows' rewards is left to `falls`.
SHARE = 0.2
# An evaluation has fallen by more than this share of the standard deviation of a reward.
OF_STD = 0.25
# With fewer rows on either side, steps prove nothing.
FEWEST_GROUPS = 4
# With fewer rows, an evaluation says too little of how rows differ.
FEWEST_ROWS = 8
# By which a learning rate is divided that took away what was learned.
SLOWER = 10


class Remedy(NamedTuple):
    """The settings that advice about a fall names.

    Attributes:
        rate_name: The setting of the learning rate.
        rate: Its value.
        warmup_steps: `trainer.warmup_steps`.
        run: The run's folder, if the best weights are kept there.
    """

    rate_name: str = "trainer.learning_rate"
    rate: float = 0.0
    warmup_steps: int = 0
    run: str | None = None

    def smaller_steps(self) -> str:
        """The settings that make a run's steps smaller."""
        return (
            f"lower {self.rate_name} ({self.rate / SLOWER:.3g}, say; it is {self.rate:g}), or let "
            f"it grow over more steps (trainer.warmup_steps; it is {self.warmup_steps})"
        )

    def go_back(self, best: SeenEvaluation | None) -> str:
        """The command that continues from the best weights, to end a sentence; "" without any."""
        if self.run is None or best is None or not best.is_trained:
            return ""
        run = Path(self.run)
        again = run.with_name(f"{run.name}_again")
        settings = [f"model.name={run / 'best' / 'model'}", "warmup=null"]
        settings += [f"{self.rate_name}={self.rate / SLOWER:.3g}", "trainer.scale_by_teaching=true"]
        settings += [f"output_dir={again}"]
        command = shlex.join(["gymnast", "train", str(run / "config.yaml"), *settings])
        return f"; to go on from the best weights ({best.reward:.3f} {best.when}): {command}"


NO_REMEDY = Remedy()


class Fall(NamedTuple):
    """A fall of the rollouts' reward in one step.

    Attributes:
        step: The number of the step that earned less.
        before: The mean reward of the step before it.
        after: That of the step.
    """

    step: int
    before: float
    after: float

    def __str__(self) -> str:
        return f"fell from {self.before:.2f} to {self.after:.2f} in one step (step {self.step})"


def sudden_falls(history: History, remedy: Remedy) -> list[tuple[str, str]]:
    """The falls that the last step and the last evaluation show: (cause, sentence) each.

    Args:
        history: Of the run.
        remedy: What to advise.
    """
    found = []
    best, last = history.best, history.last
    if best is not None and last is not None and has_fallen(best, last):
        steepest = steepest_fall(history.recent, after=best.step)
        also = f", and that of the rollouts {steepest}" if steepest is not None else ""
        found.append(
            (
                "falling evaluation",
                f"the reward of the evaluation rows fell from {best.reward:.3f} {best.when} to "
                f"{last.reward:.3f} {last.when}{also}: {_smaller(remedy, last)}"
                f"{remedy.go_back(best)}",
            )
        )
    if (fall := fall_of_rollouts(history.recent)) is not None:
        found.append(
            (
                "sudden fall",
                f"the reward {fall}, more than chance makes it fall: the update before it was too "
                f"large; {remedy.smaller_steps()}{remedy.go_back(best)}",
            )
        )
    return found


def _smaller(remedy: Remedy, last: SeenEvaluation) -> str:
    if last.step:
        return remedy.smaller_steps()
    return "lower warmup.learning_rate or warmup.steps, or give more demonstrations"


def has_fallen(best: SeenEvaluation, last: SeenEvaluation) -> bool:
    """Whether the last evaluation is below the best one, by more than chance and noticeably."""
    fall = best.reward - last.reward
    if min(best.rows, last.rows) < FEWEST_ROWS or fall <= OF_STD * max(best.std, last.std):
        return False
    degrees = min(best.rows, last.rows) - 1
    return fall > student_t(degrees, LEVEL) * math.hypot(best.error, last.error)


def steepest_fall(steps: Sequence[SeenStep], *, after: int) -> Fall | None:
    """The largest fall from one step to the next, of those whose update came after some step.

    Args:
        steps: The latest of a run.
        after: How many steps were taken when the policy was still good. Step `after + 1` played
            with that policy.
    """
    falls = [
        Fall(later.number, _mean([earlier]), _mean([later]))
        for earlier, later in pairwise(steps)
        if earlier.group_rewards and later.group_rewards and earlier.number > after
    ]
    fall = max(falls, key=lambda each: each.before - each.after, default=None)
    return fall if fall is not None and fall.before - fall.after >= SHARE * _range(steps) else None


def fall_of_rollouts(recent: Sequence[SeenStep]) -> Fall | None:
    """The fall of the reward from one step to the next that the latest steps prove; else None.

    The rows' mean rewards of one or two steps are compared with those of the steps before, by
    Student's t with the variance within steps. The variance is at least what the episodes of a row
    explain, and takes in one more observation at each end of the range: rows that happen to be
    alike do not prove that rows never differ. That of the later steps is at least their own.

    Args:
        recent: The latest steps, oldest first.
    """
    steps = [step for step in recent if step.group_rewards]
    for count in AFTER:
        before, now = steps[:-count][-A_FEW:], steps[-count:]
        counts = [sum(len(step.group_rewards) for step in some) for some in (before, now)]
        if min(counts) < FEWEST_GROUPS:
            continue
        fall = Fall(now[0].number, _mean(before[-1:]), _mean(now[:1]))
        spread = _range([*before, *now])
        least = SHARE * spread
        lost = _mean(before) - _mean(now)
        if fall.before - fall.after < least or lost < least or lost <= 0:
            continue
        degrees = sum(len(step.group_rewards) - 1 for step in [*before, *now]) + 1
        pooled = (_squares([*before, *now]) + spread**2 / 2) / degrees
        pooled = max(pooled, *(step.group_noise for step in [*before[-1:], *now]))
        own = _squares(now) / max(1, counts[1] - count)
        error = math.sqrt(pooled / counts[0] + max(pooled, own) / counts[1])
        if lost > student_t(degrees, LEVEL) * error:
            return fall
    return None


def _mean(steps: Sequence[SeenStep]) -> float:
    rewards = [reward for step in steps for reward in step.group_rewards]
    return math.fsum(rewards) / len(rewards)


def _squares(steps: Sequence[SeenStep]) -> float:
    """The sum of squared deviations of the rows' rewards from the mean of their step."""
    means = [(step, _mean([step])) for step in steps]
    return math.fsum((reward - mean) ** 2 for step, mean in means for reward in step.group_rewards)


def _range(steps: Sequence[SeenStep]) -> float:
    rewards = [reward for step in steps for reward in step.group_rewards]
    return max(rewards) - min(rewards)
