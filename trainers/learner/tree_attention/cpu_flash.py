"""PyTorch's fused attention on a CPU; a window is a mask there."""

from collections.abc import Sequence
from typing import Any

import torch

from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.tree_attention.calls import Call

# Queries whose window is a mask attend in blocks: of about a window, so that little is hidden, but
# not so many that the mask is large.
FEWEST_QUERIES, MOST_QUERIES = 128, 512


class CPUFlash:
    """Fused attention on a CPU; a `gymnast.trainers.learner.tree_attention.kernels.Kernel`."""

    def __init__(self, settings: LayerSettings) -> None:
        self._scale = settings.scale

    @staticmethod
    def takes(query: torch.Tensor, settings: LayerSettings) -> bool:
        """Whether there is such a kernel for this layer."""
        return (
            query.device.type == "cpu"
            and query.dtype in (torch.float32, torch.float64, torch.bfloat16)
            and settings.softcap is None
            and _exists("_scaled_dot_product_flash_attention_for_cpu")
        )

    def width(self, query: int, value: int) -> tuple[int, int]:
        """See `Kernel`."""
        return max(query, value), max(query, value)

    def divide(self, calls: Sequence[Call], heads: int) -> Sequence[Call]:
        """See `Kernel`."""
        return _masked_in_blocks(calls)

    def forward(
        self, call: Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernel`."""
        key, value = (t.expand(-1, query.shape[1], -1, -1) for t in (key, value))
        kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        bias = _bias(call, query)
        out, sums = kernel(query, key, value, 0.0, call.causal, attn_mask=bias, scale=self._scale)
        return out, sums

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
        key, value = (t.expand(-1, query.shape[1], -1, -1) for t in (key, value))
        kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        bias, tensors = _bias(call, query), (gradient, query, key, value, out, sums)
        dq, dk, dv = kernel(*tensors, 0.0, call.causal, attn_mask=bias, scale=self._scale)
        return dq, dk.sum(1, keepdim=True), dv.sum(1, keepdim=True)


def _exists(name: str) -> bool:
    return hasattr(torch.ops.aten, name) and hasattr(torch.ops.aten, f"{name}_backward")


def _masked_in_blocks(calls: Sequence[Call]) -> Sequence[Call]:
    """Divide the calls that need a mask, so that masks grow with the window alone."""
    if all(call.window is None for call in calls):
        return calls
    divided: list[Call] = []
    for call in calls:
        if call.window is None:
            divided.append(call)
        else:
            divided += call.blocks(min(max(call.window, FEWEST_QUERIES), MOST_QUERIES))
    return divided


def _bias(call: Call, query: torch.Tensor) -> torch.Tensor | None:
    """What is added to the scores, [1, 1, queries, keys]."""
    if call.causal or call.distance is None:
        return None
    seen = call.seen(query.device)
    assert seen is not None
    bias = torch.zeros(seen.shape, dtype=query.dtype, device=query.device)
    bias.masked_fill_(~seen, torch.finfo(query.dtype).min)
    return bias[None, None]
