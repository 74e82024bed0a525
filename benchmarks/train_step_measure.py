"""What a step costs its process in time and in memory (on Linux).

Memory is the peak resident size (VmHWM, reset before the step) above the resident size before it,
so weights and libraries do not count, but gradients and optimizer states do; where the process uses
a GPU, the peak of what is allocated there, likewise.
"""

import ctypes
import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rollout_measure import Cost, Meter


@dataclass
class StepCost:
    """The cost of one step.

    Attributes:
        cost: Its time.
        peak_bytes: Memory at the peak, above that before the step.
        faults: Pages that were touched for the first time.
    """

    cost: Cost = field(default_factory=Cost)
    peak_bytes: int = 0
    faults: int = 0


@contextmanager
def measured() -> Iterator[StepCost]:
    """Yield a cost that is filled in at the end of the block."""
    found = StepCost()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # unused memory does not count for the step
    before = _resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    on_gpu = torch.cuda.is_initialized()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with Meter().measure() as found.cost:
        yield found
        if on_gpu:
            torch.cuda.synchronize()
    found.faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    peak = torch.cuda.max_memory_allocated() if on_gpu else _resident_bytes("VmHWM")
    found.peak_bytes = peak - before


def _resident_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@dataclass(frozen=True)
class Result:
    """The result of one step on one side.

    Attributes:
        loss: The loss of the batch.
        cost: The cost of the step.
        sequences: Sequences in each micro-batch.
        gradients: The file that holds them, {name: tensor}.
    """

    loss: float
    cost: StepCost
    sequences: list[int]
    gradients: Path


def first_gradients(exp_avg: dict[str, torch.Tensor], beta: float, folder: Path, side: str) -> Path:
    """Save the gradients that AdamW got in its first step, computed from its first moments.

    Args:
        exp_avg: For each weight, (1 - beta) times its gradient.
        beta: AdamW's first beta.
        folder: Where the file goes.
        side: Names the file.
    """
    path = folder / f"{side}.pt"
    torch.save({name: moment / (1 - beta) for name, moment in exp_avg.items()}, path)
    return path


def warm_up(model: torch.nn.Module) -> None:
    """Do a small forward and backward pass, for everything that is made at first use."""
    ids = torch.arange(10, 42, device=next(model.parameters()).device)[None]
    model(input_ids=ids, use_cache=False).logits.logsumexp(-1).sum().backward()
    model.zero_grad(set_to_none=True)
