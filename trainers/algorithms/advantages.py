"""Advantages: how much better each turn was than what its group, or the batch, did otherwise.

An estimator maps a `RewardBatch` to one advantage a turn, which then holds for that turn's tokens,
or to one advantage an action token. A new one is one decorated function: `@per_group` on a kernel
that sees the rewards of one group, `@estimator` on one that sees the whole batch. Keyword-only
arguments are options of a config. An `@estimator` that compares the members of a group with one
another is marked `@compares_members`, as every `@per_group` kernel is: groups of one would teach it
nothing.

    @per_group
    def best_of(rewards, *, margin: float = 0.0):
        return (rewards >= rewards.max() - margin) * 1.0

    @estimator
    def reward_to_go(batch):  # by token: what was earned from each token on
        return [rewards.flip(0).cumsum(0).flip(0) for rewards in batch.token_rewards]
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field

from gymnast.errors import ConfigError
from gymnast.trainers.algorithms.registry import Registry
from gymnast.visible import visible_logger

EPSILON = 1e-4
logger = visible_logger(__name__)
_warned_of: set[str] = set()  # parts of the reward that no episode has


@dataclass(frozen=True)
class RewardBatch:
    """The rewards of N trajectories, those of all processes.

    Attributes:
        rewards: [N], float.
        group: [N], int: which group each trajectory belongs to.
        turn_rewards: The rewards of each trajectory's turns; ragged, N lists.
        parts: Named rewards that `rewards` is made of, each [N], before they are weighted.
        weights: Of the parts; 1 for one that is not named.
        action_tokens: How many action tokens each turn of each trajectory has; ragged, N lists.
        token_rewards: N tensors, [action tokens] each. Those of a turn add up to its reward; where
            a trajectory has rewards by turn only, the last token of each turn has all of it. The
            reward of a turn without tokens is missing here.
        states: What each turn acted in, N sequences, [turns] each, or None unless all trajectories
            say. They can be hashed.
    """

    rewards: torch.Tensor
    group: torch.Tensor
    turn_rewards: Sequence[Sequence[float]]
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    action_tokens: Sequence[Sequence[int]] = ()
    token_rewards: Sequence[torch.Tensor] = ()
    states: Sequence[Sequence[Hashable]] | None = None


Kernel = Callable[..., torch.Tensor]
Estimator = Callable[..., list[torch.Tensor]]
F = TypeVar("F", bound=Callable[..., Any])

ESTIMATORS: Registry[list[torch.Tensor]] = Registry("estimator", "gymnast.estimators")


def estimator(function: F) -> F:
    """Let a config name a function from a `RewardBatch` to N tensors.

    They are all [turns], or all [action tokens]; lengths that fit both are taken as turns.
    """
    ESTIMATORS.add(function, function)
    return function


def compares_members(function: F) -> F:
    """Mark an estimator that needs groups of two and more."""
    function.__dict__["compares_members"] = True
    return function


def per_group(kernel: F) -> F:
    """Let a config name a kernel, [G] -> [G], which is applied to the rewards of each group."""

    def estimate(batch: RewardBatch, **options: Any) -> list[torch.Tensor]:
        return _to_turns(_in_groups(kernel, batch.rewards, batch.group, **options), batch)

    ESTIMATORS.add(compares_members(kernel), estimate)
    return kernel


def _in_groups(
    kernel: Kernel, rewards: torch.Tensor, group: torch.Tensor, **options: Any
) -> torch.Tensor:
    """[N]: a kernel applied to the rewards [N] of each group."""
    advantages = torch.zeros_like(rewards)
    for number in group.unique():
        members = group == number
        values = torch.as_tensor(kernel(rewards[members], **options))
        if values.shape != rewards[members].shape:
            raise ConfigError(
                f"algorithm.estimator: {getattr(kernel, '__name__', kernel)} gave a tensor of "
                f"shape {list(values.shape)} for a group of {int(members.sum())}; it must give one "
                "advantage a member"
            )
        advantages[members] = values.to(advantages.dtype)
    return advantages


def _to_turns(advantages: torch.Tensor, batch: RewardBatch) -> list[torch.Tensor]:
    """Give every turn its trajectory's value; advantages [N]."""
    pairs = zip(advantages, batch.turn_rewards, strict=True)
    return [value.expand(len(turns)) for value, turns in pairs]


def _centred(values: torch.Tensor) -> torch.Tensor:
    """The values minus their mean, [N] -> [N]; exactly zero where all are alike.

    Rounded, the mean of equal values may be another.
    """
    if bool((values == values[:1]).all()):
        return torch.zeros_like(values)
    return values - values.mean()


def _scaled(centred: torch.Tensor) -> torch.Tensor:
    """Values whose mean is zero, over (std + 1e-4), [N] -> [N]; zeros where there is only one."""
    if len(centred) < 2:
        return torch.zeros_like(centred)
    return centred / (centred.std() + EPSILON)


def _standardised(values: torch.Tensor) -> torch.Tensor:
    """(v - mean) / (std + 1e-4), [N] -> [N]; zeros where there are fewer than two."""
    return _scaled(_centred(values))


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
    return _standardised(torch.as_tensor(rewards) * 1.0)  # whole numbers too


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
    return _centred(rewards)


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
    return _centred(rewards) * (len(rewards) / (len(rewards) - 1))


@estimator
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
    return _to_turns(_standardised(batch.rewards * 1.0), batch)


@estimator
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
    centred = _in_groups(dr_grpo, batch.rewards * 1.0, batch.group)
    return _to_turns(_scaled(centred), batch)


@estimator
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
    parts = batch.parts or {"reward": batch.rewards}
    for name in sorted(set(weights or {}) - set(parts) - _warned_of):
        _warned_of.add(name)  # once, and not in every step
        logger.warning(
            "algorithm.weights: names %r, but no episode of this step has a part of the reward "
            "of that name; the parts are: %s",
            name,
            ", ".join(sorted(parts)),
        )
    used = {**batch.weights, **(weights or {})}
    total = torch.zeros_like(batch.rewards * 1.0)
    for name, values in parts.items():
        total += used.get(name, 1.0) * _in_groups(grpo, values * 1.0, batch.group)
    return _to_turns(_scaled(total), batch)


@estimator
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
    returns = [_discounted(turns, gamma) for turns in batch.turn_rewards]
    advantages = list(returns)
    for number in batch.group.unique():
        members = (batch.group == number).nonzero()[:, 0].tolist()
        pooled = _standardised(torch.cat([returns[i] for i in members]))
        parts = pooled.split([len(returns[i]) for i in members])
        for i, part in zip(members, parts, strict=True):
            advantages[i] = part
    return advantages


@estimator
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
    return _to_turns((batch.rewards >= threshold) * 1.0, batch)


def _discounted(rewards: Sequence[float], gamma: float) -> torch.Tensor:
    """Returns from each turn on, [turns]."""
    returns = torch.zeros(len(rewards))
    following = 0.0
    for turn in reversed(range(len(rewards))):
        following = rewards[turn] + gamma * following
        returns[turn] = following
    return returns
