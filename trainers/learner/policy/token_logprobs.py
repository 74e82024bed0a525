"""Log-probabilities of given tokens from hidden states, without ever holding all logits.

Logits exist a tile at a time, in one buffer that is used again and again, and are computed a second
time in the backward pass, which turns them into their gradient in place. The forward pass takes
whole rows, a few hundred positions at a time. The backward pass knows their sums already, so its
tiles can be narrower and taller: the gradient of a row of the weight is one product over all
positions of a tile, and usually over all there are, in place of a sum of many that are rounded to
the weight's type. (Autograd alone would make a gradient of the size of the whole head for each
chunk and add these up.)

A head that is not trained, as with adapters, needs no second time: the forward pass multiplies the
gradient of the log-probabilities with the weight at once, and keeps the product, [A, width], in
place of the hidden states.

`trainers/learner/policy/logit_tiles.py` has what is done to a tile.
`trainers/learner/policy/policy.py` chooses the positions, and computes heads that are more than a
matrix itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from gymnast.agents.models import float32_head
from gymnast.trainers.learner.policy.logit_tiles import (
    NEVER,
    Columns,
    Measures,
    differentiate,
    differentiate_plain,
    kernels_serve,
    measure,
    measure_plain,
    scratch_tiles,
)

# Narrower tiles are a multiple of this, so that their rows are aligned.
ALIGNMENT = 128


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
    entropy_gradients: bool = False,
    unused: torch.Tensor | None = None,
    plain: bool = False,
) -> torch.Tensor:
    """Log-probabilities of `targets`: log softmax(scale * (hidden @ weight.T + bias)).

    Args:
        hidden: [A, width].
        weight: [V, width].
        bias: [V] or None.
        targets: [A].
        scale: Multiplies the logits.
        at_once: The number of positions whose logits exist at the same time.
        dtype: In which logits and their gradients are computed; by default that of `hidden`.
        entropies: Return the entropies of the distributions, too.
        entropy_gradients: The entropies have gradients; without, they are constants.
        unused: Ids that are no tokens, whose probability is 0; None: there are none.
        plain: Use plain torch on every device, and compute logits a second time in every backward
            pass.

    Returns:
        [A], float32 (float64 where `hidden` is); with `entropies` [2, A]: these, and the entropies.
    """
    mask = None
    if unused is not None:
        mask = torch.zeros(len(weight), dtype=torch.bool, device=hidden.device)
        mask.index_fill_(0, unused, True)
    trained_head = weight.requires_grad or (bias is not None and bias.requires_grad)
    settings = _Settings(
        scale=scale,
        elements=at_once * len(weight),
        dtype=dtype or hidden.dtype,
        entropies=entropies,
        entropy_gradients=entropies and entropy_gradients,
        unused=mask,
        kernels=not plain and kernels_serve(hidden),
        gradients_at_once=not plain
        and torch.is_grad_enabled()
        and hidden.requires_grad
        and not trained_head
        and not (entropies and entropy_gradients),
    )
    function: Any = _TokenLogprobs
    logprobs, measured = function.apply(hidden, weight, bias, targets, settings)
    return torch.stack([logprobs, measured]) if entropies else logprobs


@dataclass(frozen=True)
class _Settings:
    """Of one call.

    Attributes:
        elements: The size of a tile.
        gradients_at_once: Compute the gradient of the hidden states in the forward pass, but for
            the slopes of the log-probabilities.
    """

    scale: float
    elements: int
    dtype: torch.dtype
    entropies: bool
    entropy_gradients: bool
    unused: torch.Tensor | None
    kernels: bool
    gradients_at_once: bool


class _Tiles:
    """The products of hidden states and a head, a tile at a time, and what is made of each."""

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        settings: _Settings,
        *,
        entropies: bool,
    ) -> None:
        self._hidden, self._weight, self._targets = hidden, weight, targets
        self._columns = Columns(settings.scale, bias, settings.unused)
        self._settings = settings
        self._entropies = entropies
        elements = min(settings.elements, len(hidden) * len(weight))
        self._buffer = hidden.new_empty(elements, dtype=settings.dtype)
        count = 0 if settings.kernels else scratch_tiles(settings.dtype, entropies=entropies)
        kept = torch.promote_types(settings.dtype, torch.float32)
        self._scratch = hidden.new_empty((count, elements), dtype=kept)

    def measure(self, rows: slice) -> tuple[Measures, torch.Tensor | None]:
        """Measure distributions; with `gradients_at_once` also [a, width], see `_pull`."""
        settings, targets = self._settings, self._targets[rows]
        logits = self._products(rows, slice(0, len(self._weight)))
        if not settings.kernels:
            found = measure_plain(
                logits,
                targets,
                self._columns,
                self._scratch,
                entropies=self._entropies,
                gradients=settings.gradients_at_once,
            )
        else:
            found = measure(logits, targets, self._columns, entropies=self._entropies)
            if settings.gradients_at_once:
                ones = torch.ones_like(found.sums)
                differentiate(logits, targets, self._columns, found, ones, with_target=False)
        return found, self._pull(logits, rows, found) if settings.gradients_at_once else None

    def differentiate(
        self,
        rows: slice,
        block: slice,
        measures: Measures,
        slopes: torch.Tensor,
        entropy_slopes: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute d loss / d logits of a tile, [a, v]."""
        logits = self._products(rows, block)
        given = (logits, self._targets[rows], self._columns.part(block), measures, slopes)
        if self._settings.kernels:
            return differentiate(*given, entropy_slopes)
        return differentiate_plain(*given, entropy_slopes, self._scratch)

    def _products(self, rows: slice, block: slice) -> torch.Tensor:
        hidden, weight = self._hidden[rows], self._weight[block]
        into = self._buffer[: len(hidden) * len(weight)].view(len(hidden), len(weight))
        if into.dtype == hidden.dtype:
            return torch.mm(hidden, weight.t(), out=into)
        return float32_head.product(hidden, weight, into)

    def own_slopes(
        self,
        rows: slice,
        measures: Measures,
        slopes: torch.Tensor | None = None,
        entropy_slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute d loss / d logit of each target, [a]; d logprob / d logit without slopes.

        It is computed in float32 from the log-probability: where a target is nearly certain, its
        probability is 1 in half precision.
        """
        own = -torch.expm1(measures.logprobs)  # 1 - probability
        if slopes is not None:
            own *= slopes
        if entropy_slopes is not None:
            assert measures.entropies is not None
            logprobs = measures.logprobs.clamp(min=NEVER)  # 0 * log 0 stays 0
            own -= entropy_slopes * logprobs.exp() * (logprobs + measures.entropies)
        if self._settings.unused is not None:
            own.masked_fill_(self._settings.unused[self._targets[rows]], 0.0)
        return own.mul_(self._settings.scale)

    def _pull(self, others: torch.Tensor, rows: slice, measures: Measures) -> torch.Tensor:
        """Compute d logprobs / d hidden, [a, width], of the gradients of all ids but the targets.

        In half precision the product of these is rounded before the targets' own part is added,
        so the two do not cancel in what was rounded.
        """
        pull = self._weight[self._targets[rows]] * self.own_slopes(rows, measures)[:, None]
        if others.dtype == self._weight.dtype:
            return pull.add_(others @ self._weight)
        float32_head.add_gradients(others, self._hidden[rows], self._weight, pull, None)
        return pull


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        settings: _Settings,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        kept = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = torch.empty(len(hidden), dtype=kept, device=hidden.device)
        sums = torch.empty_like(logprobs)
        entropies = torch.empty_like(logprobs) if settings.entropies else None
        pulls = torch.empty_like(hidden, dtype=kept) if settings.gradients_at_once else None
        tiles = _Tiles(hidden, weight, bias, targets, settings, entropies=settings.entropies)
        for rows in _blocks(len(hidden), max(1, settings.elements // len(weight))):
            found, pull = tiles.measure(rows)
            logprobs[rows], sums[rows] = found.logprobs, found.sums
            if entropies is not None and found.entropies is not None:
                entropies[rows] = found.entropies
            if pulls is not None and pull is not None:
                pulls[rows] = pull
        ctx.set_materialize_grads(False)
        ctx.settings, ctx.dtype = settings, hidden.dtype
        if pulls is not None:
            ctx.save_for_backward(pulls)
        else:
            trained = entropies if settings.entropy_gradients else None
            ctx.save_for_backward(hidden, weight, bias, targets, logprobs, sums, trained)
        if entropies is not None and not settings.entropy_gradients:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, slopes: torch.Tensor | None, entropy_slopes: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Compute gradients of `hidden`, `weight` and `bias`, as far as they are needed."""
        settings: _Settings = ctx.settings
        if slopes is None and entropy_slopes is None:
            return (None,) * 5
        if settings.gradients_at_once:
            assert slopes is not None
            (pulls,) = ctx.saved_tensors
            return (pulls * slopes[:, None]).to(ctx.dtype), None, None, None, None
        hidden, weight, bias, targets, logprobs, sums, entropies = ctx.saved_tensors
        slopes = torch.zeros_like(sums) if slopes is None else slopes
        tiles = _Tiles(
            hidden, weight, bias, targets, settings, entropies=entropy_slopes is not None
        )
        gradients = _Gradients(hidden, weight, bias, targets, settings, ctx.needs_input_grad)
        height, width = _tile_shape(hidden, weight, settings.elements)
        for rows in _blocks(len(hidden), height):
            part = None if entropies is None else entropies[rows]
            measures = Measures(logprobs[rows], sums[rows], part)
            given = (slopes[rows], None if entropy_slopes is None else entropy_slopes[rows])
            gradients.begin(rows, tiles.own_slopes(rows, measures, *given))
            for block in _blocks(len(weight), width):
                gradients.add(tiles.differentiate(rows, block, measures, *given), block)
            gradients.end()
        return gradients.of_hidden, gradients.of_weight, gradients.of_bias, None, None


class _Gradients:
    """Gradients of hidden states, weight and bias, added up over tiles.

    Those of hidden states in half precision are added up in float32. The products of tiles are
    rounded to bfloat16, so the targets' own part, which is most of the sum, is not among them.
    """

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        settings: _Settings,
        needed: Sequence[bool],
    ) -> None:
        self._hidden, self._weight, self._targets = hidden, weight, targets
        self.of_hidden = torch.empty_like(hidden) if needed[0] else None
        self.of_weight = torch.zeros_like(weight) if needed[1] else None
        self.of_bias = None if bias is None or not needed[2] else torch.zeros_like(bias)
        self._own_apart = settings.dtype == torch.bfloat16
        self._widened = settings.dtype != hidden.dtype
        self._rows = slice(0, 0)
        self._total: torch.Tensor | None = None  # of the hidden states of these rows

    def begin(self, rows: slice, own_slopes: torch.Tensor) -> None:
        """Begin with the tiles of some positions, whose targets have these d loss / d logits."""
        self._rows = rows
        if self.of_hidden is None:
            return
        self._total = torch.zeros_like(self.of_hidden[rows], dtype=own_slopes.dtype)
        if self._own_apart:
            torch.mul(self._weight[self._targets[rows]], own_slopes[:, None], out=self._total)

    def add(self, slopes: torch.Tensor, block: slice) -> None:
        """Add the part of one tile, whose d loss / d logits [a, v] may be overwritten."""
        hidden, weight = self._hidden[self._rows], self._weight[block]
        of_weight = None if self.of_weight is None else self.of_weight[block]
        if self.of_bias is not None:
            self.of_bias[block] += slopes.sum(0)
        if self._widened:
            float32_head.add_gradients(slopes, hidden, weight, self._total, of_weight)
            return
        if of_weight is not None:
            of_weight.addmm_(slopes.t(), hidden, beta=0.0 if self._rows.start == 0 else 1.0)
        if self._total is None:
            return
        if self._own_apart:
            _leave_out(slopes, self._targets[self._rows] - block.start)
        if self._total.dtype == slopes.dtype:
            self._total.addmm_(slopes, weight)
        else:
            self._total += slopes @ weight

    def end(self) -> None:
        """End the tiles of these positions."""
        if self.of_hidden is not None and self._total is not None:
            self.of_hidden[self._rows] = self._total


def _leave_out(tile: torch.Tensor, column: torch.Tensor) -> None:
    """Set one column of each row to 0, where the tile has it."""
    inside = (column >= 0) & (column < tile.shape[1])
    column = column.clamp(0, tile.shape[1] - 1)[:, None]
    tile.scatter_(-1, column, tile.gather(-1, column).masked_fill_(inside[:, None], 0.0))


def _blocks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _tile_shape(hidden: torch.Tensor, weight: torch.Tensor, elements: int) -> tuple[int, int]:
    """Return how many positions and ids a tile of the backward pass has.

    A taller tile sums more positions in one product, and a wider one more ids. Squares read and
    write the gradients least. Of wide models they are less tall, because the gradient of a tile's
    hidden states, in float32, is to take no more memory than the tile in half precision. In float16
    parts of a sum over ids may be too small to be exact, so a tile has all ids.
    """
    vocabulary, width = weight.shape
    if hidden.dtype == torch.float16:
        return max(1, elements // vocabulary), vocabulary
    height = max(1, min(len(hidden), isqrt(elements), elements // (2 * width)))
    most = max(1, min(vocabulary, elements // height))
    if ALIGNMENT < most < vocabulary:
        most -= most % ALIGNMENT
    even = -(-vocabulary // -(-vocabulary // most))  # tiles of about the same size
    return height, min(most, -(-even // ALIGNMENT) * ALIGNMENT)
