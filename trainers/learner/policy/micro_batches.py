"""From trajectories with advantages to the tensors that one forward and backward pass takes.

A micro-batch holds the packed tokens of some trajectories and, for each action token among them,
what the loss needs. Which tokens are actions comes from `action_mask` alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from gymnast.trainers.learner.policy.packing import Packed, pack
from gymnast.types import Trajectory


@dataclass(frozen=True)
class CreditedTrajectory:
    """A trajectory with its advantages.

    Attributes:
        trajectory: The episode.
        advantages: [turns], or [action tokens] where they are `by_token`.
        by_token: Which of the two.
    """

    trajectory: Trajectory
    advantages: torch.Tensor
    by_token: bool = False

    @cached_property
    def token_advantages(self) -> torch.Tensor:
        """The advantage of each action token, [action tokens]."""
        if self.by_token:
            return self.advantages
        lengths = [end - start for start, end in self.trajectory.turns]
        return self.advantages.repeat_interleave(torch.tensor(lengths, dtype=torch.long))

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
        sequences: [A], which of the trajectories each is of, from 0 on.
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
    """Pack some trajectories and lay out their action tokens."""
    packed = pack([episode.trajectory.ids for episode in episodes])
    sources, targets, logprobs, advantages = [], [], [], []
    for episode, index in zip(episodes, packed.index, strict=True):
        trajectory = episode.trajectory
        actions = np.flatnonzero(trajectory.action_mask)  # never 0: a prompt comes first
        sources.append(index[actions - 1])
        targets.append(np.array(trajectory.ids)[actions])
        logprobs.append(np.array(trajectory.logprobs)[actions])
        advantages.append(episode.token_advantages)
    return MicroBatch(
        packed,
        torch.tensor(np.concatenate(sources), device=device),
        torch.tensor(np.concatenate(targets), device=device),
        torch.tensor(np.concatenate(logprobs), dtype=torch.float32, device=device),
        torch.cat(advantages).to(device=device, dtype=torch.float32),
        torch.tensor(np.repeat(np.arange(len(episodes)), [len(s) for s in sources]), device=device),
        _experts([episode.trajectory for episode in episodes], packed, device),
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
    """Divide the trajectories that train into micro-batches of about this many packed tokens.

    Members of a group stay together where they fit, because they share their prompt. A trajectory
    longer than `tokens` makes a micro-batch of its own, and none is divided. Those without action
    tokens are left out. Rows that are not packed: `trainers/learner/policy/padded.py`.

    Args:
        groups: With their advantages.
        tokens: How many packed tokens.
        also_idle: Whether trajectories without any advantage are taken too.
    """
    batches: list[list[CreditedTrajectory]] = []
    room = 0
    for group in groups:
        prompt_counted = False
        for episode in group:
            trajectory = episode.trajectory
            if not episode.is_computed(also_idle=also_idle):
                continue
            length = len(trajectory.ids)
            cost = length - trajectory.prompt_length if prompt_counted else length
            if not batches or cost > room:
                batches.append([])
                room, cost = tokens, length
            batches[-1].append(episode)
            room -= cost
            prompt_counted = True
    return batches
