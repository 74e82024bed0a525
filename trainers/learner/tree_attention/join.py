"""Attention over a tree of segments without a copy or a padded row: parts, joined.

What a token gets from its segment and from each of its ancestors is joined by the logarithms of
their softmax sums. A sink is one more part, which has a sum and gives nothing.

The backward pass calls the kernels again with the *joined* output and sum of each token: their
formula, p = exp(score - logsumexp) and ds = p * (dp - <do, o>), then holds of each part by itself,
so the gradients are those of one attention. Of a sink the score is a parameter and dp is 0.

What attends to what is in `trainers/learner/tree_attention/calls.py`, the kernels in
`trainers/learner/tree_attention/kernels.py`. On a GPU a tree is computed level by level instead
(`trainers/learner/tree_attention/levels.py`), except where a window hides something.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.tree_attention.calls import Call, Tree
from gymnast.trainers.learner.tree_attention.kernels import Kernel, kernel_for, varlen_for
from gymnast.trainers.learner.tree_attention.levels import attend_in_levels, divide_into_levels


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: Tree,
    settings: LayerSettings,
    *,
    plain: bool = False,
) -> torch.Tensor:
    """Let every token attend to its segment before it and to all of its ancestors.

    Args:
        query: [N, H, D].
        key: [N, Hkv, D].
        value: [N, Hkv, Dv].
        tree: Of the N tokens.
        settings: Of the layer.
        plain: Compute in matrix products, on any device and in any precision.

    Returns:
        [N, H, Dv].
    """
    heads, width = query.shape[1], value.shape[-1]
    varlen = None if plain or tree.exceeds(settings.window) else varlen_for(query, value, settings)
    if varlen is not None:
        device = query.device
        levels = tree.divided(("levels", device), lambda: divide_into_levels(tree, device))
        most = varlen.width(query.shape[-1], width)
        query, key, value = (_padded(tensor, most) for tensor in (query, key, value))
        attended = attend_in_levels(query, key, value, settings.sinks, levels, varlen)
        return attended[..., :width]
    kernel = kernel_for(query, value, settings, plain=plain)
    calls = tree.divided(
        (type(kernel), query.device, settings.window, heads),
        lambda: kernel.divide(tree.calls(settings.window), heads),
    )
    for_query, for_value = kernel.width(query.shape[-1], width)
    query, key = (_padded(tensor, for_query) for tensor in (query, key))
    function: Any = _TreeAttention
    attended = function.apply(query, key, _padded(value, for_value), settings.sinks, calls, kernel)
    return attended[..., :width]


def _padded(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """With zeros up to this width, in which a product of two has nothing more; dense along it."""
    if tensor.shape[-1] < width:
        return F.pad(tensor, (0, width - tensor.shape[-1]))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
        calls: Sequence[Call],
        kernel: Kernel,
    ) -> torch.Tensor:
        out, sums = joined(query, key, value, sinks, calls, kernel)
        ctx.save_for_backward(query, key, value, sinks, out, sums)
        ctx.calls, ctx.kernel = calls, kernel
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return (*gradients(gradient, ctx.saved_tensors, ctx.calls, ctx.kernel), None, None)


def joined(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor | None,
    calls: Sequence[Call],
    kernel: Kernel,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What every token gets, [N, H, Dv], and the logarithm of its sum, [Hkv, H / Hkv, N]."""
    heads = key.shape[1]
    out = query.new_empty((*query.shape[:2], value.shape[-1]))  # [N, H, Dv]
    sums: torch.Tensor | None = None
    asked, into = _by_head(query, heads), _by_head(out, heads)  # [Hkv, G, N, D]
    seen, shown = _by_head(key, heads), _by_head(value, heads)  # [Hkv, 1, N, D]
    for call in calls:
        q, k, v = _of(asked, call.queries), _of(seen, call.keys), _of(shown, call.keys)
        part, total = kernel.forward(call, q, k, v)
        if sums is None:
            sums = total.new_empty(asked.shape[:3])  # [Hkv, G, N]
        before, mixed = _of(sums, call.queries), _of(into, call.queries)
        if call.first:
            mixed.copy_(part)
            before.copy_(total)
        else:
            weight = torch.sigmoid(total - before).unsqueeze(-1).to(part.dtype)
            mixed.lerp_(part, weight)
            before.copy_(torch.logaddexp(before, total))
    assert sums is not None
    if sinks is not None:
        extra = sinks.to(sums.dtype).view(heads, -1, 1)  # [Hkv, G, 1]
        into.mul_(torch.sigmoid(sums - extra).unsqueeze(-1))
        sums = torch.logaddexp(sums, extra)
    return out, sums


def gradients(
    gradient: torch.Tensor,
    saved: tuple[Any, ...],
    calls: Sequence[Call],
    kernel: Kernel,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients of query, key, value and sinks.

    Args:
        gradient: Of what every token gets, [N, H, Dv].
        saved: Query, key, value and sinks, and what `joined` made of them.
        calls: As for `joined`.
        kernel: As for `joined`.
    """
    query, key, value, sinks, out, sums = saved
    gradient, heads = gradient.contiguous(), key.shape[1]
    # With windows a key's gradient is the sum of many parts, which half precision would round.
    narrow = all(call.window is None for call in calls)
    dtype = query.dtype if narrow else torch.promote_types(query.dtype, torch.float32)
    grads = [torch.zeros_like(tensor, dtype=dtype) for tensor in (query, key, value)]
    asked, mixed, given = (_by_head(t, heads) for t in (query, out, gradient))
    seen, shown = _by_head(key, heads), _by_head(value, heads)
    into_q, into_k, into_v = (_by_head(t, heads) for t in grads)
    for call in calls:
        q, o, g, total = (_of(t, call.queries) for t in (asked, mixed, given, sums))
        k, v = (_of(t, call.keys) for t in (seen, shown))
        dq, dk, dv = kernel.backward(call, g, q, k, v, o, total)
        _of(into_q, call.queries).add_(dq)
        _of(into_k, call.keys).add_(dk)
        _of(into_v, call.keys).add_(dv)
    of_query, of_key, of_value = (grad.to(query.dtype) for grad in grads)
    of_sinks = None if sinks is None else _of_sinks(sinks, sums, given, mixed)
    return of_query, of_key, of_value, of_sinks


def _of_sinks(
    sinks: torch.Tensor, sums: torch.Tensor, given: torch.Tensor, mixed: torch.Tensor
) -> torch.Tensor:
    """The gradient of the sinks [H]: their weights, which gave nothing, times what was spent."""
    spent = (given.to(sums.dtype) * mixed).sum(-1)  # [Hkv, G, N]
    weights = torch.exp(sinks.to(sums.dtype).view(*sums.shape[:2], 1) - sums)
    return -(weights * spent).sum(-1).view(sinks.shape).to(sinks.dtype)


def _of(tensor: torch.Tensor, tokens: slice) -> torch.Tensor:
    """View these tokens of [Hkv, G, N, ...]."""
    return tensor.narrow(2, tokens.start, tokens.stop - tokens.start)


def _by_head(tensor: torch.Tensor, key_heads: int) -> torch.Tensor:
    """View [N, H, D] as [Hkv, H / Hkv, N, D]."""
    return tensor.unflatten(1, (key_heads, -1)).permute(1, 2, 0, 3)
