"""Estimators: what they see, and how a function becomes one that a config can name.

An estimator maps a `RewardBatch` to one advantage a turn, which then holds for that turn's tokens,
or to one advantage an action token. A new one is one decorated function: `@per_group` on a kernel
that sees the rewards of one group, `@estimator` on one that sees the whole batch. Keyword-only
arguments are options of a config. Marks say what the numbers cannot:

    @by_turn, @by_token   what an `@estimator` gives; a batch with as many turns as action tokens
                          in each trajectory would not tell
    @compares_members     groups of one would teach it nothing; every `@per_group` kernel has it
    @compares_states      it needs `RewardBatch.states`

    @per_group
    def best_of(rewards, *, margin: float = 0.0):
        return (rewards >= rewards.max() - margin) * 1.0

    @estimator
    @by_token
    def reward_to_go(batch):  # what was earned from each token on
        return [rewards.flip(0).cumsum(0).flip(0) for rewards in batch.token_rewards]

Those that come with Gymnast are in `advantages.py`.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

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
            say. They can be hashed; a state of None is equal to no other.
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

    They are all [turns], or all [action tokens]; `@by_turn` and `@by_token` say which.
    """
    ESTIMATORS.add(function, function)
    return function


def compares_members(function: F) -> F:
    """Mark an estimator that needs groups of two and more."""
    function.__dict__["compares_members"] = True
    return function


def compares_states(function: F) -> F:
    """Mark an estimator that needs the states of turns."""
    function.__dict__["compares_states"] = True
    return function


def by_turn(function: F) -> F:
    """Mark an estimator that gives one advantage a turn."""
    function.__dict__["gives"] = "turn"
    return function


def by_token(function: F) -> F:
    """Mark an estimator that gives one advantage an action token."""
    function.__dict__["gives"] = "token"
    return function


def per_group(kernel: F) -> F:
    """Let a config name a kernel, [G] -> [G], which is applied to the rewards of each group."""

    def estimate(batch: RewardBatch, **options: Any) -> list[torch.Tensor]:
        return to_turns(in_groups(kernel, batch.rewards, batch.group, **options), batch)

    ESTIMATORS.add(by_turn(compares_members(kernel)), estimate)
    return kernel


def in_groups(
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


def to_turns(advantages: torch.Tensor, batch: RewardBatch) -> list[torch.Tensor]:
    """Give every turn its trajectory's value; advantages [N]."""
    pairs = zip(advantages, batch.turn_rewards, strict=True)
    return [value.expand(len(turns)) for value, turns in pairs]


def centred(values: torch.Tensor) -> torch.Tensor:
    """The values minus their mean, [N] -> [N]; exactly zero where all are alike.

    Rounded, the mean of equal values may be another.
    """
    if bool((values == values[:1]).all()):
        return torch.zeros_like(values)
    return values - values.mean()


def scaled(values: torch.Tensor) -> torch.Tensor:
    """Values whose mean is zero, over (std + 1e-4), [N] -> [N]; zeros where there is only one."""
    if len(values) < 2:
        return torch.zeros_like(values)
    return values / (values.std() + EPSILON)


def standardised(values: torch.Tensor) -> torch.Tensor:
    """(v - mean) / (std + 1e-4), [N] -> [N]; zeros where there are fewer than two."""
    return scaled(centred(values))


def discounted(rewards: Sequence[float], gamma: float) -> torch.Tensor:
    """What is earned from each turn, or token, on: R_t = r_t + gamma * R_(t+1), [T]."""
    backwards: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        backwards.append(following)
    return torch.tensor(backwards[::-1])


def _weight_of(part: str, weights: Mapping[str, float]) -> float:
    """The weight of a part, or of the function that named it: "judged" of "judged/polite"."""
    return weights.get(part, weights.get(part.partition("/")[0], 1.0))


def weighted_parts(batch: RewardBatch, weights: Mapping[str, float] | None) -> torch.Tensor:
    """The weighted sum of the parts of the reward, each standardised within the group, [N].

    Args:
        batch: N trajectories; without parts, the reward itself is the only one.
        weights: Of the parts by name; those of the batch where a part has none here. One whose
            name no episode has is warned of once.
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
        total += _weight_of(name, used) * in_groups(standardised, values * 1.0, batch.group)
    return total
