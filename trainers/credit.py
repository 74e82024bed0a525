"""From rewards to an advantage for every turn."""

from collections.abc import Mapping, Sequence

import torch

from gymnast.errors import ConfigError
from gymnast.trainers.advantages import Estimator, RewardBatch
from gymnast.trainers.batch import Sample
from gymnast.trainers.rollout import PART
from gymnast.types import Trajectory

Groups = Sequence[Sequence[Trajectory]]


def with_advantages(
    groups: Groups,
    estimator: Estimator,
    weights: Mapping[str, float] | None = None,
) -> list[list[Sample]]:
    """Give every turn its advantage; the groups keep their shape.

    Args:
        groups: Of the whole batch.
        estimator: From rewards to advantages.
        weights: Of the parts of the reward, by name.

    Raises:
        ConfigError: The estimator gave another number of advantages.
    """
    rewards = [[_rewards(trajectory) for trajectory in group] for group in groups]
    batch = _reward_batch(rewards, weights or {})
    found = estimator(batch) if len(batch.rewards) else []
    if len(found) != len(batch.rewards):
        raise ConfigError(
            f"algorithm.estimator: gave {len(found)} advantages for {len(batch.rewards)} "
            "trajectories; it must give one tensor a trajectory"
        )
    advantages = iter(found)
    return [[Sample(trajectory, next(advantages)) for trajectory in group] for group in groups]


def _rewards(trajectory: Trajectory) -> tuple[list[float], dict[str, float]]:
    """The rewards of its turns, and their named parts."""
    named = {k.removeprefix(PART): v for k, v in trajectory.metrics.items() if k.startswith(PART)}
    return list(trajectory.turn_rewards), named


def _reward_batch(
    groups: Sequence[Sequence[tuple[list[float], dict[str, float]]]], weights: Mapping[str, float]
) -> RewardBatch:
    episodes = [episode for group in groups for episode in group]
    names = sorted({name for _, parts in episodes for name in parts})
    return RewardBatch(
        rewards=torch.tensor([float(sum(turns)) for turns, _ in episodes]),
        group=torch.tensor([number for number, group in enumerate(groups) for _ in group]),
        turn_rewards=[turns for turns, _ in episodes],
        parts={n: torch.tensor([parts.get(n, 0.0) for _, parts in episodes]) for n in names},
        weights=weights,
    )
