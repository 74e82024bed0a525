"""The events of a run, for a console, a logger or a program of your own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gymnast.types import Trajectory

Groups = Sequence[Sequence[Trajectory]]


SOLVED = "solved"  # the cause of a run that has learned all that its rows teach
WAITING, SMALL_PASSES = "waiting for tools", "small passes"
SLOW = frozenset({WAITING, SMALL_PASSES})  # the causes of a run that could go faster


@dataclass(frozen=True)
class Advice:
    """Why a run does not learn, has nothing left to learn or is slow, and what to do.

    Attributes:
        step: The step after which it holds.
        cause: In a few words: "no calls".
        text: What was seen and what to do, with settings named as in a YAML.
        page: Where docs say more.
    """

    step: int
    cause: str
    text: str
    page: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.text} ({self.page})"

    @property
    def heading(self) -> str:
        """What a line with the advice begins with."""
        if self.cause in SLOW:
            return "slow"
        return "nothing left to learn" if self.cause == SOLVED else "not learning"


@dataclass(frozen=True)
class EvaluatedPolicy:
    """The policy of one evaluation of a run.

    Attributes:
        reward: Its mean reward on the evaluation rows.
        step: The steps of RL that were taken before.
        warmup_steps: The steps of the warm-up that were taken before.
    """

    reward: float
    step: int
    warmup_steps: int = 0

    @property
    def is_trained(self) -> bool:
        """Whether any step was taken before it."""
        return self.step + self.warmup_steps > 0

    @property
    def when(self) -> str:
        """Where in the run it lies: "after step 5"."""
        if self.step:
            return f"after step {self.step}"
        return "after the warm-up" if self.warmup_steps else "before training"


class Observer(Protocol):
    """Receives the events of a run, on the trainer's thread and only in the main process.

    Metrics are numbers by name: `reward/mean`, `reward/std`, `tokens/sampled`, `tokens/per_s`,
    `time/step_s`, `time/rollout_s`, `time/train_s`, `loss`, `grad_norm`, `episodes/left_out`,
    `tools/calls`, `tools/errors`, and whatever an environment adds; those of an evaluation begin
    with `eval/`. No name is always there, and a number may be NaN where a step was skipped.
    `docs/metrics.md` lists them all.

    An observer that also has `on_warmup_step(step, metrics)` is told of each step of a warm-up.

    A complete small observer that keeps the mean rewards:

        class Rewards:
            def __init__(self):
                self.means = []

            def on_start(self, trainer_info):
                pass

            def on_rollouts(self, step, done, total):
                pass

            def on_step(self, step, metrics, groups):
                self.means.append(metrics["reward/mean"])

            def on_evaluation(self, step, metrics, groups):
                pass

            def on_end(self, summary):
                pass

    An observer may have `on_advice(advice)` besides, which gets an `Advice` where a run does not
    learn. Where it has none, or there is no observer, the advice is logged as a warning.
    """

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        """The run begins.

        Args:
            trainer_info: `steps`, how many in all; `start`, how many a resumed run has done;
                `warmup_steps` and `warmup_start`, those of the warm-up;
                `memory`, what a step takes at most, in words; `earlier`, the metrics of the steps
                and evaluations that a resumed run has in its folder.
        """
        ...

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        """Some episodes of a step have ended: `done` of `total` in the main process.

        With dynamic sampling, `total` grows with every group that is replaced.
        """
        ...

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """A step is done.

        Args:
            step: Its number; the first is 1.
            metrics: The step's.
            groups: The trajectories of each row that the step played; with dynamic sampling, it
                was trained on those that have spread.
        """
        ...

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """An evaluation is done.

        Args:
            step: How many steps the policy had been trained for.
            metrics: Named `eval/...`.
            groups: The trajectories of each row.
        """
        ...

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """The run is over: all steps are taken, or it was stopped. It is not called after an error.

        Args:
            summary: As `Trainer.train` returns it.
        """
        ...
