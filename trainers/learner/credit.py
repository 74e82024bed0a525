"""From rewards to an advantage for every turn or every action token, and metrics of these.

advantage/mean_abs          the mean absolute advantage of a turn; of a token, where the estimator
                            gives one a token
advantage/std               the standard deviation over all turns, or tokens
advantage/groups_alike      the share of groups whose episodes all have one reward; groups of one
                            do not count
advantage/episodes          the share of episodes with an advantage anywhere
advantage/out_of_range      the number of episodes without an advantage because a reward is beyond
                            `LARGEST_REWARD`; only where there are any
"""

from collections.abc import Mapping, Sequence
from itertools import chain, compress
from typing import Any

import torch

from gymnast.errors import ConfigError, shown
from gymnast.trainers.algorithms.advantages import Estimator, RewardBatch, by_turn
from gymnast.trainers.algorithms.registry import mark_of, name_of
from gymnast.trainers.learner.policy.in_time import turn_lengths
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory
from gymnast.types import Branch, Trajectory
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

# Advantages are computed in single precision, where squares of larger numbers are infinite.
LARGEST_REWARD = 1e18

Groups = Sequence[Sequence[Trajectory]]

_EITHER = "give one advantage a turn, or one an action token"


def with_advantages(
    groups: Groups,
    estimator: Estimator,
    weights: Mapping[str, float] | None = None,
) -> list[list[CreditedTrajectory]]:
    """Give every turn, or every action token, its advantage; the groups keep their shape.

    An episode with a reward beyond `LARGEST_REWARD` is excluded: the estimator does not see it, and
    its advantages are 0.

    Args:
        groups: Of the whole batch.
        estimator: From rewards to advantages.
        weights: Of the parts of the reward, by name.

    Raises:
        ConfigError: The estimator gave another number of advantages than there are turns or
            tokens, or has no mark that says which, where they are as many.
    """
    kept = [[is_in_range(trajectory) for trajectory in group] for group in groups]
    within = [list(compress(group, of_group)) for group, of_group in zip(groups, kept, strict=True)]
    batch = reward_batch(within, weights)
    given = estimator(batch) if len(batch.rewards) else []
    advantages, by_token = _checked(given, batch, estimator)
    remaining, excluded = iter(advantages), list[Trajectory]()

    def credited(trajectory: Trajectory, in_range: bool) -> CreditedTrajectory:
        if in_range:
            return CreditedTrajectory(trajectory, next(remaining), by_token)
        excluded.append(trajectory)
        places = trajectory.action_tokens if by_token else trajectory.steps
        return CreditedTrajectory(trajectory, torch.zeros(places), by_token)

    pairs = zip(groups, kept, strict=True)
    learned = [list(map(credited, group, of_group)) for group, of_group in pairs]
    _warn_of_excluded(excluded)
    return learned


def is_in_range(trajectory: Trajectory) -> bool:
    """Return True if no reward of an episode is beyond `LARGEST_REWARD`."""
    by_token = (reward for context in trajectory.contexts for reward in context.token_rewards)
    numbers = chain(
        trajectory.all_turn_rewards,
        (trajectory.reward,),
        trajectory.reward_parts.values(),
        by_token,
    )
    return all(abs(number) <= LARGEST_REWARD for number in numbers)


def _warn_of_excluded(excluded: Sequence[Trajectory]) -> None:
    if excluded:
        logger.warning(
            "%d episodes are not learned from: a reward is beyond %g, which single precision "
            "cannot square. Return smaller numbers from `reward`. The first has the reward %g "
            "(row: %s)",
            len(excluded),
            LARGEST_REWARD,
            excluded[0].reward,
            shown(excluded[0].row, 500),
        )


def has_spread(
    group: Sequence[Trajectory],
    estimator: Estimator,
    weights: Mapping[str, float] | None = None,
) -> bool:
    """Whether an estimator that compares the members of a group finds a difference in it.

    It is asked, because it alone knows what it looks at: rewards, their parts or those of turns.

    Args:
        group: Not empty.
        estimator: From rewards to advantages.
        weights: Of the parts of the reward, by name.

    Returns:
        Whether any advantage is not zero where the group is the whole batch.
    """
    within = list(filter(is_in_range, group))
    given = estimator(reward_batch([within], weights)) if within else []
    return any(bool((torch.as_tensor(values) != 0).any()) for values in given)


@by_turn
def all_alike(batch: RewardBatch) -> list[torch.Tensor]:
    """An estimator that gives every turn the advantage 1, whatever its reward."""
    return [torch.ones(len(rewards)) for rewards in batch.turn_rewards]


def advantage_metrics(groups: Sequence[Sequence[CreditedTrajectory]]) -> dict[str, float]:
    """Numbers about the advantages of a batch; see the top of this file.

    Args:
        groups: Of all processes.

    Returns:
        None where there are no trajectories.
    """
    episodes = [episode for group in groups for episode in group]
    if not episodes:
        return {}
    metrics = {"advantage/episodes": sum(e.trains for e in episodes) / len(episodes)}
    advantages = torch.cat([episode.advantages.float() for episode in episodes])
    if len(advantages):
        metrics["advantage/mean_abs"] = advantages.abs().mean().item()
        metrics["advantage/std"] = advantages.std(correction=0).item()
    excluded = sum(not is_in_range(episode.trajectory) for episode in episodes)
    if excluded:
        metrics["advantage/out_of_range"] = float(excluded)
    rewards = [{e.trajectory.reward for e in group} for group in groups if len(group) > 1]
    if rewards:
        metrics["advantage/groups_alike"] = sum(len(r) == 1 for r in rewards) / len(rewards)
    return metrics


def by_token(
    learned: Sequence[Sequence[CreditedTrajectory]], learned_from: Groups, played: Groups
) -> list[list[list[float]] | None]:
    """For each group that was played the advantages of its trajectories, by token.

    Args:
        learned: With the advantages, in the shape of `learned_from`.
        learned_from: Some of the groups that were played.
        played: All of them.

    Returns:
        In the shape of `played`, each as long as the trajectory's ids, those of its contexts one
        after another, 0.0 where the mask is 0; None for a group that was not learned from.
    """

    def expanded(credited: CreditedTrajectory) -> list[float]:
        values = torch.zeros(credited.trajectory.tokens)
        masks = [context.action_mask for context in credited.trajectory.contexts]
        mask = torch.tensor([bit for of_context in masks for bit in of_context], dtype=torch.bool)
        given = [context.token_advantages for context in credited.contexts]
        values[mask] = torch.cat(given).to(values)
        return values.tolist()

    given = {
        id(group): [expanded(credited) for credited in of_group]
        for group, of_group in zip(learned_from, learned, strict=True)
    }
    return [given.get(id(group)) for group in played]


def reward_batch(groups: Groups, weights: Mapping[str, float] | None = None) -> RewardBatch:
    """What an estimator sees of some groups; turns and tokens stand in order of time.

    Args:
        groups: Of the whole batch.
        weights: Of the parts of the reward, by name.
    """
    episodes = [trajectory for group in groups for trajectory in group]
    names = sorted({name for episode in episodes for name in episode.reward_parts})
    contexts = [context for episode in episodes for context in episode.contexts]
    stated = all(len(context.states) == len(context.turns) for context in contexts)
    return RewardBatch(
        rewards=torch.tensor([episode.reward for episode in episodes]),
        group=torch.tensor([number for number, group in enumerate(groups) for _ in group]),
        turn_rewards=[episode.all_turn_rewards for episode in episodes],
        parts={
            name: torch.tensor([episode.reward_parts.get(name, 0.0) for episode in episodes])
            for name in names
        },
        weights=weights or {},
        action_tokens=[turn_lengths(episode) for episode in episodes],
        token_rewards=[token_rewards(episode) for episode in episodes],
        states=[e.in_time([c.states for c in e.contexts]) for e in episodes] if stated else None,
    )


def token_rewards(trajectory: Trajectory) -> torch.Tensor:
    """The reward of each action token, [action tokens], in order of time.

    Where a trajectory has rewards by turn only, the last token of each turn has all of it; that of
    a turn without tokens is nowhere.
    """
    turns = trajectory.in_time([_by_turn(context) for context in trajectory.contexts])
    return torch.tensor([reward for turn in turns for reward in turn])


def _by_turn(context: Trajectory | Branch) -> list[list[float]]:
    """The rewards of the action tokens of each turn of a context."""
    turns: list[list[float]] = []
    for (start, end), reward in zip(context.turns, context.turn_rewards, strict=True):
        if context.token_rewards:
            turns.append(list(context.token_rewards[start:end]))
        else:
            turns.append([0.0] * (end - start - 1) + [reward] if end > start else [])
    return turns


def _checked(
    given: Any, batch: RewardBatch, estimator: Estimator
) -> tuple[list[torch.Tensor], bool]:
    """An estimator's advantages, and whether they are by token.

    Raises:
        ConfigError: They are neither by turn nor by token, or not what the estimator's mark says,
            or may be either.
    """
    name = name_of(estimator)
    if not hasattr(given, "__len__"):
        raise ConfigError(
            f"algorithm.estimator: {name} gave {type(given).__name__}; it must give a list with "
            "one tensor a trajectory, or be marked with @per_group if it sees one group's rewards"
        )
    if len(given) != len(batch.turn_rewards):
        raise ConfigError(
            f"algorithm.estimator: {name} gave {len(given)} advantages for "
            f"{len(batch.turn_rewards)} trajectories; it must give one tensor a trajectory"
        )
    advantages = [torch.as_tensor(values) for values in given]
    counts = {
        "turn": [len(rewards) for rewards in batch.turn_rewards],
        "token": [sum(tokens) for tokens in batch.action_tokens],
    }
    mark = mark_of(estimator, "gives")
    allowed = {kind: counts[kind] for kind in ([mark] if mark else counts)}
    for number, values in enumerate(advantages):
        fits = [each[number] for each in allowed.values()]
        if values.dim() != 1 or len(values) not in fits:
            wanted = f"be as its mark @by_{mark} says" if mark else _EITHER
            raise ConfigError(
                f"algorithm.estimator: {name} gave a tensor of shape {list(values.shape)} for "
                f"trajectory {number} of the batch, which has {counts['turn'][number]} turns and "
                f"{counts['token'][number]} action tokens; it must {wanted}"
            )
    lengths = [len(values) for values in advantages]
    kinds = [kind for kind, each in allowed.items() if each == lengths]
    if not kinds:
        raise _mixed(name, lengths, counts["turn"], counts["token"])
    if len(kinds) == 2 and any(tokens != 1 for turns in batch.action_tokens for tokens in turns):
        raise ConfigError(
            f"algorithm.estimator: {name} gave as many advantages as there are turns, and there "
            "are as many action tokens in each trajectory of the batch; say which they are: mark "
            "it with @advantages.by_turn or @advantages.by_token"
        )
    return advantages, kinds[0] == "token"


def _mixed(name: str, lengths: list[int], turns: list[int], tokens: list[int]) -> ConfigError:
    """The error of an estimator that gives some trajectories one kind, and others the other."""
    by_turn = next(n for n, length in enumerate(lengths) if length != tokens[n])
    by_token = next(n for n, length in enumerate(lengths) if length != turns[n])
    return ConfigError(
        f"algorithm.estimator: {name} gave one advantage a turn for trajectory {by_turn} of the "
        f"batch ({turns[by_turn]} turns, {tokens[by_turn]} action tokens) and one an action token "
        f"for trajectory {by_token} ({turns[by_token]} turns, {tokens[by_token]} action tokens); "
        "it must give the same kind for all"
    )
