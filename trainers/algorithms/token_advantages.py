"""Advantages by token: what papers and verl compute where `advantages.py` has one a trajectory.

Means and standard deviations are over the action tokens of the whole batch, so that a trajectory
counts by its length. The names without `_tokens` count every trajectory once.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field

from gymnast.trainers.algorithms.estimators import (
    RewardBatch,
    by_token,
    centred,
    compares_members,
    discounted,
    estimator,
    weighted_parts,
)

VARIANCE_EPSILON = 1e-8


@estimator
@by_token
def reinforce_pp_tokens(
    batch: RewardBatch, *, gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
) -> list[torch.Tensor]:
    """What is earned from each token on, whitened over all action tokens of the batch.

        R_t = r_t + gamma * R_(t+1)              over the action tokens of the whole episode
        A_t = (R_t - mean(R)) / sqrt(var(R) + 1e-8)

    REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): the return from each token on and its
    normalisation over the batch. The paper's KL penalty is in r_t with
    `kl: {place: reward, estimator: k1}`. verl's estimator of that name begins a new return after
    each observation; here a reward of a later turn counts for the tokens of earlier ones, as in an
    episode without observations.

    Args:
        batch: N trajectories.
        gamma: What a reward one token later is worth now.

    Returns:
        N tensors, [action tokens] each.
    """
    return _whitened([discounted(rewards.tolist(), gamma) for rewards in batch.token_rewards])


@estimator
@by_token
@compares_members
def gdpo_tokens(
    batch: RewardBatch, *, weights: dict[str, float] | None = None
) -> list[torch.Tensor]:
    """The weighted sum of `gdpo`, whitened over all action tokens of the batch.

        a_k = (r_k - mean of the group) / (std of the group + 1e-4)       for each part k
        s   = sum over k of w_k * a_k
        A_t = (s - mean(s)) / sqrt(var(s) + 1e-8)             over tokens, each with its episode's s

    GDPO (Liu et al. 2026, arXiv:2601.05242), section 3, whose batch normalisation verl computes
    over tokens. The mean over tokens is not zero where good episodes are longer or shorter than bad
    ones; then a group whose episodes are all alike has an advantage as well.

    Args:
        batch: N trajectories.
        weights: Of the parts by name; by default those of the `rewards` section, else 1. One whose
            name no episode has is warned of once.

    Returns:
        N tensors, [action tokens] each.
    """
    sums = weighted_parts(batch, weights)
    pairs = zip(sums, batch.action_tokens, strict=True)
    return _whitened([value.expand(sum(tokens)) for value, tokens in pairs])


def _whitened(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """(v - mean) / sqrt(variance + 1e-8) over all values; zeros where there are fewer than two.

    Args:
        values: Ragged, N tensors.
    """
    together = centred(torch.cat([*values, torch.zeros(0)]))
    if len(together) < 2:
        together = torch.zeros_like(together)
    else:
        together = together * torch.rsqrt(together.var() + VARIANCE_EPSILON)
    return list(together.split([len(each) for each in values]))
