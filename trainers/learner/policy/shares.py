"""A share of a batch, laid out for one optimisation step: micro-batches and what they need.

All processes know all trajectories, and each computes every n-th micro-batch, n being their number.
Micro-batches are made so small that all processes get as many of about one size. Where they cannot
be, some processes end with one that weighs nothing, so that all take part in every forward and
backward pass.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from gymnast.trainers.algorithms.aggregations import Aggregation
from gymnast.trainers.learner.policy.head import TeacherStates
from gymnast.trainers.learner.policy.in_time import merged
from gymnast.trainers.learner.policy.micro_batches import (
    CreditedTrajectory,
    MicroBatch,
    micro_batch,
)
from gymnast.types import Span, StopReason, Trajectory

Scorer = Callable[[MicroBatch], torch.Tensor]


class Divide(Protocol):
    """Divides trajectories into micro-batches; see `split` in `micro_batches.py`."""

    def __call__(
        self,
        groups: Sequence[Sequence[CreditedTrajectory]],
        tokens: int,
        *,
        also_idle: bool = False,
    ) -> list[list[CreditedTrajectory]]:
        """Micro-batches of about `tokens` tokens."""


@dataclass(frozen=True)
class Scored:
    """A micro-batch of A action tokens with what its loss is made of besides the policy.

    Attributes:
        batch: The tokens.
        weights: [A], how much each token's loss counts; 0 where there is nothing to learn from.
        old_logprobs: [A], under the policy before the first step of its batch; None where those of
            the pass that is about to be made are the same, or where nobody asks.
        reference_logprobs: [A], under the reference, where there is one in the loss.
        trajectories: What the tokens are of, in their order: each context of an episode by itself.
        teacher: Has the teacher read the tokens, where its divergence is in the loss: returns what
            it makes of them, or None where it has no say.
    """

    batch: MicroBatch
    weights: torch.Tensor
    old_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    trajectories: Sequence[Trajectory] = ()
    teacher: Callable[[], TeacherStates | None] | None = None


@dataclass(frozen=True)
class Share:
    """What one optimisation step learns from; the numbers are over all processes.

    Attributes:
        batches: Of this process; the same number in each.
        normaliser: What the weighted sum of the tokens' losses is divided by.
        tokens: Action tokens, those without a gradient included.
        trajectories: Those that are computed, each context of an episode by itself, in the order of
            the micro-batches of all processes.
        episodes: How many they are of.
    """

    batches: list[Scored]
    normaliser: float
    tokens: float
    trajectories: Sequence[Trajectory]
    episodes: int = 0


def make_share(
    groups: Sequence[Sequence[CreditedTrajectory]],
    aggregation: Aggregation,
    accelerator: Accelerator,
    *,
    divide: Divide,
    tokens_per_microbatch: int,
    also_idle: bool,
) -> Share:
    """Divide some trajectories into micro-batches, and take those of this process.

    An aggregation counts the tokens of whole episodes, wherever their contexts are.

    Args:
        groups: Of all processes, with their advantages.
        aggregation: How their tokens' losses are summed. Trajectories without any advantage are in
            its normaliser, whether they are computed or not.
        accelerator: Knows which process this is.
        divide: Into micro-batches; `Policy.split`.
        tokens_per_microbatch: How many tokens one forward and backward pass takes, at most.
        also_idle: Whether trajectories without any advantage are computed.
    """
    device = accelerator.device
    lengths = torch.tensor([e.trajectory.action_tokens for group in groups for e in group])
    split_by = partial(divide, groups, also_idle=also_idle)
    chosen = _for_all(split_by, tokens_per_microbatch, accelerator.num_processes)
    mine = chosen[accelerator.process_index :: accelerator.num_processes]
    most = math.ceil(len(chosen) / accelerator.num_processes)
    batches = []
    for contexts in mine:
        batch = micro_batch(contexts, device)
        of_episodes = torch.tensor([context.sequence_tokens for context in contexts])
        weights = aggregation(of_episodes).tokens.to(device)[batch.sequences]
        batches.append(Scored(batch, weights, trajectories=[c.trajectory for c in contexts]))
    if len(batches) < most:
        nothing = placeholder()
        batch = micro_batch([nothing], device)
        weights = torch.zeros(1, device=device)
        batches.append(Scored(batch, weights, trajectories=[nothing.trajectory]))
    return Share(
        batches,
        normaliser=float(aggregation(lengths).normaliser) if len(lengths) else 0.0,
        tokens=float(lengths.sum()),
        trajectories=[context.trajectory for contexts in chosen for context in contexts],
        episodes=sum(
            any(context.is_computed(also_idle=also_idle) for context in episode.contexts)
            for group in groups
            for episode in group
        ),
    )


def _for_all(
    split_by: Callable[[int], list[list[CreditedTrajectory]]], tokens: int, processes: int
) -> list[list[CreditedTrajectory]]:
    """Divide trajectories into micro-batches of which, if possible, all processes get as many.

    Args:
        split_by: Divides them into micro-batches of at most so many tokens.
        tokens: Of a micro-batch, at most.
        processes: How many there are.
    """
    chosen = split_by(tokens)
    if processes == 1 or not chosen:
        return chosen
    wanted = math.ceil(len(chosen) / processes) * processes
    length = sum(len(context.trajectory.ids) for contexts in chosen for context in contexts)
    low, high = 0, min(tokens, length)  # the smallest size that makes no more than wanted
    while high - low > max(1, high // 16):
        middle = (low + high) // 2
        smaller = split_by(middle)
        if len(smaller) > wanted:
            low = middle
        else:
            high, chosen = middle, smaller
    return chosen


def with_logprobs(
    share: Share, *, old: Scorer | None = None, reference: Scorer | None = None
) -> Share:
    """Add log-probabilities by the policy as it is now, and by the reference."""
    scored = [
        replace(
            entry,
            old_logprobs=old(entry.batch) if old is not None else None,
            reference_logprobs=reference(entry.batch) if reference is not None else None,
        )
        for entry in share.batches
    ]
    return replace(share, batches=scored)


def with_old_logprobs(share: Share, logprobs: Sequence[torch.Tensor]) -> Share:
    """Add log-probabilities, [A] of each micro-batch, where there are none yet."""
    scored = [
        entry if entry.old_logprobs is not None else replace(entry, old_logprobs=now)
        for entry, now in zip(share.batches, logprobs, strict=True)
    ]
    return replace(share, batches=scored)


def by_trajectory(
    share: Share, values: Sequence[torch.Tensor], accelerator: Accelerator
) -> dict[int, torch.Tensor]:
    """Numbers of tokens as those of contexts, in all processes; a collective call.

    Args:
        share: Of this process.
        values: [A], of each of its micro-batches.
        accelerator: Of this process.

    Returns:
        [action tokens], by the `id` of each of `share.trajectories`.
    """
    mine = [
        each.cpu().split(torch.bincount(scored.batch.sequences).tolist())
        for scored, each in zip(share.batches, values, strict=True)
    ]
    gathered = gather_object([mine])
    # In the order of `share.trajectories`: processes took the micro-batches in turn.
    found = [each for row in zip(*gathered, strict=True) for batch in row for each in batch]
    found = found[: len(share.trajectories)]  # after these come placeholders
    return dict(zip(map(id, share.trajectories), found, strict=True))


def by_episode(
    credited: Sequence[Sequence[CreditedTrajectory]], of_contexts: Mapping[int, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Numbers of the tokens of contexts as those of episodes.

    Args:
        credited: The groups of a share.
        of_contexts: As `by_trajectory` returns them.

    Returns:
        [action tokens], in order of time, by the `id` of each trajectory.
    """
    none = torch.zeros(0)
    return {
        id(episode.trajectory): merged(
            [of_contexts.get(id(context.trajectory), none) for context in episode.contexts],
            episode.trajectory,
        )
        for group in credited
        for episode in group
    }


def placeholder() -> CreditedTrajectory:
    """A trajectory without gradient, for a process that has fewer micro-batches than another."""
    trajectory = Trajectory(
        ids=[1, 1],
        action_mask=[0, 1],
        logprobs=[0.0, 0.0],
        prompt_length=1,
        turns=[Span(1, 2)],
        turn_rewards=[0.0],
        stop_reason=StopReason.error,
        terminated=False,
        truncated=True,
    )
    return CreditedTrajectory(trajectory, torch.zeros(1))


def sum_over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Each number added up over all processes."""
    ours = torch.tensor(values, dtype=torch.float32, device=accelerator.device)
    total: torch.Tensor = accelerator.reduce(ours, reduction="sum")
    return total.tolist()


def largest_over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """The largest of each number over all processes; NaN where one of them has it."""
    ours = torch.tensor([list(values)], dtype=torch.float32, device=accelerator.device)
    gathered: torch.Tensor = accelerator.gather(ours)  # [processes, values]
    return gathered.amax(dim=0).tolist()
