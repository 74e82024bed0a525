"""liger-kernel in Triton's interpreter, in the process of the fixture `interpreted`.

The interpreter hands numbers to kernels as Python's, where compiled kernels get tensors, and knows
no functions of a GPU's library. Its arithmetic of bfloat16 is that of integers, so float32 and
float16 are computed.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from gymnast.agents.models.fused import (
    Activation,
    Casting,
    Kernels,
    liger_kernels,
    use_fused_modules,
)
from model_families import tiny
from plain_kernels import normalize

# Values and gradients, of Liger and of PyTorch.
Pair = tuple[list[torch.Tensor], list[torch.Tensor]]


@cache
def kernels() -> Kernels:
    """liger-kernel's, on CPU tensors."""
    from triton import language
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def converted(argument: Any) -> Any:
        if not isinstance(argument, float):
            return convert(argument)
        number = np.array([argument], dtype=np.float32)
        return language.tensor(interpreter.TensorHandle(number, language.float32), language.float32)

    interpreter._implicit_cvt = converted
    from liger_kernel.ops import geglu, rms_norm

    rms_norm.rsqrt = lambda x: language.rsqrt(x)
    geglu.tanh = lambda x: 2 * language.sigmoid(2 * x) - 1
    return replace(liger_kernels(), devices=frozenset({"cpu"}))


def normalized(dtype: torch.dtype, width: int, offset: float, casting: Casting) -> Pair:
    """An RMSNorm whose input is a residual too, so its gradient is used twice."""
    x, weight = _drawn(dtype, (2, 5, width), (width,))
    return _pair(
        [x, weight],
        lambda x, weight: [x + kernels().normalize(x, weight, 1e-5, offset, casting)],
        lambda x, weight: [x + normalize(x, weight, 1e-5, offset, casting)],
    )


def gated(dtype: torch.dtype, width: int, activation: Activation) -> Pair:
    """A gated activation, of what two layers return."""
    functions: dict[str, Any] = {
        "silu": F.silu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    }
    return _pair(
        list(_drawn(dtype, (2, 5, width), (2, 5, width))),
        lambda gate, up: [kernels().gate(1 * gate, 1 * up, activation)],
        lambda gate, up: [functions[activation](gate) * up],
    )


def rotated(dtype: torch.dtype, batch: int, heads: int, key_heads: int, width: int) -> Pair:
    """A rotary embedding, of queries and keys that are used as they were too."""
    q, k = _drawn(dtype, (batch, 7, heads, width), (batch, 7, key_heads, width))
    halves = torch.randn(2, 1, 7, width // 2, generator=torch.Generator().manual_seed(1)).to(dtype)
    cos, sin = torch.cat([halves, halves], -1)

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        own: torch.Tensor = x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]
        return own

    def by_liger(q: torch.Tensor, k: torch.Tensor) -> list[torch.Tensor]:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        squares = [q.exp(), k.exp()]  # whose gradients need these results again
        return [*kernels().rotate(q.tanh(), squares[1], cos, sin), squares[0]]

    def plainly(q: torch.Tensor, k: torch.Tensor) -> list[torch.Tensor]:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        return [turned(q.tanh()), turned(k.exp()), q.exp()]

    return _pair([q, k], by_liger, plainly)


def model_of(family: str) -> Pair:
    """Logits and gradients of a model."""
    model, ids = tiny(family), torch.arange(1, 13)[None]

    def computed() -> list[torch.Tensor]:
        model.zero_grad()
        with torch.no_grad():
            sampled = model(input_ids=ids, use_cache=False).logits
        logits = model(input_ids=ids, use_cache=False).logits
        logits.log_softmax(-1)[..., 5].sum().backward()
        slopes = [weight.grad for weight in model.parameters() if weight.grad is not None]
        return [sampled, logits.detach(), *slopes]

    plain = computed()
    assert use_fused_modules(model, kernels())
    return computed(), plain


def _drawn(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def _pair(given: list[torch.Tensor], ours: Any, theirs: Any) -> Pair:
    """Results and gradients of two functions of the same tensors."""
    found = []
    for function in (ours, theirs):
        own = [tensor.clone().requires_grad_() for tensor in given]
        results = function(*own)
        values = [result.detach().clone() for result in results]
        generator = torch.Generator().manual_seed(2)
        slopes = [torch.randn(each.shape, generator=generator).to(each.dtype) for each in results]
        found.append([*values, *torch.autograd.grad(results, own, slopes)])
    return found[0], found[1]
