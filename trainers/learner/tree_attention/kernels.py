"""What a kernel computes, one call of a tree, and which kernel a layer gets.

A kernel gives, beside what the queries get, the logarithm of each query's softmax sum; its
backward pass takes those of the *joined* attention (`trainers/learner/tree_attention/join.py`).
All tensors have the heads that share a key side by side: queries are [Hkv, G, n, D], keys and
values [Hkv, 1, m, D].

PyTorch's fused kernels, which are not public, are in `trainers/learner/tree_attention/cpu_flash.py`
and `cuda_flash.py`; the one that needs nothing but matrix products is in `explicit.py`.

Where there is variable-length attention, a tree whose windows hide nothing is computed in other
calls, level by level: see `trainers/learner/tree_attention/levels.py`.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.tree_attention.calls import Call
from gymnast.trainers.learner.tree_attention.cpu_flash import CPUFlash
from gymnast.trainers.learner.tree_attention.cuda_flash import CUDAFlash, FlashVarlen
from gymnast.trainers.learner.tree_attention.explicit import Explicit
from gymnast.trainers.learner.tree_attention.levels import Varlen

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Kernel(Protocol):
    """Attention of some queries to some keys."""

    def width(self, query: int, value: int) -> tuple[int, int]:
        """The widths that queries and values have to be padded to."""

    def divide(self, calls: Sequence[Call], heads: int) -> Sequence[Call]:
        """Divide calls that the kernel does not take as they are; `heads` is H."""

    def forward(
        self, call: Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the queries get, [Hkv, G, n, Dv], and the logarithms of their sums, [Hkv, G, n]."""

    def backward(
        self,
        call: Call,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        sums: torch.Tensor,
    ) -> Gradients:
        """Gradients of query, key and value, from that of what the joined attention gave.

        Args:
            call: As in the forward pass.
            gradient: Of `out`.
            query: As in the forward pass.
            key: As in the forward pass.
            value: As in the forward pass.
            out: Of the joined attention, [Hkv, G, n, Dv].
            sums: Likewise, [Hkv, G, n].
        """


def kernel_for(
    query: torch.Tensor, value: torch.Tensor, settings: LayerSettings, *, plain: bool = False
) -> Kernel:
    """Return the kernel for a layer: a fused one where PyTorch has it, else matrix products.

    Args:
        query: [N, H, D].
        value: [N, Hkv, Dv].
        settings: Of the layer.
        plain: Matrix products, whatever there is.
    """
    if not plain and CPUFlash.takes(query, settings):
        return CPUFlash(settings)
    if not plain and CUDAFlash.takes(query, value, settings):
        return CUDAFlash(settings, query.device)
    return Explicit(settings, query.device)


def varlen_for(query: torch.Tensor, value: torch.Tensor, settings: LayerSettings) -> Varlen | None:
    """Return the variable-length attention for a layer, or None where PyTorch has none.

    Args:
        query: [N, H, D].
        value: [N, Hkv, Dv].
        settings: Of the layer. Its window is left to the caller.
    """
    return FlashVarlen(settings) if CUDAFlash.takes(query, value, settings) else None
