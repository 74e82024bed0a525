"""Attention in matrix products: for what no fused kernel does, on any device and in any precision.

Scores exist for one block of queries at a time, and are computed again in the backward pass, so
memory grows with the number of keys and not with the number of scores.
"""

from collections.abc import Sequence

import torch

from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.tree_attention.calls import Call

# Bytes of scores at once, in float32; five tensors of this size exist together.
CPU_SCORES_BYTES = 2**24
GPU_SCORES_BYTES = 2**27
FEWEST_QUERIES, MOST_QUERIES = 16, 512


class Explicit:
    """Attention with scores that may be bounded; see `Kernel` in `kernels.py`."""

    def __init__(self, settings: LayerSettings, device: torch.device) -> None:
        self._scale, self._softcap = settings.scale, settings.softcap
        self._scores = (CPU_SCORES_BYTES if device.type == "cpu" else GPU_SCORES_BYTES) // 4

    def width(self, query: int, value: int) -> tuple[int, int]:
        """See `Kernel`."""
        return query, value

    def divide(self, calls: Sequence[Call], heads: int) -> Sequence[Call]:
        """See `Kernel`."""
        return [block for call in calls for block in call.blocks(self._queries(call, heads))]

    def _queries(self, call: Call, heads: int) -> int:
        """How many queries attend at once."""
        window = MOST_QUERIES if call.window is None else call.window
        most = min(max(window, FEWEST_QUERIES), MOST_QUERIES)  # of a window: little is hidden
        reached = call.length if call.window is None else min(call.length, window + most)
        return min(max(self._scores // (heads * reached), FEWEST_QUERIES), most)

    def forward(
        self, call: Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernel`."""
        scores = self._scores_of(call, query, key)[0]
        sums = torch.logsumexp(scores, dim=-1)  # [Hkv, G * n]
        weights = scores.sub_(sums.unsqueeze(-1)).exp_()
        out = weights.to(value.dtype) @ value[:, 0]  # [Hkv, G * n, Dv]
        shape = query.shape[1:3]  # G, n
        return out.unflatten(1, shape), sums.unflatten(1, shape)

    def backward(
        self,
        call: Call,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        sums: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Kernel`."""
        scores, slope = self._scores_of(call, query, key)
        weights = scores.sub_(sums.flatten(1, 2)[..., None]).exp_()  # [Hkv, G * n, m]
        given, asked = gradient.flatten(1, 2), query.flatten(1, 2)
        dv = weights.to(given.dtype).transpose(1, 2) @ given
        spent = (given.to(weights.dtype) * out.flatten(1, 2)).sum(-1, keepdim=True)
        of_scores = (given @ value[:, 0].transpose(1, 2)).to(weights.dtype).sub_(spent)
        of_scores.mul_(weights).mul_(self._scale)
        if slope is not None:
            of_scores.mul_(slope)
        of_scores = of_scores.to(query.dtype)
        dq = (of_scores @ key[:, 0]).unflatten(1, query.shape[1:3])
        dk = of_scores.transpose(1, 2) @ asked
        return dq, dk[:, None], dv[:, None]

    def _scores_of(
        self, call: Call, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores [Hkv, G * n, m], at least float32, and the slope of their bound, if any."""
        scores = query.flatten(1, 2) @ key[:, 0].transpose(1, 2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * self._scale
        slope = None
        if self._softcap is not None:
            scores = torch.tanh_(scores / self._softcap)
            slope = 1 - scores.square()
            scores = scores * self._softcap
        seen = call.seen(scores.device)
        if seen is not None:
            by_head = scores.unflatten(1, (-1, call.asked))
            by_head.masked_fill_(~seen, -torch.inf)
        return scores, slope
