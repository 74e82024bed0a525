"""Fused modules without a GPU: the same calls, computed by PyTorch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from gymnast.agents.models.fused import Activation, Casting, Kernels


def plain_kernels(device: str = "cpu", called: list[str] | None = None) -> Kernels:
    """Kernels that compute by PyTorch, and overwrite what those of liger-kernel overwrite.

    Args:
        device: The type of device that they run on.
        called: Gets the name of each call.
    """

    computations = (partial(_noted, function, called) for function in (normalize, gate, rotate))
    return Kernels("PyTorch", frozenset({device}), *computations)


def _noted(function: Callable[..., Any], called: list[str] | None, *args: Any) -> Any:
    if called is not None:
        called.append(function.__name__)
    return function(*args)


def normalize(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, casting: Casting
) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if casting == "llama":
        return wide.to(x.dtype) * (offset + weight)
    return (wide * (offset + weight.float())).to(x.dtype)


def gate(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    function: Any = _Gate
    result: torch.Tensor = function.apply(gate.contiguous(), up.contiguous(), activation)
    return result


class _Gate(torch.autograd.Function):
    """Its gradients are written into what it was given, as liger-kernel's are."""

    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, up: torch.Tensor, activation: Activation
    ) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        ctx.activation = activation
        return _gated(gate, up, activation)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            given = [tensor.detach().clone().requires_grad_() for tensor in (gate, up)]
            found = torch.autograd.grad(_gated(given[0], given[1], ctx.activation), given, slope)
        for tensor, gradient in zip((gate, up), found, strict=True):
            tensor.data.copy_(gradient)
        return gate, up, None


def _gated(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    if activation == "silu":
        return F.silu(gate) * up
    return F.gelu(gate, approximate="tanh") * up


def rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if torch.is_grad_enabled():
        q, k = q.clone(), k.clone()
    function: Any = _Rotate
    turned: tuple[torch.Tensor, torch.Tensor] = function.apply(q, k, cos, sin)
    return turned


class _Rotate(torch.autograd.Function):
    """What lies in memory token by token is overwritten, as by liger-kernel: values and slopes."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(cos, sin)
        return _turned(q, cos, sin), _turned(k, cos, sin)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return *(_turned(slope, cos, -sin) for slope in slopes), None, None


def _turned(given: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1] // 2  # the other halves are not read
    cos, sin = (torch.cat([each[..., :half]] * 2, -1)[:, None] for each in (cos, sin))
    own = given.transpose(1, 2).contiguous().transpose(1, 2)
    first, second = given.chunk(2, -1)
    return own.copy_(given * cos + torch.cat([-second, first], -1) * sin)
