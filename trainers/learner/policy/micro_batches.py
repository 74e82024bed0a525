"""From trajectories with advantages to the tensors that one forward and backward pass takes.

A micro-batch holds the packed tokens of some trajectories and, for each action token among them,
what the loss needs. Which tokens are actions comes from `action_mask` alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gymnast.trainers.learner.policy.packing import Packed, pack
from gymnast.types import Trajectory


@dataclass(frozen=True)
class Sample:
    """A trajectory with one advantage for each of its turns."""

    trajectory: Trajectory
    advantages: torch.Tensor  # [turns]

    @property
    def trains(self) -> bool:
        """Whether any token of it has a gradient."""
        turns = zip(self.trajectory.turns, self.advantages.tolist(), strict=True)
        return any(advantage != 0 and end > start for (start, end), advantage in turns)


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
    """

    packed: Packed
    predicted_from: torch.Tensor
    targets: torch.Tensor
    sampled_logprobs: torch.Tensor
    advantages: torch.Tensor
    sequences: torch.Tensor


def micro_batch(samples: Sequence[Sample], device: torch.device) -> MicroBatch:
    """Pack some samples and lay out their action tokens."""
    packed = pack([sample.trajectory.ids for sample in samples])
    sources, targets, logprobs, advantages = [], [], [], []
    for sample, index in zip(samples, packed.index, strict=True):
        trajectory = sample.trajectory
        actions = np.flatnonzero(trajectory.action_mask)  # never 0: a prompt comes first
        sources.append(index[actions - 1])
        targets.append(np.array(trajectory.ids)[actions])
        logprobs.append(np.array(trajectory.logprobs)[actions])
        lengths = torch.tensor([end - start for start, end in trajectory.turns])
        advantages.append(sample.advantages.repeat_interleave(lengths))
    return MicroBatch(
        packed,
        torch.tensor(np.concatenate(sources), device=device),
        torch.tensor(np.concatenate(targets), device=device),
        torch.tensor(np.concatenate(logprobs), dtype=torch.float32, device=device),
        torch.cat(advantages).to(device=device, dtype=torch.float32),
        torch.tensor(np.repeat(np.arange(len(samples)), [len(s) for s in sources]), device=device),
    )


def split(
    groups: Sequence[Sequence[Sample]], tokens: int, *, also_idle: bool = False
) -> list[list[Sample]]:
    """Divide the samples that train into micro-batches of about this many packed tokens.

    Members of a group stay together where they fit, because they share their prompt. One
    trajectory longer than `tokens` makes a micro-batch of its own, and none is divided. Those
    without action tokens are in none.

    Args:
        groups: The samples.
        tokens: How many packed tokens.
        also_idle: Whether samples without any advantage are taken too.
    """
    batches: list[list[Sample]] = []
    room = 0
    for group in groups:
        prompt_counted = False
        for sample in group:
            trajectory = sample.trajectory
            if not (sample.trains or (also_idle and trajectory.action_tokens)):
                continue
            length = len(trajectory.ids)
            cost = length - trajectory.prompt_length if prompt_counted else length
            if not batches or cost > room:
                batches.append([])
                room, cost = tokens, length
            batches[-1].append(sample)
            room -= cost
            prompt_counted = True
    return batches
