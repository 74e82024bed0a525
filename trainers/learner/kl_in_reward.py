"""The divergence from the reference as a part of the reward: `kl: {place: reward}`.

Left out: the estimators, and the divergence in the loss (`trainers/algorithms/kl.py`).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from gymnast.trainers.algorithms.aggregations import token_mean
from gymnast.trainers.algorithms.kl import Kl
from gymnast.trainers.learner.credit import Groups
from gymnast.trainers.learner.policy.micro_batches import Sample
from gymnast.trainers.learner.policy.policy import Reference
from gymnast.trainers.learner.policy.shares import make_share, with_logprobs
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
    """Take the divergence of each turn's tokens from its reward; a collective call.

    The policy's log-probabilities are those that the agent sampled with. Where the reward has named
    parts, `KL_PART` becomes one of them: the divergence, whose weight is the coefficient.

    Args:
        groups: Of all processes, the same in each.
        kl: Whose place is the reward.
        reference: What the policy is compared with.
        accelerator: Of this process.
        tokens_per_microbatch: How many packed tokens one forward pass takes.

    Returns:
        The groups with other rewards, and the mean divergence of a token.
    """
    share = make_share(
        [[Sample(t, torch.zeros(len(t.turns))) for t in group] for group in groups],
        token_mean,
        accelerator,
        tokens_per_microbatch=tokens_per_microbatch,
        also_idle=True,
    )
    share = with_logprobs(share, reference=reference.logprobs)
    mine: list[Sequence[torch.Tensor]] = []  # for each micro-batch, [A] of each trajectory
    for scored in share.batches:
        assert scored.reference_logprobs is not None
        apart = kl(scored.batch.sampled_logprobs, scored.reference_logprobs)
        mine.append(apart.cpu().split(torch.bincount(scored.batch.sequences).tolist()))
    everybodys = gather_object([mine])
    # In the order of the trajectories: processes took the micro-batches in turn.
    found = [apart for row in zip(*everybodys, strict=True) for batch in row for apart in batch]
    computed = sum(t.action_tokens > 0 for group in groups for t in group)
    found = found[:computed]  # behind them, what only fills up
    total = sum(apart.sum().item() for apart in found)
    in_order, nothing = iter(found), torch.zeros(0)
    changed = [
        [_with_costs(t, next(in_order) if t.action_tokens else nothing, kl.coefficient) for t in g]
        for g in groups
    ]
    return changed, total / max(share.tokens, 1)


def _with_costs(trajectory: Trajectory, apart: torch.Tensor, coefficient: float) -> Trajectory:
    """The divergence [A] of its action tokens taken from the rewards of its turns."""
    by_turn = [part.sum().item() for part in apart.split([b - a for a, b in trajectory.turns])]
    pairs = zip(trajectory.turn_rewards, by_turn, strict=True)
    rewards = [reward - coefficient * divergence for reward, divergence in pairs]
    parts = trajectory.reward_parts
    if parts:
        parts = {**parts, KL_PART: -sum(by_turn)}
    return replace(trajectory, turn_rewards=rewards, reward_parts=parts)
