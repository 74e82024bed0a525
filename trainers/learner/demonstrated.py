"""Demonstrations as something to learn from: the mean negative log-likelihood of their tokens.

They are trajectories as others are, in the same micro-batches. Every action token has an advantage
of 1, the loss is `likelihood`, and the normaliser is the number of action tokens of all processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator

from gymnast.trainers.algorithms.algorithm import make_algorithm
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory
from gymnast.trainers.learner.policy.policy import unwrapped
from gymnast.trainers.learner.policy.shares import Share, make_share
from gymnast.types import Trajectory

BY_LIKELIHOOD = make_algorithm("rejection")  # its loss; the advantages are given


@dataclass(frozen=True)
class Demonstrated:
    """Demonstrations in an optimisation step.

    Attributes:
        share: Of the demonstrations of all processes.
        weight: What the mean negative log-likelihood of a token counts beside the rest of the loss.
    """

    share: Share
    weight: float = 1.0


def share_of_demonstrations(
    policy: torch.nn.Module,
    demonstrations: Sequence[Trajectory],
    accelerator: Accelerator,
    tokens_per_microbatch: int,
) -> Share:
    """Lay demonstrations out for an optimisation step.

    Args:
        policy: A `Policy`, wrapped by accelerate where there are several processes.
        demonstrations: Of all processes, the same in each.
        accelerator: Of this process.
        tokens_per_microbatch: How many tokens one forward and backward pass takes.
    """
    credited = [CreditedTrajectory(each, torch.ones(each.steps)) for each in demonstrations]
    return make_share(
        [[episode] for episode in credited],
        BY_LIKELIHOOD.aggregation,
        accelerator,
        divide=unwrapped(policy).split,
        tokens_per_microbatch=tokens_per_microbatch,
        also_idle=False,
    )
