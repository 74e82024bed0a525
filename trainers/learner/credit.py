"""From rewards to an advantage for every turn, and metrics of these.

advantage/mean_abs          the mean absolute advantage of a turn
advantage/std               the standard deviation over all turns
advantage/groups_alike      the share of groups whose episodes all have one reward; groups of one
                            do not count
advantage/episodes          the share of episodes with an advantage in any turn
"""

from collections.abc import Mapping, Sequence

import torch

from gymnast.errors import ConfigError
from gymnast.trainers.algorithms.advantages import Estimator, RewardBatch
from gymnast.trainers.learner.policy.micro_batches import Sample
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
    batch = _reward_batch(groups, weights or {})
    found = estimator(batch) if len(batch.rewards) else []
    if len(found) != len(batch.rewards):
        raise ConfigError(
            f"algorithm.estimator: gave {len(found)} advantages for {len(batch.rewards)} "
            "trajectories; it must give one tensor a trajectory"
        )
    advantages = iter(found)
    return [[Sample(trajectory, next(advantages)) for trajectory in group] for group in groups]


def advantage_metrics(samples: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """Numbers about the advantages of a batch; see the top of this file.

    Args:
        samples: Of all processes, by group.

    Returns:
        None where there are no samples.
    """
    groups = [group for group in samples if group]
    if not groups:
        return {}
    some = [sample.trains for group in groups for sample in group]
    metrics = {"advantage/episodes": sum(some) / len(some)}
    turns = torch.cat([sample.advantages.float() for group in groups for sample in group])
    if len(turns):
        metrics["advantage/mean_abs"] = turns.abs().mean().item()
        metrics["advantage/std"] = turns.std(correction=0).item()
    rewards = [{s.trajectory.reward for s in group} for group in groups if len(group) > 1]
    if rewards:
        metrics["advantage/groups_alike"] = sum(len(r) == 1 for r in rewards) / len(rewards)
    return metrics


def _reward_batch(groups: Groups, weights: Mapping[str, float]) -> RewardBatch:
    episodes = [trajectory for group in groups for trajectory in group]
    names = sorted({name for episode in episodes for name in episode.reward_parts})
    return RewardBatch(
        rewards=torch.tensor([episode.reward for episode in episodes]),
        group=torch.tensor([number for number, group in enumerate(groups) for _ in group]),
        turn_rewards=[list(episode.turn_rewards) for episode in episodes],
        parts={
            name: torch.tensor([episode.reward_parts.get(name, 0.0) for episode in episodes])
            for name in names
        },
        weights=weights,
    )
