"""The memory that passes took, as their device measured it, and how far off the estimate was.

The first update is measured pass by pass, between the allocator's counts before it, at its peak and
after it. What stays afterwards is its gradient, which grows while the activations shrink. So the
first pass of a step only bounds what its activations took; later passes, whose sums exist, tell.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from gymnast.trainers.learner.policy.micro_batches import MicroBatch

# Shorter passes take what does not grow with their length, and tell nothing about long ones.
FEWEST_MEASURED = 256
# A measurement changes the estimate by no more than this factor.
MOST_CORRECTED = 2.0


class Gauge(Protocol):
    """Counts the bytes that tensors take on a device."""

    def held(self) -> int:
        """Return the bytes that are allocated now."""

    def peak(self) -> int:
        """Return the most that was allocated at a time since `forget_peak`."""

    def forget_peak(self) -> None:
        """Let the peak begin again at what is allocated now."""


@dataclass(frozen=True)
class CudaGauge:
    """The counts of torch's allocator on a CUDA device."""

    device: torch.device

    def held(self) -> int:
        """Return the bytes that are allocated now."""
        return torch.cuda.memory_allocated(self.device)

    def peak(self) -> int:
        """Return the most that was allocated at a time since `forget_peak`."""
        return torch.cuda.max_memory_allocated(self.device)

    def forget_peak(self) -> None:
        """Let the peak begin again at what is allocated now."""
        torch.cuda.reset_peak_memory_stats(self.device)


def gauge_of(device: torch.device) -> Gauge | None:
    """Return what measures a device; None where nothing does."""
    return CudaGauge(device) if device.type == "cuda" else None


@dataclass(frozen=True)
class MeasuredPass:
    """A forward and backward pass, in bytes.

    Attributes:
        tokens: Of its micro-batch, as `Policy.split` counts them.
        actions: Of these, those that have logits.
        before: Allocated when it began.
        peak: The most that was allocated within it.
        after: Allocated when it was over.
    """

    tokens: int
    actions: int
    before: int
    peak: int
    after: int

    def off_by(self, estimated: int) -> float:
        """Return the factor by which an estimate of its activations is too small.

        1 where the measurement allows it: what stays of the pass may have been there at the peak
        or not.
        """
        most = self.peak - self.before
        least = self.peak - max(self.before, self.after)
        return min(max(1.0, least / estimated), most / estimated)


class PassMeter:
    """Measures passes.

    Args:
        gauge: Of the device.
        count_tokens: Of a micro-batch; `Policy.count_tokens`.

    Attributes:
        passes: Those that were made, in order.
    """

    def __init__(self, gauge: Gauge, count_tokens: Callable[[MicroBatch], int]) -> None:
        self._gauge, self._count_tokens = gauge, count_tokens
        self.passes: list[MeasuredPass] = []

    @contextmanager
    def measuring(self, batch: MicroBatch) -> Iterator[None]:
        """Measure the pass of a micro-batch that is made within the block."""
        self._gauge.forget_peak()
        before = self._gauge.held()
        yield
        tokens, actions = self._count_tokens(batch), len(batch.targets)
        peak, after = self._gauge.peak(), self._gauge.held()
        self.passes.append(MeasuredPass(tokens, actions, before, peak, after))


def correction(
    passes: Sequence[MeasuredPass], estimate: Callable[[MeasuredPass], int]
) -> float | None:
    """Return the factor by which estimates of activations are too small.

    Args:
        passes: Of one process.
        estimate: The bytes that were estimated for the activations and logits of a pass.

    Returns:
        The largest factor of the longer half of passes; None where there are no long ones.
    """
    longest = max((each.tokens for each in passes), default=0)
    if longest < FEWEST_MEASURED:
        return None
    return max(each.off_by(estimate(each)) for each in passes if 2 * each.tokens > longest)
