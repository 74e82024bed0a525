"""The contexts of an episode as trajectories of their own, and an episode put together again.

What is done with one context at a time sees `alone(trajectory)`; of an episode with one, that is
the trajectory itself.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

from gymnast.types import Branch, Trajectory

_OF_CONTEXT = [each.name for each in fields(Branch)]


def alone(trajectory: Trajectory) -> list[Trajectory]:
    """Each context of an episode as a trajectory without branches.

    Returns:
        All of them, in order. Those of branches have the row, seed and end of the episode, and
        neither its metrics, nor parts of its reward, nor a teacher's prompt, which is the first
        context's.
    """
    if not trajectory.branches:
        return [trajectory]
    first = replace(trajectory, branches=(), order=())
    bare = replace(first, metrics={}, reward_parts={}, teacher_prompt_ids=())
    return [first, *(replace(bare, **vars(branch)) for branch in trajectory.branches)]


def together(trajectory: Trajectory, contexts: Sequence[Trajectory]) -> Trajectory:
    """The episode whose contexts are these.

    Args:
        trajectory: The episode.
        contexts: What has become of `alone(trajectory)`; each has the turns that it had.
    """
    first, *others = contexts
    if not others:
        return first
    branches = [Branch(**{name: getattr(each, name) for name in _OF_CONTEXT}) for each in others]
    return replace(first, branches=branches, order=trajectory.order)
