"""Losses and gradients that are not finite: what is reported, and when they end a run.

An optimisation step without a finite loss and gradient is skipped (`trainers/learner/update.py`),
which leaves weights and optimizer as they were; `Optimizer` counts. Several in a row end the run,
with a checkpoint. No checkpoint is removed meanwhile: the last step that was taken may have been
the bad one. Rewards are checked before, in `trainers/rollouts/rewards.py`.
"""

import math
import sys

from gymnast.errors import Diverged
from gymnast.trainers.learner.optimizers.optimizer import Optimizer

# Chance skips a step now and then, but not ten in a row.
MOST_SKIPPED = 10


def why_not_finite(loss: float, norm: float) -> str:
    """Why a step is skipped, in words; "" where both are finite."""
    if math.isfinite(loss) and math.isfinite(norm):
        return ""
    return f"loss {loss:g}, gradient norm {norm:g}"


def ends_run(optimizer: Optimizer) -> bool:
    """Whether so many optimisation steps in a row were skipped that the run ends."""
    return optimizer.skipped_in_a_row >= MOST_SKIPPED


def raise_if_run_ends(optimizer: Optimizer, step: int) -> None:
    """End the run after a step, where too many were skipped.

    Raises:
        Diverged: The last optimisation steps were all skipped.
    """
    if ends_run(optimizer):
        raise Diverged(
            f"step {step}: {optimizer.skipped_in_a_row} optimisation steps in a row were skipped, "
            f"the last for {optimizer.last_skip}; both must be finite. The weights are those of "
            "the last step that was taken. Look at the loss (algorithm.loss, algorithm.kl), lower "
            "trainer.learning_rate, or compute in float32 (model.dtype)."
        )


def skip_message(optimizer: Optimizer, step: int, skipped: float) -> str:
    """One line about the optimisation steps that a step skipped."""
    return (
        f"step {step}: {skipped:.0f} optimisation steps skipped, the last for "
        f"{optimizer.last_skip} ({optimizer.skipped_in_a_row} in a row, {optimizer.skipped} in "
        f"all; {MOST_SKIPPED} in a row end the run)"
    )


def checkpoints_kept(optimizer: Optimizer, keep: int) -> int:
    """How many checkpoints are kept: all, while steps are being skipped."""
    return sys.maxsize if optimizer.skipped_in_a_row else keep
