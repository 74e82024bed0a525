"""An estimate, part by part, of the most memory that a step of training takes.

    weights       of the model, of its divided copy, of a reference, of a teacher
    optimizer     float32 master weights of what is trained in another dtype, and two moments
    gradients     float32 sums of several passes; those of one pass, in its own dtype, are smaller
    activations   what the largest pass allocates beside these, as measured (`passes.py`)
    logits        what those computed at once add where the pass holds most
    kv            keys and values, where requests wait while the learner works

These are the tensors while the learner works. `trainer.kv_budget_bytes` limits keys and values.
Without `trainer.max_staleness` the learner has all memory: while episodes are sampled, keys and
values stand in the place of gradients, activations and logits.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gymnast.agents.models.adapters import folded_bytes
from gymnast.agents.models.quantized import scale_tensors

GIB = 2**30
# A row of logits takes this many bytes for each token of the vocabulary: the logits, in float32
# too where the model is in half precision, and their exponentials (kernels take less); where
# autograd differentiates entropies, also the tensors that it keeps.
LOGIT_BYTES, WITH_ENTROPIES = 10, 24
# What AdamW keeps of a trained weight, and a float32 copy or gradient of it.
MOMENTS_BYTES, FLOAT32_BYTES = 8, 4


@dataclass(frozen=True)
class Division:
    """Among how many processes what is divided; 1 where each has the whole.

    Attributes:
        weights: The trained ones, of which every process also holds the whole model.
        gradients: Their gradients.
        optimizer: Master weights and moments.
        buckets: Whether DDP keeps every gradient a second time, to send it.
    """

    weights: int = 1
    gradients: int = 1
    optimizer: int = 1
    buckets: bool = False


@dataclass(frozen=True)
class FixedMemory:
    """What a step takes whatever its length, in bytes.

    Attributes:
        weights: Of all models.
        optimizer: Master weights and moments.
        gradients: Their sums.
        held: What of this is allocated already.
        folded: Copies of weights, while adapters are folded into them for sampling.
    """

    weights: int
    optimizer: int
    gradients: int
    held: int
    folded: int = 0


@dataclass(frozen=True)
class MemoryEstimate:
    """The parts of a step at its peak, in bytes; see the top of this file.

    Attributes:
        weights: Of all models.
        optimizer: Master weights and moments.
        gradients: Their sums.
        activations: Of the largest pass.
        logits: What they add to it.
        kv: Keys and values that stay.
        folded: Of `FixedMemory`; there while episodes are sampled alone, and not in the total.
    """

    weights: int
    optimizer: int
    gradients: int
    activations: int
    logits: int
    kv: int = 0
    folded: int = 0

    @property
    def total(self) -> int:
        """Of all parts."""
        passes = self.activations + self.logits
        return self.weights + self.optimizer + self.gradients + passes + self.kv


def fixed_memory(
    model: torch.nn.Module,
    trained: Iterable[torch.Tensor],
    division: Division,
    *,
    copies: int = 0,
    others: Iterable[torch.nn.Module] = (),
    later: int = 0,
) -> FixedMemory:
    """What weights, optimizer and gradients take in this process.

    Args:
        model: Whole.
        trained: Its weights that are trained; of divided ones, the sizes of the whole count.
        division: Over processes.
        copies: How many frozen copies of the model there are, for a reference or a teacher.
        others: Further models: a teacher.
        later: The bytes of weights that come only in the course of the run: refreshed ones.
    """
    whole = _model_bytes(model)
    trained = list(trained)
    count = sum(map(_numel, trained))
    mastered = sum(_numel(weight) for weight in trained if weight.dtype != torch.float32)
    weights = whole * (1 + copies) + sum(map(_model_bytes, others))
    weights += whole // division.weights if division.weights > 1 else 0
    master = FLOAT32_BYTES * mastered // division.optimizer
    gradients = FLOAT32_BYTES * count // division.gradients
    if division.buckets:
        gradients += sum(_numel(weight) * weight.element_size() for weight in trained)
    return FixedMemory(
        weights=weights + later,
        optimizer=master + MOMENTS_BYTES * count // division.optimizer,
        gradients=gradients,
        held=weights + master,
        folded=folded_bytes(model),
    )


def logits_bytes(model: Any, actions: int, most_bytes: int, *, entropies: bool) -> int:
    """What the logits take that are computed at once.

    Args:
        model: Of Transformers.
        actions: How many tokens have logits.
        most_bytes: How much is computed at once, in float32.
        entropies: Autograd differentiates the entropies of the distributions.
    """
    vocabulary = model.config.get_text_config().vocab_size
    rows = min(actions, max(1, most_bytes // (4 * vocabulary)))
    return int(rows * vocabulary * (WITH_ENTROPIES if entropies else LOGIT_BYTES))


def shown_bytes(nbytes: float) -> str:
    """A size in words: "1.25 GiB", "310 MiB"."""
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB else f"{nbytes / 2**20:.0f} MiB"


def _model_bytes(model: torch.nn.Module) -> int:
    tensors = (*model.parameters(), *model.buffers(), *scale_tensors(model))
    return sum(t.numel() * t.element_size() for t in tensors)


def _numel(weight: torch.Tensor) -> int:
    return int(getattr(weight, "ds_numel", weight.numel()))  # ZeRO-3 empties its weights
