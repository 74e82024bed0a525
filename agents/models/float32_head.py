"""A head in float32 over a model in half precision: logits are products of unrounded sums.

In bfloat16 a logit of 20 is rounded to an eighth, so log-probabilities of the engine and of the
trainer, which sum in other orders, differ by steps of that size. MiniMax-M1 (arXiv:2506.13585,
section 3.2) computes its head in float32 for that reason. Here both multiply the same weight and
hidden states, in half precision, in float32. The weight is converted in blocks of the vocabulary,
so no second copy of it ever exists, and saved models stay as they are.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from gymnast.errors import ModelError

# How much of the weight is there in float32 at a time.
BLOCK_BYTES = 2**24


def logits_type(hidden: torch.Tensor) -> torch.dtype:
    """What a head in float32 computes in: float64 where the hidden states are."""
    return torch.promote_types(hidden.dtype, torch.float32)


def product(hidden: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Fill `out` [A, V], at least float32, with hidden [A, width] @ weight [V, width].T."""
    wide = hidden.to(out.dtype)
    for block in _blocks(weight):
        torch.mm(wide, weight[block].to(out.dtype).t(), out=out[:, block])
    return out


def add_gradients(
    slope: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    of_hidden: torch.Tensor | None,
    of_weight: torch.Tensor | None,
) -> None:
    """Add to the gradients of a product what the gradient `slope` [A, V] of its result makes.

    Args:
        slope: At least float32.
        hidden: [A, width].
        weight: [V, width].
        of_hidden: [A, width], or None where it is not asked for.
        of_weight: [V, width], or None.
    """
    wide = hidden.to(slope.dtype)
    total = torch.zeros_like(wide)
    for block in _blocks(weight):
        if of_hidden is not None:
            total.addmm_(slope[:, block], weight[block].to(slope.dtype))
        if of_weight is not None:
            of_weight[block] += slope[:, block].t() @ wide
    if of_hidden is not None:
        of_hidden += total


def _blocks(weight: torch.Tensor) -> Iterator[slice]:
    """Slices of the vocabulary."""
    length, width = weight.shape
    size = max(1, BLOCK_BYTES // (4 * width))
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


class Float32Head(nn.Linear):
    """A head whose weight is in half precision and whose product and result are in float32."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., V] of hidden states [..., width]."""
        function: Any = _Product
        logits: torch.Tensor = function.apply(hidden.flatten(0, -2), self.weight)
        logits = logits.unflatten(0, hidden.shape[:-1])
        return logits if self.bias is None else logits + self.bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight)
        wide = hidden.to(logits_type(hidden))
        return torch.cat([wide @ weight[block].to(wide.dtype).t() for block in _blocks(weight)], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        hidden, weight = ctx.saved_tensors
        of_hidden, of_weight = (
            torch.zeros_like(tensor) if needed else None
            for tensor, needed in zip((hidden, weight), ctx.needs_input_grad, strict=True)
        )
        add_gradients(slope, hidden, weight, of_hidden, of_weight)
        return of_hidden, of_weight


def use_float32_head(model: Any) -> None:
    """Have a model's head computed in float32, by whoever calls it; nothing else of it changes.

    Args:
        model: A causal language model of Transformers, before adapters are put around it.

    Raises:
        ModelError: Its head is not one matrix.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise ModelError(
            f"{type(model).__name__}: its head is {type(head).__name__}, and only one that is a "
            "torch.nn.Linear can be computed in float32. Leave model.float32_head out."
        )
    head.__class__ = Float32Head
