"""Variable-length attention in matrix products, sequence by sequence, on any device.

It has the semantics that `cuda_flash.py` relies on, and rounds where flash attention rounds. Rows
that a kernel leaves undefined are NaN, so that a test fails where one is used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from unittest.mock import patch

import torch

from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.tree_attention import join
from gymnast.trainers.learner.tree_attention.levels import Sequences


class PlainVarlen:
    """A `gymnast.trainers.learner.tree_attention.levels.Varlen` that counts its calls.

    Attributes:
        forwards: The calls of the forward pass.
        backwards: The calls of the backward pass.
    """

    def __init__(self, settings: LayerSettings) -> None:
        self._scale = settings.scale
        self.forwards: list[Sequences] = []
        self.backwards: list[Sequences] = []

    def width(self, query: int, value: int) -> int:
        return -(-max(query, value) // 8) * 8

    def forward(
        self, call: Sequences, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.forwards.append(call)
        dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
        out = torch.full_like(query, torch.nan)
        sums = query.new_full((query.shape[1], len(query)), torch.nan, dtype=wide)
        for queries, keys in _sequences(call, query, key):
            if keys.start == keys.stop:
                out[queries], sums[:, queries] = 0, torch.inf
                continue
            scores = self._scores(call, query[queries], key[keys])
            top = scores.amax(-1, keepdim=True)
            weights = torch.exp(scores - top)
            total = weights.sum(-1, keepdim=True)
            shown = _repeated(value[keys], query)
            mixed = (weights.to(dtype).to(wide) @ shown.to(wide)) / total
            out[queries] = mixed.transpose(0, 1).to(dtype)
            sums[:, queries] = (top + total.log())[..., 0]
        return out, sums

    def backward(
        self,
        call: Sequences,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        sums: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.backwards.append(call)
        dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
        assert gradient.is_contiguous() and out.is_contiguous() and sums.is_contiguous()
        assert sums.dtype == wide and sums.isfinite().all()
        dq, dk, dv = (torch.full_like(t, torch.nan) for t in (query, key, value))
        for queries, keys in _sequences(call, query, key):
            if queries.start == queries.stop:
                dk[keys], dv[keys] = 0, 0
                continue
            if keys.start == keys.stop:
                dq[queries] = 0
                continue
            asked, given = (t[queries].to(wide).transpose(0, 1) for t in (query, gradient))
            seen, shown = (_repeated(t[keys], query).to(wide) for t in (key, value))
            weights = torch.exp(
                self._scores(call, query[queries], key[keys]) - sums[:, queries, None]
            )
            spent = (given * out[queries].to(wide).transpose(0, 1)).sum(-1, keepdim=True)
            of_scores = weights * (given @ shown.transpose(1, 2) - spent)
            of_scores, weights = (t.to(dtype).to(wide) for t in (of_scores, weights))
            dq[queries] = (of_scores @ seen * self._scale).transpose(0, 1).to(dtype)
            of_keys = (of_scores.transpose(1, 2) @ asked * self._scale).to(dtype)
            dk[keys] = _summed(of_keys, key)
            dv[keys] = _summed((weights.transpose(1, 2) @ given).to(dtype), key)
        return dq, dk, dv

    def _scores(self, call: Sequences, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """[H, n, m], -inf where a later key is hidden."""
        wide = torch.promote_types(query.dtype, torch.float32)
        seen = _repeated(key, query).to(wide)
        scores = query.to(wide).transpose(0, 1) @ seen.transpose(1, 2) * self._scale
        if call.causal:
            later = torch.ones(scores.shape[1:], dtype=torch.bool, device=query.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return scores


def _sequences(
    call: Sequences, query: torch.Tensor, key: torch.Tensor
) -> Iterator[tuple[slice, slice]]:
    """Queries and keys of each sequence; checks what a kernel takes for granted."""
    for bounds, longest, tensor in (
        (call.queries, call.longest_query, query),
        (call.keys, call.longest_key, key),
    ):
        assert bounds.dtype == torch.int32 and bounds.is_contiguous() and tensor.stride(-1) == 1
        assert bounds.data_ptr() % 16 == 0 and tensor.shape[-1] % 8 == 0
        lengths = bounds.diff()
        assert (lengths >= 0).all() and max(2, int(lengths.max())) == longest
    assert len(call.queries) == len(call.keys)
    assert not call.causal or torch.equal(call.queries, call.keys)
    both = zip(pairwise(call.queries.tolist()), pairwise(call.keys.tolist()), strict=True)
    for (a, b), (c, d) in both:
        yield slice(a, b), slice(c, d)


def _repeated(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """[m, Hkv, D] to [H, m, D]."""
    shared = query.shape[1] // tensor.shape[1]
    return tensor.transpose(0, 1).repeat_interleave(shared, dim=0)


def _summed(grads: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """[H, m, D] to [m, Hkv, D], over the heads that share a key."""
    wide = torch.promote_types(grads.dtype, torch.float32)
    by_key = grads.to(wide).view(key.shape[1], -1, *grads.shape[1:])
    return by_key.sum(1).transpose(0, 1).to(grads.dtype)


@contextmanager
def levels_everywhere() -> Iterator[list[PlainVarlen]]:
    """Have all layers without softcaps attend level by level, as on a GPU; yields their calls."""
    used: list[PlainVarlen] = []

    def varlen_for(
        query: torch.Tensor, value: torch.Tensor, settings: LayerSettings
    ) -> PlainVarlen | None:
        if settings.softcap is not None:
            return None
        used.append(PlainVarlen(settings))
        return used[-1]

    with patch.object(join, "varlen_for", varlen_for):
        yield used
