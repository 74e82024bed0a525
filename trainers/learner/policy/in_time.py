"""The action tokens of an episode in order of time, and those of each of its contexts.

Rewards and advantages are those of an episode, turn after turn as it was played; the model computes
one context after another. Of an episode with one context, the two are the same.
"""

from collections.abc import Sequence

import torch

from gymnast.types import Trajectory


def turn_lengths(trajectory: Trajectory) -> list[int]:
    """How many action tokens each turn has, in order of time."""
    return trajectory.in_time(_lengths(trajectory))


def divided(values: torch.Tensor, trajectory: Trajectory) -> list[torch.Tensor]:
    """Those of each context, [its action tokens], of one number an action token.

    Args:
        values: [action tokens], in order of time.
        trajectory: The episode.
    """
    if not trajectory.branches:
        return [values]
    parts: list[list[torch.Tensor]] = [[values[:0]] for _ in trajectory.contexts]
    turns = values.split(turn_lengths(trajectory))
    for context, turn in zip(trajectory.order, turns, strict=True):
        parts[context].append(turn)
    return [torch.cat(part) for part in parts]


def merged(of_contexts: Sequence[torch.Tensor], trajectory: Trajectory) -> torch.Tensor:
    """What `divided` divides.

    Args:
        of_contexts: [action tokens] of each context.
        trajectory: The episode.
    """
    if not trajectory.branches:
        return of_contexts[0]
    pairs = zip(of_contexts, _lengths(trajectory), strict=True)
    turns = trajectory.in_time([values.split(lengths) for values, lengths in pairs])
    return torch.cat(turns)


def _lengths(trajectory: Trajectory) -> list[list[int]]:
    """How many action tokens each turn of each context has."""
    return [[end - start for start, end in context.turns] for context in trajectory.contexts]
