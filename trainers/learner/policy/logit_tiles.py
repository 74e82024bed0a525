"""Tiles of logits: log-probabilities, entropies and gradients, by Triton kernels or plain torch.

A tile [a, v] has the logits of `a` positions for `v` consecutive ids. `measure` needs all ids of
its positions; `differentiate` turns any tile into the gradient of a loss in place. A kernel reads
the logits once, in the type that the matrix product wrote, and writes nothing of their size but
the gradient. In plain torch half precision is copied to float32 first, and each operation is a pass
of its own.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

# The logit of an id that is no token: its probability is exactly 0, and 0 * log 0 stays 0.
NEVER = -1e9

# Logits of a step of the loop over a row, or of a program, and its warps. Both kernels compile for
# compute capabilities 8.0 to 12.0 without shared memory to speak of and without spilling.
MEASURE_BLOCK, MEASURE_WARPS = 4096, 8
GRADIENT_BLOCK, GRADIENT_WARPS = 2048, 4


@dataclass(frozen=True)
class Columns:
    """From the products of a tile's columns to logits: scale * (product + bias).

    Attributes:
        scale: Multiplies the logits.
        bias: [v] or None.
        unused: [v] bool: the ids that are no tokens, whose logit is NEVER; None if there are none.
        first: The id of the first column.
    """

    scale: float
    bias: torch.Tensor | None = None
    unused: torch.Tensor | None = None
    first: int = 0

    def part(self, block: slice) -> "Columns":
        """Return some of these columns."""
        return replace(
            self,
            bias=None if self.bias is None else self.bias[block],
            unused=None if self.unused is None else self.unused[block],
            first=self.first + block.start,
        )


@dataclass(frozen=True)
class Measures:
    """Of the distributions of some positions, each [a], float32 or float64.

    Attributes:
        logprobs: Of the targets.
        sums: log(sum(exp(logits))).
        entropies: None where these were not requested.
    """

    logprobs: torch.Tensor
    sums: torch.Tensor
    entropies: torch.Tensor | None


def kernels_serve(hidden: torch.Tensor) -> bool:
    """Return True if the kernels can compute logits of such hidden states, on their device."""
    return (
        hidden.device.type == "cuda"
        and hidden.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and _device_has_kernels(hidden.device)
    )


@cache
def _device_has_kernels(device: torch.device) -> bool:
    return (
        torch.cuda.is_available()  # not in a test of shapes
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def measure(
    logits: torch.Tensor, targets: torch.Tensor, columns: Columns, *, entropies: bool
) -> Measures:
    """Measure distributions by a kernel.

    Args:
        logits: [a, V], contiguous: the products of hidden states and the head, of any type that the
            kernels serve. They stay as they are.
        targets: [a] int64; an id outside of the vocabulary has the log-probability NaN.
        columns: All of the vocabulary.
        entropies: Compute the entropies too.
    """
    from gymnast.trainers.learner.policy import logit_kernels

    count, vocabulary = logits.shape
    out = logits.new_empty((3, count), dtype=torch.float32)
    bias, unused = _given(columns, logits)
    with _as_current_device(logits):
        if count:
            logit_kernels.measure_rows[(count,)](
                logits,
                targets.contiguous(),
                bias,
                unused,
                *out,
                float(columns.scale),
                vocabulary,
                BLOCK=MEASURE_BLOCK,
                HAS_BIAS=columns.bias is not None,
                HAS_UNUSED=columns.unused is not None,
                HAS_ENTROPIES=entropies,
                num_warps=MEASURE_WARPS,
            )
    return Measures(out[0], out[1], out[2] if entropies else None)


def differentiate(
    logits: torch.Tensor,
    targets: torch.Tensor,
    columns: Columns,
    measures: Measures,
    slopes: torch.Tensor,
    entropy_slopes: torch.Tensor | None = None,
    *,
    with_target: bool = True,
) -> torch.Tensor:
    """Turn logits into d loss / d logits in place by a kernel, and return them.

    Args:
        logits: [a, v], contiguous, as for `measure`.
        targets: [a] int64.
        columns: Those of the tile.
        measures: Of these positions.
        slopes: [a]: d loss / d log-probability.
        entropy_slopes: [a]: d loss / d entropy; None if the loss has no entropies.
        with_target: False writes 0 where the target is.
    """
    from gymnast.trainers.learner.policy import logit_kernels

    count, width = logits.shape
    bias, unused = _given(columns, logits)
    sums, slopes = measures.sums, slopes.contiguous()
    with _as_current_device(logits):
        if count:
            logit_kernels.differentiate_tile[(count, -(-width // GRADIENT_BLOCK))](
                logits,
                targets.contiguous(),
                bias,
                unused,
                sums,
                slopes,
                sums if measures.entropies is None else measures.entropies,
                slopes if entropy_slopes is None else entropy_slopes.contiguous(),
                float(columns.scale),
                columns.first,
                width,
                BLOCK=GRADIENT_BLOCK,
                HAS_BIAS=columns.bias is not None,
                HAS_UNUSED=columns.unused is not None,
                HAS_ENTROPIES=entropy_slopes is not None,
                HAS_TARGET=with_target,
                num_warps=GRADIENT_WARPS,
            )
    return logits


def _as_current_device(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Make a tensor's GPU that of this thread: Triton launches kernels there."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _given(columns: Columns, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bias and unused ids for a kernel, or any tensor where it does not read them."""
    bias, unused = columns.bias, columns.unused
    return (
        logits if bias is None else bias.contiguous(),
        logits if unused is None else unused.view(torch.int8),
    )


def scratch_tiles(dtype: torch.dtype, *, entropies: bool) -> int:
    """Return the number of tiles in at least float32 that plain torch takes for itself."""
    return (dtype.itemsize < 4) + entropies


def measure_plain(
    logits: torch.Tensor,
    targets: torch.Tensor,
    columns: Columns,
    scratch: torch.Tensor,
    *,
    entropies: bool,
    gradients: bool = False,
) -> Measures:
    """Measure distributions in plain torch.

    Args:
        logits: [a, V], as for `measure`. They are overwritten: with `gradients` by the gradients
            of the log-probabilities, 0 where the target is.
        targets: [a].
        columns: All of the vocabulary.
        scratch: [scratch_tiles, a * V or more], at least float32.
        entropies: Compute the entropies too.
        gradients: Leave the gradients in `logits`.
    """
    shifted = _scaled(logits, columns, scratch)
    largest = shifted.amax(dim=-1, keepdim=True)
    largest.masked_fill_(largest.isinf(), 0.0)
    shifted.sub_(largest)
    chosen = shifted.gather(-1, targets[:, None])[:, 0]
    exponentials = _view(scratch[-1], logits) if entropies else shifted
    total = torch.exp(shifted, out=exponentials).sum(dim=-1)
    log_total = total.log()
    found = None
    if entropies:
        # - sum p log p = log total - sum p * shifted, and p = exponentials / total
        if shifted.device.type != "cpu":
            shifted.clamp_(min=NEVER)  # 0 * log 0 stays 0
        weighted = shifted.mul_(exponentials).sum(dim=-1)
        if shifted.device.type == "cpu" and weighted.isnan().any():  # a look costs nothing here
            weighted = shifted.masked_fill_(exponentials == 0, 0.0).sum(dim=-1)
        found = log_total - weighted / total
    if gradients:
        exponentials.mul_((-columns.scale / total)[:, None]).scatter_(-1, targets[:, None], 0.0)
        logits.copy_(exponentials)
    return Measures(chosen - log_total, log_total + largest[:, 0], found)


def differentiate_plain(
    logits: torch.Tensor,
    targets: torch.Tensor,
    columns: Columns,
    measures: Measures,
    slopes: torch.Tensor,
    entropy_slopes: torch.Tensor | None,
    scratch: torch.Tensor,
) -> torch.Tensor:
    """Turn logits into d loss / d logits in place, as `differentiate` does, in plain torch.

    Args:
        logits: [a, v]; this and the next five as for `differentiate`.
        targets: [a].
        columns: Those of the tile.
        measures: Of these positions.
        slopes: [a].
        entropy_slopes: [a] or None.
        scratch: [scratch_tiles, a * v or more], at least float32.
    """
    logprobs = _scaled(logits, columns, scratch).sub_(measures.sums[:, None])
    slopes = slopes * columns.scale
    # d logprob / d logit = [it is the target] - probability
    if entropy_slopes is None:
        gradient = logprobs.exp_().mul_(-slopes[:, None])
    else:
        # d entropy / d logit = - probability * (log probability + entropy)
        assert measures.entropies is not None
        logprobs.clamp_(min=NEVER)  # 0 * log 0 stays 0
        probabilities = torch.exp(logprobs, out=_view(scratch[-1], logits))
        of_entropies = entropy_slopes * columns.scale
        logprobs.mul_(-of_entropies[:, None])
        logprobs.sub_((slopes + of_entropies * measures.entropies)[:, None])
        gradient = logprobs.mul_(probabilities)
    column = targets - columns.first
    inside = (column >= 0) & (column < logits.shape[1])
    column = column.clamp(0, logits.shape[1] - 1)
    gradient.scatter_add_(-1, column[:, None], torch.where(inside, slopes, 0.0)[:, None])
    if columns.unused is not None:
        _fill(gradient, columns.unused, 0.0)
    return logits if gradient is logits else logits.copy_(gradient)


def _scaled(logits: torch.Tensor, columns: Columns, scratch: torch.Tensor) -> torch.Tensor:
    """Return the logits as distributions have them, at least float32: in place if they are."""
    if logits.dtype.itemsize < 4:
        logits = _view(scratch[0], logits).copy_(logits)
    if columns.bias is not None:
        logits += columns.bias
    if columns.scale != 1.0:
        logits *= columns.scale
    if columns.unused is not None:
        _fill(logits, columns.unused, NEVER)
    return logits


def _view(scratch: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return scratch[: logits.numel()].view_as(logits)


def _fill(tile: torch.Tensor, unused: torch.Tensor, value: float) -> None:
    if tile.device.type == "cpu":
        tile.index_fill_(-1, unused.nonzero()[:, 0], value)  # no pass over the other columns
    else:
        tile.masked_fill_(unused, value)  # other devices would wait for the number of ids
