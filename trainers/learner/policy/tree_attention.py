"""Attention over a tree of segments without a copy, a mask or a padded row, on a CPU.

The tokens of a tree stand in depth-first order, so those below a segment follow it directly. So
each segment takes two calls of PyTorch's fused attention at most, both on slices: its tokens
attend to themselves, causally, and all tokens below it attend to it, as one long query. What a
token gets from its segment and from each of its ancestors is joined by the logarithms of their
softmax sums. The keys of a prompt are never repeated for those who share it, and no score that a
mask would hide is computed (but for sliding windows).

The backward pass calls the fused kernels again with the *joined* output and sum of each token:
their formula, p = exp(score - logsumexp) and ds = p * (dp - <do, o>), then holds of each part by
itself, so the gradients are those of one attention.

Other devices, bounded scores and sinks take another way, in `trainers/learner/policy/packing.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from gymnast.agents.models.attention import LayerSettings, causal_mask

# Not public, and the only kernels of PyTorch on a CPU that give the logarithm of the sum.
_FORWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD: Any = getattr(
    torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None
)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@dataclass(frozen=True)
class Subtree:
    """A segment and all that lies below it: `start <= end <= last`, of packed tokens."""

    start: int
    end: int
    last: int  # where the segments below it end

    @property
    def own(self) -> slice:
        """Its tokens."""
        return slice(self.start, self.end)

    @property
    def below(self) -> slice:
        """The tokens of all its descendants."""
        return slice(self.end, self.last)


@dataclass(frozen=True)
class _Call:
    """One call of the kernel."""

    queries: slice
    keys: slice
    mask: torch.Tensor | None  # [1, 1, queries, keys]
    causal: bool


@dataclass(frozen=True)
class Tree:
    """The segments of a pack, for `attend`.

    Attributes:
        subtrees: In the order of their tokens.
        positions: [N], of each token in its trajectories.
    """

    subtrees: Sequence[Subtree]
    positions: torch.Tensor
    _calls: dict[tuple[int | None, torch.dtype], list[_Call]] = field(default_factory=dict)

    def calls(self, window: int | None, dtype: torch.dtype) -> list[_Call]:
        """What attends to what; own segments first, so that every token has a part to join.

        Layers of one kind share it.
        """
        if (window, dtype) not in self._calls:
            pairs = [(subtree.own, subtree.own) for subtree in self.subtrees]
            pairs += [
                (subtree.below, subtree.own)
                for subtree in self.subtrees
                if subtree.last > subtree.end
            ]
            self._calls[window, dtype] = [
                self._call(queries, keys, window, dtype) for queries, keys in pairs
            ]
        return self._calls[window, dtype]

    def _call(self, queries: slice, keys: slice, window: int | None, dtype: torch.dtype) -> _Call:
        asked, seen = self.positions[queries], self.positions[keys]
        if window is None or int(asked.max() - seen.min()) < window:
            return _Call(queries, keys, None, causal=queries == keys)
        hidden = ~causal_mask(asked, seen, window)
        bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        # Not -inf: a token may see nothing of an ancestor, and its weight there is to be 0.
        bias.masked_fill_(hidden, torch.finfo(dtype).min)
        return _Call(queries, keys, bias[None, None], causal=False)


def possible(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings
) -> bool:
    """Whether `attend` can do this layer."""
    return (
        _FORWARD is not None
        and _BACKWARD is not None
        and query.device.type == "cpu"
        and query.dtype in _DTYPES
        and query.dtype == key.dtype == value.dtype
        and query.shape[-1] == value.shape[-1]
        and settings.softcap is None
        and settings.sinks is None
    )


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: Tree,
    settings: LayerSettings,
) -> torch.Tensor:
    """Let every token attend to its segment before it and to all of its ancestors.

    Args:
        query: [N, H, D].
        key: [N, Hkv, D].
        value: [N, Hkv, D].
        tree: Of the N tokens.
        settings: Of the layer.

    Returns:
        [N, H, D].
    """
    calls = tree.calls(settings.window, query.dtype)
    # The kernels read along the last dimension.
    query, key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
    function: Any = _TreeAttention
    attended: torch.Tensor = function.apply(query, key, value, calls, settings.scale)
    return attended


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        calls: list[_Call],
        scale: float,
    ) -> torch.Tensor:
        heads = key.shape[1]
        out = torch.empty(query.shape, dtype=query.dtype)  # [N, H, D]
        sums = None
        asked, joined = _by_head(query, heads), _by_head(out, heads)  # [Hkv, G, N, D]
        seen, shown = _by_head(key, heads), _by_head(value, heads)  # [Hkv, 1, N, D]
        for call in calls:
            q, into = asked[:, :, call.queries], joined[:, :, call.queries]
            k, v = (t[:, :, call.keys].expand(-1, q.shape[1], -1, -1) for t in (seen, shown))
            part, total = _FORWARD(q, k, v, 0.0, call.causal, attn_mask=call.mask, scale=scale)
            if sums is None:
                sums = total.new_empty(asked.shape[:3])  # [Hkv, G, N]
            before = sums[:, :, call.queries]
            if call.queries == call.keys:  # the first part of these tokens
                into.copy_(part)
                before.copy_(total)
            else:
                weight = torch.sigmoid(total - before)[..., None].to(part.dtype)
                into.lerp_(part, weight)
                before.copy_(torch.logaddexp(before, total))
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.calls, ctx.scale = calls, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gradient = gradient.contiguous()
        query, key, value, out, sums = ctx.saved_tensors
        heads = key.shape[1]
        grads = [torch.zeros_like(t) for t in (query, key, value)]
        asked, joined, given = (_by_head(t, heads) for t in (query, out, gradient))
        seen, shown = _by_head(key, heads), _by_head(value, heads)
        into_q, into_k, into_v = (_by_head(t, heads) for t in grads)
        for call in ctx.calls:
            q, o, g = (t[:, :, call.queries] for t in (asked, joined, given))
            k, v = (t[:, :, call.keys].expand(-1, q.shape[1], -1, -1) for t in (seen, shown))
            dq, dk, dv = _BACKWARD(
                g,
                q,
                k,
                v,
                o,
                sums[:, :, call.queries],
                0.0,
                call.causal,
                attn_mask=call.mask,
                scale=ctx.scale,
            )
            into_q[:, :, call.queries] += dq
            into_k[:, :, call.keys] += dk.sum(1, keepdim=True)
            into_v[:, :, call.keys] += dv.sum(1, keepdim=True)
        return (*grads, None, None)


def _by_head(tensor: torch.Tensor, key_heads: int) -> torch.Tensor:
    """View [N, H, D] as [Hkv, H / Hkv, N, D]."""
    return tensor.unflatten(1, (key_heads, -1)).permute(1, 2, 0, 3)
