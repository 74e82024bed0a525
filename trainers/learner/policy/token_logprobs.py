"""Log-probabilities of given tokens from hidden states, without ever holding all logits.

Logits of a few hundred positions exist at a time, in one buffer that is used again and again, and
are computed a second time in the backward pass, which turns them into their gradient in place and
adds to the gradient of the head's weight in place. (Autograd alone would make a gradient of the
size of the whole head for each chunk and add these up.)

The entropy of each distribution comes from the exponentials that its normaliser is the sum of: one
product of two rows more, without a gradient.

`trainers/learner/policy/policy.py` chooses the positions, and computes heads that are more than a
matrix itself.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from gymnast.agents.models import float32_head

# The logit of an id that is no token: its probability is exactly 0, and 0 * log 0 stays 0.
NEVER = -1e9


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    *,
    scale: float,
    at_once: int,
    dtype: torch.dtype | None = None,
    entropies: bool = False,
    unused: torch.Tensor | None = None,
) -> torch.Tensor:
    """Log-probabilities of `targets`: log softmax(scale * (hidden @ weight.T + bias)).

    Args:
        hidden: [A, width].
        weight: [V, width].
        bias: [V] or None.
        targets: [A].
        scale: Multiplies the logits.
        at_once: How many positions have their logits at the same time.
        dtype: In which logits and their gradients are computed; by default that of `hidden`.
        entropies: Whether the entropies of the distributions are returned, too; these have no
            gradient.
        unused: Ids that are no tokens, whose probability is 0; None: there are none.

    Returns:
        [A], float32 (float64 where `hidden` is); with `entropies` [2, A]: these, and the entropies.
    """
    function: Any = _TokenLogprobs
    given = (hidden, weight, bias, targets, scale, at_once, dtype, unused)
    logprobs, measured = function.apply(*given)
    return torch.stack([logprobs, measured]) if entropies else logprobs


def sums_and_entropies(
    logits: torch.Tensor, into: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """log(sum(exp(logits))) and the entropy of softmax(logits), each [a].

    Args:
        logits: [a, V]; it is overwritten.
        into: [a, V], for the exponentials.
    """
    largest = logits.amax(dim=-1, keepdim=True)
    largest.masked_fill_(largest.isinf(), 0.0)
    shifted = logits.sub_(largest)
    total = torch.exp(shifted, out=into).sum(dim=-1)
    logs = total.log()
    # - sum p log p = log total - sum p * shifted, and p = exponentials / total
    mean = torch.linalg.vecdot(into, shifted) / total
    return logs + largest[:, 0], logs - mean


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        scale: float,
        at_once: int,
        dtype: torch.dtype | None,
        unused: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = torch.empty(len(hidden), dtype=kept, device=hidden.device)
        sums, entropies = torch.empty_like(logprobs), torch.empty_like(logprobs)
        buffer = _buffer(hidden, weight, at_once, dtype)
        exponentials = _buffer(hidden, weight, at_once, kept)
        for chunk in _chunks(len(hidden), at_once):
            logits = _logits(hidden[chunk], weight, bias, scale, buffer)
            if unused is not None:
                logits.index_fill_(-1, unused, NEVER)
            chosen = logits.gather(-1, targets[chunk, None])[:, 0]
            sums[chunk], entropies[chunk] = sums_and_entropies(logits, exponentials[: len(logits)])
            logprobs[chunk] = chosen - sums[chunk]
        ctx.save_for_backward(hidden, weight, bias, targets, sums)
        ctx.scale, ctx.at_once, ctx.dtype, ctx.unused = scale, at_once, dtype, unused
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        """Gradients of `hidden`, `weight` and `bias`, as far as they are asked for."""
        hidden, weight, bias, targets, sums = ctx.saved_tensors
        of_hidden, of_weight, of_bias = (
            torch.zeros_like(tensor) if needed else None
            for tensor, needed in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        )
        buffer = _buffer(hidden, weight, ctx.at_once, ctx.dtype)
        for chunk in _chunks(len(hidden), ctx.at_once):
            logits = _logits(hidden[chunk], weight, bias, ctx.scale, buffer)
            slope = (gradient[chunk] * ctx.scale)[:, None]
            # d logprob / d logit = [it is the target] - probability
            logits.sub_(sums[chunk, None]).exp_().mul_(-slope)
            logits.scatter_add_(-1, targets[chunk, None], slope)
            if ctx.unused is not None:
                logits.index_fill_(-1, ctx.unused, 0.0)
            if buffer.dtype == hidden.dtype:
                logits = logits.to(hidden.dtype)  # [a, V]
                if of_hidden is not None:
                    torch.mm(logits, weight, out=of_hidden[chunk])
                if of_weight is not None:
                    of_weight.addmm_(logits.t(), hidden[chunk])
            else:
                into = None if of_hidden is None else of_hidden[chunk]
                float32_head.add_gradients(logits, hidden[chunk], weight, into, of_weight)
            if of_bias is not None:
                of_bias += logits.sum(0)
        return of_hidden, of_weight, of_bias, *[None] * 5


def _chunks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _buffer(
    hidden: torch.Tensor, weight: torch.Tensor, at_once: int, dtype: torch.dtype | None
) -> torch.Tensor:
    return hidden.new_empty((min(at_once, len(hidden)), len(weight)), dtype=dtype)


def _logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    buffer: torch.Tensor,
) -> torch.Tensor:
    """Scaled logits [a, V], at least float32; in the buffer if that is."""
    into = buffer[: len(hidden)]
    if buffer.dtype == hidden.dtype:
        logits = torch.mm(hidden, weight.t(), out=into)
    else:
        logits = float32_head.product(hidden, weight, into)
    if bias is not None:
        logits += bias
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.mul_(scale) if scale != 1.0 else logits
