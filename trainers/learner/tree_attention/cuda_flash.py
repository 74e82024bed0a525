"""PyTorch's flash attention on CUDA, in half precision.

`FlashVarlen` computes a tree level by level (`levels.py`), `CUDAFlash` segment by segment, for
windows that hide something.

Its arguments are not documented. What is relied on here was read in PyTorch's source
(aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, and the kernels of
Dao-AILab/flash-attention, csrc/flash_attn/src, that it contains):

- Queries, keys, values and outputs are [B, n, heads, D], or [tokens, heads, D] with the bounds of
  sequences, as int32; queries may have a multiple of the keys' heads. D is a multiple of 8 and at
  most 256.
- Logarithms of sums are float32, [B, H, n] or [H, tokens]. The backward pass reads them as if they
  were contiguous.
- Query i sees key j where i + keys - queries - left <= j <= i + keys - queries + right: windows are
  counted from the ends of both.
- Where the longest sequence is one token, heads are laid out otherwise: so it is said to be two.
- Of queries and of keys, sequence i is what the bounds i and i + 1 enclose, and either may be
  empty. Bounds are read on the device alone: nothing else tells the kernels where a sequence is.
  There are as many blocks as the longest sequences have, which are arguments, for every sequence;
  those beyond the end of theirs return.
- Queries without keys: the output is 0 and the logarithm of the sum is +infinity (the early exit of
  `compute_attn_1rowblock`). In the backward pass their gradient is 0: the first kernel clears what
  the second adds to, for all queries of every sequence (`compute_dot_do_o`), and the third writes
  it to the result (`convert_dQ`).
- Keys without queries: their gradients are 0 (the early exit of `compute_dq_dk_dv_1colblock`).
- Results are allocated without being cleared, so rows that no sequence has are undefined. They have
  the strides of what they are of, where that is dense; those of sums are [tokens, 1].
- The backward pass copies the gradient and the output where they are not contiguous.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.tree_attention.calls import Call
from gymnast.trainers.learner.tree_attention.level_sums import Gradients, Part
from gymnast.trainers.learner.tree_attention.levels import Sequences

WIDEST, MULTIPLE = 256, 8


class FlashVarlen:
    """Flash attention over sequences; a `gymnast.trainers.learner.tree_attention.levels.Varlen`."""

    def __init__(self, settings: LayerSettings) -> None:
        self._scale = settings.scale

    def width(self, query: int, value: int) -> int:
        """See `Varlen`."""
        return -(-max(query, value) // MULTIPLE) * MULTIPLE

    def forward(
        self, call: Sequences, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> Part:
        """See `Varlen`."""
        kernel: Any = torch.ops.aten._flash_attention_forward
        arguments = (*_bounds(call), 0.0, call.causal, False)
        out, sums = kernel(query, key, value, *arguments, scale=self._scale)[:2]
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
    ) -> Gradients:
        """See `Varlen`."""
        kernel: Any = torch.ops.aten._flash_attention_backward
        unread = torch.empty(2, dtype=torch.uint64, device=query.device)  # there is no dropout
        tensors = (gradient, query, key, value, out, sums.contiguous())
        arguments = (*_bounds(call), 0.0, call.causal, unread, unread)
        dq, dk, dv = kernel(*tensors, *arguments, scale=self._scale)
        return dq, dk, dv


def _bounds(call: Sequences) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    return call.queries, call.keys, call.longest_query, call.longest_key


@dataclass(frozen=True)
class OwnSegments(Call):
    """Every token attends to its segment before it: the first calls of a tree, in one.

    Attributes:
        bounds: Where segments begin and end, [segments + 1], int32.
        longest: Tokens of the longest segment.
    """

    bounds: torch.Tensor | None = None
    longest: int = 0


class CUDAFlash:
    """Flash attention on CUDA; a `gymnast.trainers.learner.tree_attention.kernels.Kernel`."""

    def __init__(self, settings: LayerSettings, device: torch.device) -> None:
        self._scale, self._window, self._device = settings.scale, settings.window, device

    @staticmethod
    def takes(query: torch.Tensor, value: torch.Tensor, settings: LayerSettings) -> bool:
        """Whether there is such a kernel for this layer."""
        return (
            query.device.type == "cuda"
            and query.dtype in (torch.bfloat16, torch.float16)
            and settings.softcap is None
            and max(query.shape[-1], value.shape[-1]) <= WIDEST
            and _on(query.device)
        )

    def width(self, query: int, value: int) -> tuple[int, int]:
        """See `Kernel`."""
        width = -(-max(query, value) // MULTIPLE) * MULTIPLE
        return width, width

    def divide(self, calls: Sequence[Call], heads: int) -> Sequence[Call]:
        """See `Kernel`."""
        own = [call for call in calls if call.first]
        bounds = [0, *(call.queries.stop for call in own)]
        tokens = slice(0, bounds[-1])
        together = OwnSegments(
            tokens,
            tokens,
            first=True,
            distance=0,
            window=self._window,
            bounds=torch.tensor(bounds, dtype=torch.int32, device=self._device),
            longest=max(2, *(call.asked for call in own)),
        )
        return [together, *(call for call in calls if not call.first)]

    def forward(
        self, call: Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernel`."""
        kernel: Any = torch.ops.aten._flash_attention_forward
        shape = query.shape[:2]  # Hkv, G
        tensors = [_by_token(tensor, call) for tensor in (query, key, value)]
        out, sums = kernel(*tensors, *self._lengths(call), False, **self._settings(call))[:2]
        if not isinstance(call, OwnSegments):
            out, sums = out.squeeze(0), sums.squeeze(0)
        return out.unflatten(1, shape).permute(1, 2, 0, 3), sums.unflatten(0, shape)

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
        kernel: Any = torch.ops.aten._flash_attention_backward
        tensors = [_by_token(tensor, call) for tensor in (gradient, query, key, value, out)]
        sums = sums.flatten(0, 1).contiguous()  # [H, n]
        if not isinstance(call, OwnSegments):
            sums = sums.unsqueeze(0)
        unread = torch.empty(2, dtype=torch.uint64, device=query.device)  # there is no dropout
        grads = kernel(*tensors, sums, *self._lengths(call), unread, unread, **self._settings(call))
        if not isinstance(call, OwnSegments):
            grads = tuple(grad.squeeze(0) for grad in grads)
        dq, dk, dv = (grad.unflatten(1, (key.shape[0], -1)).permute(1, 2, 0, 3) for grad in grads)
        return dq, dk, dv

    def _lengths(self, call: Call) -> tuple[Any, ...]:
        """Bounds, longest sequences, dropout, and whether later keys are hidden."""
        if isinstance(call, OwnSegments):
            bounds, longest = call.bounds, call.longest
            return bounds, bounds, longest, longest, 0.0, call.window is None
        return None, None, call.asked, call.length, 0.0, call.causal

    def _settings(self, call: Call) -> dict[str, Any]:
        if call.window is None:
            return {"scale": self._scale}
        assert call.distance is not None
        # From the ends of both, the first query stands `keys - queries` after the first key.
        shift = call.distance - (call.length - call.asked)
        left, right = call.window - 1 - shift, shift
        return {"scale": self._scale, "window_size_left": left, "window_size_right": right}


def _by_token(tensor: torch.Tensor, call: Call) -> torch.Tensor:
    """[Hkv, G, n, D] to [n, H, D] where sequences have bounds, else to [1, n, H, D]."""
    by_token = tensor.permute(2, 0, 1, 3).flatten(1, 2)
    return by_token if isinstance(call, OwnSegments) else by_token.unsqueeze(0)


@cache
def _on(device: torch.device) -> bool:
    """Whether PyTorch was built with it, for the generation of this device."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):  # sums had another shape
        return False
    if not torch.cuda.is_available():  # only shapes are computed
        return True
    return (
        torch.version.hip is None
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
