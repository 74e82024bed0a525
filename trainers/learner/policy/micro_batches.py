"""From trajectories with advantages to the tensors that one forward and backward pass takes.

A micro-batch holds the packed tokens of some trajectories and, for each action token among them,
what the loss needs. Which tokens are actions comes from `action_mask` alone. Each context of an
episode is a sequence of its own, packed as trajectories are: what contexts share at their beginning
is computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from gymnast.trainers.base.contexts import alone
from gymnast.trainers.learner.policy.in_time import divided, turn_lengths
from gymnast.trainers.learner.policy.packing import Packed, common, pack
from gymnast.types import Trajectory


@dataclass(frozen=True)
class CreditedTrajectory:
    """A trajectory with its advantages.

    Attributes:
        trajectory: The episode, or one of its contexts alone.
        advantages: [turns], or [action tokens] where they are `by_token`; of all contexts, in order
            of time.
        by_token: Which of the two.
        episode_tokens: The action tokens of the whole episode, where it is one of several contexts;
            None where the trajectory is the whole.
    """

    trajectory: Trajectory
    advantages: torch.Tensor
    by_token: bool = False
    episode_tokens: int | None = None

    @cached_property
    def token_advantages(self) -> torch.Tensor:
        """The advantage of each action token, [action tokens], in order of time."""
        if self.by_token:
            return self.advantages
        lengths = torch.tensor(turn_lengths(self.trajectory), dtype=torch.long)
        return self.advantages.repeat_interleave(lengths)

    @cached_property
    def contexts(self) -> "list[CreditedTrajectory]":
        """Each context of the episode with its own advantages; itself where it has one."""
        if not self.trajectory.branches:
            return [self]
        tokens, advantages = self.trajectory.action_tokens, self.token_advantages
        of_contexts = divided(advantages, self.trajectory)
        return [
            CreditedTrajectory(context, values, by_token=True, episode_tokens=tokens)
            for context, values in zip(alone(self.trajectory), of_contexts, strict=True)
        ]

    @property
    def sequence_tokens(self) -> int:
        """The action tokens that an aggregation counts: those of the whole episode."""
        whole = self.episode_tokens
        return self.trajectory.action_tokens if whole is None else whole

    @property
    def trains(self) -> bool:
        """Whether any token of it has a gradient."""
        return bool((self.token_advantages != 0).any())

    def is_computed(self, *, also_idle: bool) -> bool:
        """Whether it goes through the model; `also_idle` takes those without a gradient too."""
        return self.trains or (also_idle and self.trajectory.action_tokens > 0)


@dataclass(frozen=True)
class MicroBatch:
    """Packed trajectories, and their A action tokens.

    Attributes:
        packed: The tokens.
        predicted_from: [A], the packed token whose output predicts each action token.
        targets: [A], the action tokens.
        sampled_logprobs: [A], as the agent reported them.
        advantages: [A].
        sequences: [A], which of the contexts of all trajectories each is of, from 0 on.
        experts: [N, layers, chosen], those that were chosen for each packed token while sampling,
            -1 where they are not known; None where none are. Tokens that several trajectories
            share have those of one of them.
    """

    packed: Packed
    predicted_from: torch.Tensor
    targets: torch.Tensor
    sampled_logprobs: torch.Tensor
    advantages: torch.Tensor
    sequences: torch.Tensor
    experts: torch.Tensor | None = None


def micro_batch(episodes: Sequence[CreditedTrajectory], device: torch.device) -> MicroBatch:
    """Pack some trajectories and lay out their action tokens, context by context."""
    contexts = [context for episode in episodes for context in episode.contexts]
    packed = pack([context.trajectory.ids for context in contexts])
    sources, targets, logprobs, advantages = [], [], [], []
    for context, index in zip(contexts, packed.index, strict=True):
        trajectory = context.trajectory
        actions = np.flatnonzero(trajectory.action_mask)  # never 0: a prompt comes first
        sources.append(index[actions - 1])
        targets.append(np.array(trajectory.ids)[actions])
        logprobs.append(np.array(trajectory.logprobs)[actions])
        advantages.append(context.token_advantages)
    return MicroBatch(
        packed,
        torch.tensor(np.concatenate(sources), device=device),
        torch.tensor(np.concatenate(targets), device=device),
        torch.tensor(np.concatenate(logprobs), dtype=torch.float32, device=device),
        torch.cat(advantages).to(device=device, dtype=torch.float32),
        torch.tensor(np.repeat(np.arange(len(contexts)), [len(s) for s in sources]), device=device),
        _experts([context.trajectory for context in contexts], packed, device),
    )


def _experts(
    trajectories: Sequence[Trajectory], packed: Packed, device: torch.device
) -> torch.Tensor | None:
    """The experts of packed tokens; see `MicroBatch`."""
    given = [t.experts for t in trajectories if t.experts is not None]
    if not given:
        return None
    experts = np.full((len(packed.ids), *given[0].shape[1:]), -1, dtype=given[0].dtype)
    for trajectory, index in zip(trajectories, packed.index, strict=True):
        if trajectory.experts is not None:
            known = (trajectory.experts >= 0).all(axis=(1, 2))
            experts[index[known]] = trajectory.experts[known]
    return torch.tensor(experts, device=device)


def split(
    groups: Sequence[Sequence[CreditedTrajectory]], tokens: int, *, also_idle: bool = False
) -> list[list[CreditedTrajectory]]:
    """Divide the contexts that train into micro-batches of about this many packed tokens.

    Those of a group stay together where they fit, because they share their prompt, or a part of it.
    A context longer than `tokens` makes a micro-batch of its own, and none is divided. Those
    without action tokens are left out. Rows that are not packed:
    `trainers/learner/policy/padded.py`.

    Args:
        groups: With their advantages.
        tokens: How many packed tokens.
        also_idle: Whether contexts without any advantage are taken too.
    """
    batches: list[list[CreditedTrajectory]] = []
    room = 0
    for group in groups:
        beside: list[np.ndarray] = []  # the ids of those of the group in the last micro-batch
        for context in (context for episode in group for context in episode.contexts):
            if not context.is_computed(also_idle=also_idle):
                continue
            ids = np.array(context.trajectory.ids)
            cost = len(ids) - _shared(ids[: context.trajectory.prompt_length], beside)
            if not batches or cost > room:
                batches.append([])
                room, cost, beside = tokens, len(ids), []
            batches[-1].append(context)
            beside.append(ids)
            room -= cost
    return batches


def _shared(prompt: np.ndarray, others: Sequence[np.ndarray]) -> int:
    """How much of a prompt stands at the beginning of one of some other sequences."""
    found = 0
    for other in others:
        if found == len(prompt):
            break
        found = max(found, common(prompt, other))
    return found
