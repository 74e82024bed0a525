"""Advantages: how much better each turn was than what its group did otherwise.

An estimator maps a `RewardBatch` to one advantage per turn, which then holds for that turn's
tokens. The kernels `grpo` and `rloo` work on the rewards of one group.

A new estimator is one function and one entry in `ESTIMATORS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

EPSILON = 1e-4


@dataclass(frozen=True)
class RewardBatch:
    """The rewards of N trajectories.

    Attributes:
        rewards: [N], float.
        group: [N], int: which group each trajectory belongs to.
        turn_rewards: The rewards of each trajectory's turns; ragged, N lists.
        parts: Named rewards that `rewards` is made of, each [N].
    """

    rewards: torch.Tensor
    group: torch.Tensor
    turn_rewards: Sequence[Sequence[float]]
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)


Kernel = Callable[[torch.Tensor], torch.Tensor]
Estimator = Callable[[RewardBatch], list[torch.Tensor]]


def grpo(rewards: torch.Tensor) -> torch.Tensor:
    """Rewards standardised within the group: (r - mean) / (std + 1e-4).

    DeepSeekMath (Shao et al. 2024, arXiv:2402.03300), section 4.1.2. The standard deviation is
    the sample's (divided by G - 1). A group of one has no advantage.

    Args:
        rewards: [G], of one group.

    Returns:
        [G].
    """
    rewards = torch.as_tensor(rewards) * 1.0  # whole numbers too
    if len(rewards) < 2:
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std() + EPSILON)


def rloo(rewards: torch.Tensor) -> torch.Tensor:
    """Each reward minus the mean of the others: r - (sum - r) / (G - 1).

    REINFORCE leave-one-out (Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740, eq. 8). A
    group of one has no advantage.

    Args:
        rewards: [G], of one group.

    Returns:
        [G].
    """
    rewards = torch.as_tensor(rewards) * 1.0  # whole numbers too
    if len(rewards) < 2:
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) * (len(rewards) / (len(rewards) - 1))


def per_group(kernel: Kernel) -> Estimator:
    """Apply a kernel to the rewards of each group, and give every turn its trajectory's value."""

    def estimate(batch: RewardBatch) -> list[torch.Tensor]:
        advantages = torch.zeros_like(batch.rewards)  # [N]
        for group in batch.group.unique():
            members = batch.group == group
            advantages[members] = kernel(batch.rewards[members])
        return [
            value.expand(len(turns))
            for value, turns in zip(advantages, batch.turn_rewards, strict=True)
        ]

    return estimate


ESTIMATORS: dict[str, Estimator] = {"grpo": per_group(grpo), "rloo": per_group(rloo)}
