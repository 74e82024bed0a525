"""The divergence from the reference as a part of the reward: `kl: {place: reward}`.

How a divergence is estimated, and what it does in the loss, is in `trainers/algorithms/kl.py`.
"""

from dataclasses import replace

import numpy as np
import torch
from accelerate import Accelerator

from gymnast.trainers.algorithms.aggregations import token_mean
from gymnast.trainers.algorithms.kl import Kl
from gymnast.trainers.base.contexts import alone, together
from gymnast.trainers.learner.credit import Groups, token_rewards
from gymnast.trainers.learner.policy.in_time import divided, turn_lengths
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.policy.shares import (
    by_episode,
    by_trajectory,
    make_share,
    with_logprobs,
)
from gymnast.types import Trajectory

# The part of the reward that a divergence in it becomes.
KL_PART = "kl"


def penalised(
    groups: Groups,
    kl: Kl,
    reference: Reference,
    accelerator: Accelerator,
    *,
    tokens_per_microbatch: int,
) -> tuple[list[list[Trajectory]], float]:
    """Take the divergence of the tokens from their rewards; a collective call.

    That of a turn is the sum over its tokens. The policy's log-probabilities are those that the
    agent sampled with. Where the reward has named parts, `KL_PART` becomes one of them: the
    divergence, whose weight is the coefficient.

    Args:
        groups: Of all processes, the same in each.
        kl: Whose place is the reward.
        reference: What the policy is compared with.
        accelerator: Of this process.
        tokens_per_microbatch: How many packed tokens one forward pass takes.

    Returns:
        The groups with other rewards, and the mean divergence of a token.
    """
    credited = [[CreditedTrajectory(t, torch.zeros(t.steps)) for t in group] for group in groups]
    share = make_share(
        credited,
        token_mean,
        accelerator,
        divide=reference.split,
        tokens_per_microbatch=tokens_per_microbatch,
        also_idle=True,
    )
    share = with_logprobs(share, reference=reference.logprobs)
    divergences = []
    for scored in share.batches:
        assert scored.reference_logprobs is not None
        divergences.append(kl(scored.batch.sampled_logprobs, scored.reference_logprobs))
    of_each = by_episode(credited, by_trajectory(share, divergences, accelerator))
    total = sum(divergence.sum().item() for divergence in of_each.values())
    changed = [[_with_costs(t, of_each[id(t)], kl.coefficient) for t in group] for group in groups]
    return changed, total / max(share.tokens, 1)


def _with_costs(trajectory: Trajectory, divergence: torch.Tensor, coefficient: float) -> Trajectory:
    """A trajectory with the divergence [A] of its action tokens taken from its rewards."""
    costs = divergence.split(turn_lengths(trajectory))
    parts = trajectory.reward_parts
    if parts:
        parts = {**parts, KL_PART: -sum(cost.sum().item() for cost in costs)}
    pairs = zip(alone(trajectory), divided(divergence, trajectory), strict=True)
    changed = [_one_with_costs(context, values, coefficient) for context, values in pairs]
    return replace(together(trajectory, changed), reward_parts=parts)


def _one_with_costs(
    context: Trajectory, divergence: torch.Tensor, coefficient: float
) -> Trajectory:
    """Likewise, of one context."""
    by_turn = [part.sum().item() for part in divergence.split(turn_lengths(context))]
    pairs = zip(context.turn_rewards, by_turn, strict=True)
    rewards = [reward - coefficient * cost for reward, cost in pairs]
    by_token = np.zeros(len(context.ids))
    by_token[np.flatnonzero(context.action_mask)] = (
        token_rewards(context) - coefficient * divergence
    )
    return replace(context, turn_rewards=rewards, token_rewards=by_token.tolist())
