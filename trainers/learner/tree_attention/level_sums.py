"""Sums over the levels of a tree: by one Triton kernel for four levels, or in plain torch.

Parts are in half precision on a GPU. They are added up in float32 (or float64), and rounded once,
at the end. `level_kernels.py` has the kernels; it imports Triton, so it is imported when one is
launched. A kernel reads the rows of the tokens that have a part of a level, and writes the sum over
those of level 0. Plain torch reads all rows: those without keys are zeros.
"""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import islice

import torch

Part = tuple[torch.Tensor, torch.Tensor]
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

PARTS = 4  # levels that a launch adds to what there is
TILE = 2048  # elements of a tile of tokens and columns: more would take too many registers


@cache
def has_kernels(device: torch.device) -> bool:
    """Return whether sums on this device are computed by Triton."""
    return device.type == "cuda" and find_spec("triton") is not None


def join_parts(
    parts: Iterator[Part], levels: int, depth: torch.Tensor, sinks: torch.Tensor | None
) -> Part:
    """Join the parts of all levels, and the sinks.

    Args:
        parts: Of each level the attended values, [N, H, D], and the logarithms of the softmax sums,
            [H, N]. They may be overwritten.
        levels: The number of parts.
        depth: The number of levels at which each token has a part, [N], int32.
        sinks: [H], or None.

    Returns:
        The attended values, [N, H, D], and the logarithms of the sums with the sinks, [H, N].
    """
    by_kernel = has_kernels(depth.device)
    return (join_by_kernel if by_kernel else join_plain)(parts, levels, depth, sinks)


def join_plain(
    parts: Iterator[Part], levels: int, depth: torch.Tensor, sinks: torch.Tensor | None
) -> Part:
    """Join as `join_parts` does, in plain torch on any device."""
    out, sums = next(parts)
    if levels == 1 and sinks is None:
        return out, sums
    dtype = out.dtype
    joined = out.to(sums.dtype)
    for level, (part, total) in enumerate(parts, 1):
        total = total.masked_fill(depth <= level, -torch.inf)
        weights = torch.sigmoid(total - sums).T.unsqueeze(-1)  # [N, H, 1]
        joined = joined.lerp(part.to(sums.dtype), weights)
        sums = torch.logaddexp(sums, total)
    if sinks is not None:
        extra = sinks.to(sums.dtype).unsqueeze(-1)  # [H, 1]
        joined = joined * torch.sigmoid(sums - extra).T.unsqueeze(-1)
        sums = torch.logaddexp(sums, extra)
    return joined.to(dtype), sums


def join_by_kernel(
    parts: Iterator[Part], levels: int, depth: torch.Tensor, sinks: torch.Tensor | None
) -> Part:
    """Join as `join_parts` does, by a Triton kernel, for parts of at most float32."""
    out, sums = next(parts)
    if levels == 1 and sinks is None:
        return out, sums
    from gymnast.trainers.learner.tree_attention import level_kernels

    tokens, heads, width = out.shape
    sums = sums.contiguous()
    carry = _carry(out, levels)
    tile = _tile(width)
    for first in range(1, max(levels, 2), PARTS):
        group = list(islice(parts, PARTS))
        outs = [_laid_out_as(out, part) for part, _ in group]
        totals = [total.contiguous() for _, total in group]
        with torch.cuda.device_of(out):
            level_kernels.join_levels[(-(-tokens // tile), heads)](
                out,
                sums,
                *_filled(outs, out),
                *_filled(totals, sums),
                carry,
                sums if sinks is None else sinks.contiguous(),
                depth,
                tokens,
                first,
                out.stride(0),
                out.stride(1),
                WIDTH=width,
                PADDED_WIDTH=_padded(width),
                TOKENS=tile,
                RESUMED=first > 1,
                HAS_SINKS=sinks is not None,
                num_warps=4,
            )
    return out, sums


def add_gradients(
    parts: Iterator[Gradients], levels: int, depth: torch.Tensor, seen_at: torch.Tensor
) -> Gradients:
    """Add the gradients of all levels.

    Args:
        parts: For each level the gradients of query [N, H, D], and of key and value [N, Hkv, D].
            They may be overwritten.
        levels: The number of parts.
        depth: The number of levels at which each token's query has a gradient, [N], int32.
        seen_at: The level, besides level 0, at which its key and value have one, or 0, [N], int32.
    """
    by_kernel = has_kernels(depth.device)
    return (add_by_kernel if by_kernel else add_plain)(parts, levels, depth, seen_at)


def add_plain(
    parts: Iterator[Gradients], levels: int, depth: torch.Tensor, seen_at: torch.Tensor
) -> Gradients:
    """Add as `add_gradients` does, in plain torch on any device."""
    first = next(parts)
    if levels == 1:
        return first
    dtype = first[0].dtype
    total = [tensor.to(torch.promote_types(dtype, torch.float32)) for tensor in first]
    for part in parts:
        total = [one.add(other) for one, other in zip(total, part, strict=True)]
    query, key, value = (tensor.to(dtype) for tensor in total)
    return query, key, value


def add_by_kernel(
    parts: Iterator[Gradients], levels: int, depth: torch.Tensor, seen_at: torch.Tensor
) -> Gradients:
    """Add as `add_gradients` does, by a Triton kernel, for gradients of at most float32."""
    query, key, value = next(parts)
    if levels == 1:
        return query, key, value
    from gymnast.trainers.learner.tree_attention import level_kernels

    tokens, heads, width = query.shape
    key_heads = key.shape[1]
    carry = _carry(query, levels)
    tile = _tile(width)
    for first in range(1, levels, PARTS):
        group = list(islice(parts, PARTS))
        queries, keys, values = (
            _filled([_laid_out_as(into, part) for part in added], into)
            for into, added in zip((query, key, value), zip(*group, strict=True), strict=True)
        )
        with torch.cuda.device_of(query):
            level_kernels.add_levels[(-(-tokens // tile), heads + 2 * key_heads)](
                query,
                key,
                value,
                *queries,
                *keys,
                *values,
                carry,
                depth,
                seen_at,
                tokens,
                first,
                query.stride(0),
                query.stride(1),
                key.stride(0),
                key.stride(1),
                value.stride(0),
                value.stride(1),
                HEADS=heads,
                KEY_HEADS=key_heads,
                WIDTH=width,
                PADDED_WIDTH=_padded(width),
                TOKENS=tile,
                RESUMED=first > 1,
                num_warps=4,
            )
    return query, key, value


def gradient_of_sinks(
    gradient: torch.Tensor, out: torch.Tensor, sums: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of sinks [H]: the weight of each, which gave nothing, times <do, o>.

    Args:
        gradient: Of `out`, [N, H, D], contiguous.
        out: Of the joined attention, [N, H, D], contiguous.
        sums: The logarithms of its sums, [H, N].
        sinks: [H].
    """
    if has_kernels(out.device):
        spent = _spent_by_kernel(gradient, out)
    else:
        spent = (gradient.to(sums.dtype) * out).sum(-1).T  # [H, N]
    weights = torch.exp(sinks.to(sums.dtype).unsqueeze(-1) - sums)
    return -(weights * spent).sum(-1).to(sinks.dtype)


def _spent_by_kernel(gradient: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Compute <do, o> of each head and token, [H, N], in float32, by one Triton kernel."""
    from gymnast.trainers.learner.tree_attention import level_kernels

    tokens, heads, width = out.shape
    spent = out.new_empty((heads, tokens), dtype=torch.float32)
    tile = _tile(width)
    with torch.cuda.device_of(out):
        level_kernels.dot_rows[(-(-tokens // tile), heads)](
            gradient,
            out,
            spent,
            tokens,
            HEADS=heads,
            WIDTH=width,
            PADDED_WIDTH=_padded(width),
            TOKENS=tile,
            num_warps=4,
        )
    return spent


def _carry(out: torch.Tensor, levels: int) -> torch.Tensor:
    """Allocate the sums that stay in float32 between launches, if there are several, [N, H, D]."""
    return out.new_empty(out.shape if levels > PARTS + 1 else 1, dtype=torch.float32)


def _padded(width: int) -> int:
    """Return the power of two that a row takes in a tile."""
    return max(16, 1 << (width - 1).bit_length())


def _tile(width: int) -> int:
    """Return the number of tokens of a tile."""
    return max(1, TILE // _padded(width))


def _filled(tensors: list[torch.Tensor], other: torch.Tensor) -> list[torch.Tensor]:
    """Fill up to the number that a launch takes; no token has a part of `other`: it is not read."""
    return [*tensors, *[other] * (PARTS - len(tensors))]


def _laid_out_as(model: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with the strides of `model`, which those of a kernel have in every call."""
    if tensor.stride() == model.stride():
        return tensor
    return torch.empty_like(model).copy_(tensor)
