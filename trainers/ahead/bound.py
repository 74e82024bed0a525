"""The staleness of tokens: how many updates lie between the weights that sampled and those now.

    staleness of a token = version of the weights before the update - version that sampled it

The bound holds for every token that is learned from. What is older is context: its mask is 0 in
what the loss sees. So the rewards, and the advantages made of them, are those of whole episodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gymnast.errors import UsageError
from gymnast.trainers.base.contexts import alone, together
from gymnast.types import Branch, Span, Trajectory, VersionSpan

Groups = Sequence[Sequence[Trajectory]]

UNKNOWN = -1


def token_versions(trajectory: Trajectory) -> np.ndarray:
    """Which version sampled each action token, [action tokens], context by context.

    Raises:
        UsageError: The agent does not say it of all of them.
    """
    sampled = np.concatenate([_sampled_by(context) for context in trajectory.contexts])
    if (sampled == UNKNOWN).any():
        raise UsageError(
            "max_staleness: the agent does not say which weights sampled which tokens "
            "(`Completion.versions`), so their staleness is not known; set max_staleness to 0, or "
            "sample with an agent that does"
        )
    return sampled


def _sampled_by(context: Trajectory | Branch) -> np.ndarray:
    versions = np.full(len(context.ids), UNKNOWN)
    for start, end, version in context.versions:
        versions[start:end] = version
    sampled: np.ndarray = versions[np.asarray(context.action_mask, dtype=bool)]
    return sampled


def oldest(trajectories: Iterable[Trajectory]) -> int | None:
    """The oldest version that sampled any of their tokens; None where there are none."""
    return min((int(v.min()) for t in trajectories if len(v := token_versions(t))), default=None)


def within(trajectory: Trajectory, least: int) -> Trajectory:
    """A trajectory whose action tokens were all sampled by a version or later ones.

    In each of its contexts, all up to the last one that was not are given. Rewards and lengths stay
    as they are; a turn may be left without action tokens.

    Args:
        trajectory: As it was played.
        least: The version.
    """
    return together(trajectory, [_within(context, least) for context in alone(trajectory)])


def _within(trajectory: Trajectory, least: int) -> Trajectory:
    start = max((end for _, end, version in trajectory.versions if version < least), default=0)
    if not start:
        return trajectory
    rewards = trajectory.token_rewards
    return replace(
        trajectory,
        action_mask=[0] * start + trajectory.action_mask[start:],
        logprobs=[0.0] * start + trajectory.logprobs[start:],
        turns=[Span(min(max(a, start), b), b) for a, b in trajectory.turns],
        token_rewards=[*[0.0] * start, *rewards[start:]] if rewards else (),
        versions=[VersionSpan(max(a, start), b, v) for a, b, v in trajectory.versions if b > start],
    )


def staleness_metrics(groups: Groups, version: int, most: int) -> dict[str, float]:
    """Check the bound, and measure the staleness of what is about to be learned from.

        staleness/mean, staleness/max   of the tokens

    Args:
        groups: As the loss sees them.
        version: Of the weights before the update.
        most: The bound.
    """
    versions = [token_versions(trajectory) for group in groups for trajectory in group]
    ages = version - np.concatenate([np.empty(0, dtype=int), *versions])
    if not len(ages):
        return {}
    assert ages.min() >= 0, f"a token of version {ages.min() + version} before the update {version}"
    assert ages.max() <= most, f"a token is {ages.max()} updates old, and the bound is {most}"
    return {"staleness/mean": float(ages.mean()), "staleness/max": float(ages.max())}
