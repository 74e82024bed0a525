"""What a step costs in time and in memory, of the process it runs in (Linux).

Memory is the peak of what is resident (VmHWM, set back before the step) above what was resident
before it, so the weights and libraries do not count, and gradients and optimizer states do.
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
    """Of one step.

    Attributes:
        cost: Time.
        peak_bytes: Resident at the peak, above what was before.
        faults: Pages that were touched for the first time.
    """

    cost: Cost = field(default_factory=Cost)
    peak_bytes: int = 0
    faults: int = 0


@contextmanager
def measured() -> Iterator[StepCost]:
    """Gives a cost that is filled in at the end."""
    found = StepCost()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what lies about unused is not the step's
    before = _resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with Meter().measure() as found.cost:
        yield found
    found.faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    found.peak_bytes = _resident_bytes("VmHWM") - before


def _resident_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@dataclass(frozen=True)
class Result:
    """What one side did in one step.

    Attributes:
        loss: Of the batch.
        cost: Of the step.
        sequences: In each micro-batch.
        gradients: The file that holds them, {name: tensor}.
    """

    loss: float
    cost: StepCost
    sequences: list[int]
    gradients: Path


def first_gradients(exp_avg: dict[str, torch.Tensor], beta: float, folder: Path, side: str) -> Path:
    """Save the gradients that AdamW was given in its first step, as its first moments tell them.

    Args:
        exp_avg: Of each weight: (1 - beta) times its gradient.
        beta: AdamW's first.
        folder: Where to.
        side: Names the file.
    """
    path = folder / f"{side}.pt"
    torch.save({name: moment / (1 - beta) for name, moment in exp_avg.items()}, path)
    return path


def warm_up(model: torch.nn.Module) -> None:
    """One small forward and backward pass, for whatever is made at first use."""
    ids = torch.arange(10, 42, device=next(model.parameters()).device)[None]
    model(input_ids=ids, use_cache=False).logits.logsumexp(-1).sum().backward()
    model.zero_grad(set_to_none=True)
