"""Advantages: how much better each turn was than what its group, or the batch, did otherwise.

What an estimator is, and how to add one, is in `estimators.py`. Here are those that compare
episodes, and turns by their place; those that compare equal states are in `state_advantages.py`,
those by token in `token_advantages.py`. All are attributes of this module.
"""

from typing import Annotated

import torch
from pydantic import Field

from gymnast.trainers.algorithms.estimators import (
    EPSILON,
    ESTIMATORS,
    Estimator,
    Kernel,
    RewardBatch,
    by_token,
    by_turn,
    centred,
    compares_members,
    compares_states,
    discounted,
    estimator,
    in_groups,
    per_group,
    scaled,
    standardised,
    to_turns,
    weighted_parts,
)
from gymnast.trainers.algorithms.state_advantages import gigpo, state_baseline
from gymnast.trainers.algorithms.token_advantages import gdpo_tokens, reinforce_pp_tokens

__all__ = [
    "EPSILON",
    "ESTIMATORS",
    "Estimator",
    "Kernel",
    "RewardBatch",
    "by_token",
    "by_turn",
    "compares_members",
    "compares_states",
    "dr_grpo",
    "estimator",
    "gdpo",
    "gdpo_tokens",
    "gigpo",
    "grpo",
    "per_group",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "reinforce_pp_tokens",
    "rejection",
    "rloo",
    "state_baseline",
    "turn_level",
]


@per_group
def grpo(rewards: torch.Tensor) -> torch.Tensor:
    """Rewards standardised within the group: (r - mean) / (std + 1e-4).

    DeepSeekMath (Shao et al. 2024, arXiv:2402.03300), section 4.1.2. The standard deviation is
    the sample's (divided by G - 1). A group of one has no advantage.

    Args:
        rewards: [G], of one group.

    Returns:
        [G].
    """
    return standardised(torch.as_tensor(rewards) * 1.0)  # whole numbers too


@per_group
def dr_grpo(rewards: torch.Tensor) -> torch.Tensor:
    """Rewards centred within the group: r - mean.

    Dr. GRPO (Liu et al. 2025, arXiv:2503.20783), section 3.2: without the division by the standard
    deviation, which favours groups that are nearly all right or nearly all wrong. A group of one
    has no advantage.

    Args:
        rewards: [G], of one group.

    Returns:
        [G].
    """
    rewards = torch.as_tensor(rewards) * 1.0  # whole numbers too
    return centred(rewards)


@per_group
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
    return centred(rewards) * (len(rewards) / (len(rewards) - 1))


@estimator
@by_turn
def reinforce_pp(batch: RewardBatch) -> list[torch.Tensor]:
    """Rewards standardised over the whole batch: (r - mean) / (std + 1e-4).

    REINFORCE++ (Hu et al. 2025, arXiv:2501.03262), its global advantage normalisation. Mean and
    standard deviation are over the N trajectories of all processes. The paper's KL penalty in the
    reward is `kl: {place: reward, estimator: k1}`.

    Args:
        batch: N trajectories.

    Returns:
        N tensors, [turns] each.
    """
    return to_turns(standardised(batch.rewards * 1.0), batch)


@estimator
@by_turn
@compares_members
def reinforce_pp_baseline(batch: RewardBatch) -> list[torch.Tensor]:
    """Rewards minus the mean of their group, standardised over the whole batch.

        c = r - mean of the group
        A = (c - mean(c)) / (std(c) + 1e-4), over the N trajectories of all processes

    mean(c) is zero, and left out: rounded, it would give groups that are all alike an advantage.

    REINFORCE++ with baseline (Hu et al. 2025, arXiv:2501.03262).

    Args:
        batch: N trajectories.

    Returns:
        N tensors, [turns] each.
    """
    above = in_groups(dr_grpo, batch.rewards * 1.0, batch.group)
    return to_turns(scaled(above), batch)


@estimator
@by_turn
@compares_members
def gdpo(batch: RewardBatch, *, weights: dict[str, float] | None = None) -> list[torch.Tensor]:
    """Each part of the reward standardised within the group, their weighted sum over the batch.

        a_k = (r_k - mean of the group) / (std of the group + 1e-4)       for each part k
        s   = sum over k of w_k * a_k
        A   = (s - mean(s)) / (std(s) + 1e-4)                             over the batch

    mean(s) is zero, and left out: rounded, it would give groups that are all alike an advantage.
    GDPO (Liu et al. 2026, arXiv:2601.05242), section 3. The parts are what an environment's
    `reward` returned by name and the `rewards` functions of the config; without any, the reward
    itself is the only one.

    Args:
        batch: N trajectories.
        weights: Of the parts by name; by default those of the `rewards` section, else 1. One whose
            name no episode has is warned of once.

    Returns:
        N tensors, [turns] each.
    """
    return to_turns(scaled(weighted_parts(batch, weights)), batch)


@estimator
@by_turn
@compares_members
def turn_level(
    batch: RewardBatch, *, gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
) -> list[torch.Tensor]:
    """Each turn's discounted return, standardised over all turns of its group.

        R_t = r_t + gamma * R_(t+1)
        A_t = (R_t - mean(R)) / (std(R) + 1e-4), over every turn of every member of the group

    Turn-level credit as in Zeng et al. 2025 (arXiv:2505.11821), with returns in place of their two
    fixed stages. One mean for all turns of a group, rather than one for each place in the
    conversation, so that the late turns of the only long episode are compared too. With one turn
    an episode this is `grpo`.

    Args:
        batch: N trajectories.
        gamma: What a reward one turn later is worth now.

    Returns:
        N tensors, [turns] each.
    """
    returns = [discounted(turns, gamma) for turns in batch.turn_rewards]
    advantages = list(returns)
    for number in batch.group.unique():
        members = (batch.group == number).nonzero()[:, 0].tolist()
        pooled = standardised(torch.cat([returns[i] for i in members]))
        parts = pooled.split([len(returns[i]) for i in members])
        for i, part in zip(members, parts, strict=True):
            advantages[i] = part
    return advantages


@estimator
@by_turn
def rejection(batch: RewardBatch, *, threshold: float = 1.0) -> list[torch.Tensor]:
    """1 for every trajectory whose reward reaches a threshold, 0 for the others.

    With the loss `likelihood` this is rejection sampling: the policy is trained to say what passed.
    STaR (Zelikman et al. 2022, arXiv:2203.14465, section 3.1) keeps the answers that are right, as
    here; RAFT (Dong et al. 2023, arXiv:2304.06767, algorithm 1) keeps those of a prompt with the
    highest reward; with rewards of 0 and 1 the two differ only where all of a prompt are wrong.
    Xiong et al. 2025 (arXiv:2504.11343) compare it with GRPO. No trajectory is compared with
    another, so a group may be one.

    Args:
        batch: N trajectories.
        threshold: The lowest reward that passes.

    Returns:
        N tensors, [turns] each.
    """
    return to_turns((batch.rewards >= threshold) * 1.0, batch)
