"""What a trainer tells while it runs: the events that a console or a logger listens to."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gymnast.types import Trajectory

Groups = Sequence[Sequence[Trajectory]]


class Observer(Protocol):
    """Is told what happens in a run, on the trainer's thread and only in the main process.

    Metrics are numbers by name: `reward/mean`, `reward/std`, `tokens/sampled`, `tokens/per_s`,
    `time/step_s`, `time/rollout_s`, `time/train_s`, `loss`, `grad_norm`, `episodes/left_out`,
    `tools/calls`, `tools/errors`, and whatever an environment adds; those of an evaluation begin
    with `eval/`. No name is always there, and a number may be NaN where a step was skipped.
    `docs/metrics.md` lists them all.

    A complete small observer, which keeps the mean rewards:

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
    """

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        """The run begins.

        Args:
            trainer_info: `steps` (how many in all) and `start` (how many are done, by a run that
                this one resumes), and more about the trainer.
        """
        ...

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        """Some episodes of a step have ended: `done` of `total`, those of the main process."""
        ...

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """A step is done.

        Args:
            step: Its number; the first is 1.
            metrics: Of the step.
            groups: What it was trained on: the trajectories of each row.
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
            summary: What `Trainer.train` returns.
        """
        ...
