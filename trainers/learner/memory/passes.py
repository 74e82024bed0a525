"""How much memory one forward and backward pass takes, by the number of its tokens.

Short passes are made and recorded, at three lengths. A model does the same at each length, only
with longer tensors: the records hold the same events, and the size of each is a polynomial in the
length. Each is extrapolated by itself, and the peak read from the whole record, also where it lies
elsewhere at another length (short passes have it where the gradient of the embedding is made, long
ones where the backward pass begins). Where the events differ (experts that got no token, a
recurrence computed in chunks), longer passes are made, and their peaks are extrapolated.

Logits, of which only so many exist at a time, are added by `estimate.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from gymnast.trainers.learner.memory.trace import AllocationTrace, live_bytes
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Span, StopReason, Trajectory

# The lengths of the short passes, and of those that are made where the short ones differ: a
# multiple of the chunks in which recurrences are computed.
SHORT, LONG = 32, 256
# How many action tokens each pass has: few, so that logits are computed at once.
ACTIONS = 8


@dataclass(frozen=True)
class _Record:
    """One pass: the storages it made, and how many events its forward pass had."""

    sizes: np.ndarray
    events: list[int]
    forward: int


@dataclass(frozen=True)
class PassMemory:
    """What a pass takes beside the weights and earlier gradients.

    Attributes:
        unit: Record i is of a pass of (i + 1) * unit tokens.
        records: Three of them.
    """

    unit: int
    records: Sequence[_Record]

    def peak_bytes(self, tokens: int) -> int:
        """The most that is allocated at any time in a pass of this many tokens."""
        if not self.comparable:
            return self._of_peaks(tokens, lambda record, live: live.max())
        return int(self._live(tokens).max())

    def kept_bytes(self, tokens: int) -> int:
        """What is allocated where the forward pass ends, when logits are computed."""
        if not self.comparable:
            return self._of_peaks(tokens, lambda record, live: live[record.forward - 1])
        return int(self._live(tokens)[self.records[0].forward - 1])

    @cached_property
    def comparable(self) -> bool:
        """Whether all records have the same events."""
        first, *others = self.records
        return all(other.events == first.events for other in others)

    def _live(self, tokens: int) -> np.ndarray:
        sizes = np.stack([record.sizes for record in self.records])
        return live_bytes(_extrapolated(sizes, tokens / self.unit), self.records[0].events)

    def _of_peaks(
        self, tokens: int, measure: Callable[[_Record, np.ndarray], np.floating[Any]]
    ) -> int:
        found = [measure(each, live_bytes(each.sizes, each.events)) for each in self.records]
        return int(_extrapolated(np.array(found, dtype=np.float64), tokens / self.unit))


def _extrapolated(values: np.ndarray, length: float) -> np.ndarray:
    """The quadratic through three values, [3, ...] at lengths 1, 2 and 3, at another length."""
    first, second, third = values
    grows = length - 1
    bend = np.maximum(0.0, third - 2 * second + first)
    found: np.ndarray = first + grows * (second - first) + bend * grows * (grows - 1) / 2
    return found


def measure_pass(policy: Policy, in_one_process: bool = True) -> PassMemory:
    """Make a few short passes, and record them; no gradient and no random state is changed.

    Args:
        policy: Not divided over processes, and without gradients.
        in_one_process: No other process computes gradients that are added to these.
    """
    found = PassMemory(SHORT, _records(policy, SHORT, in_one_process))
    if found.comparable:
        return found
    return PassMemory(LONG, _records(policy, LONG, in_one_process))


def _records(policy: Policy, unit: int, in_one_process: bool) -> list[_Record]:
    training = policy.training
    weights = [weight for weight in policy.parameters() if weight.requires_grad]
    # In a step of several passes, a gradient is added to a sum as soon as it is complete, and then
    # freed; in another dtype and with several processes, when a pass is over (`gradient_sums.py`).
    hooks = [
        weight.register_post_accumulate_grad_hook(_drop_gradient)
        for weight in weights
        if in_one_process or weight.dtype == torch.float32
    ]
    policy.train()
    try:
        with torch.random.fork_rng(devices=[]):
            return [_record(policy, weights, count * unit) for count in (1, 2, 3)]
    finally:
        policy.train(training)
        for hook in hooks:
            hook.remove()


def _record(policy: Policy, weights: Sequence[torch.Tensor], tokens: int) -> _Record:
    batch = micro_batch([_trajectory(tokens)], policy.device)
    with AllocationTrace(policy.device) as trace:
        logprobs = policy(batch)
        forward = len(trace.events)
        logprobs.sum().backward()
    for weight in weights:
        weight.grad = None
    return _Record(np.array(trace.sizes, dtype=np.float64), trace.events, forward)


def _drop_gradient(weight: torch.Tensor) -> None:
    weight.grad = None


def _trajectory(tokens: int) -> CreditedTrajectory:
    """A trajectory of this length, which ends with an action."""
    start = tokens - ACTIONS
    trajectory = Trajectory(
        ids=[1 + number % 8 for number in range(tokens)],
        action_mask=[0] * start + [1] * ACTIONS,
        logprobs=[0.0] * tokens,
        prompt_length=start,
        turns=[Span(start, tokens)],
        turn_rewards=[0.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )
    return CreditedTrajectory(trajectory, torch.ones(1))
