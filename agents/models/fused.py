"""RMSNorm, gated MLPs and rotary embeddings of one model, each computed by one kernel.

A plain RMSNorm is six kernels of PyTorch, a rotary embedding ten; while a few tokens are sampled,
launching them is most of the work, and in training their results are most of the memory. Libraries
have one kernel for each. liger-kernel's `apply_liger_kernel_to_*` replaces functions of
Transformers' modules, so every model of the family in the process changes, on a CPU too, where the
kernels fail; Transformers' `use_kernels` downloads kernels, and has none for rotary embeddings in
training. So here the `forward` of single modules is replaced, on the model that is given:

- `use_fused_modules` finds modules by what they compute, not by their class: a stand-in with small
  random weights is compared with the known formulas. What is not recognized stays as it is.
- A replaced forward chooses at each call. Where the tensors are on a device that the kernels do not
  run on, or in float64, it computes the module's own code, so copies on a CPU and the checks of
  `double_precision.py` compute as before.
- Weights, names, classes and hooks stay. MLPs call their own layers, with adapters around them or
  not. `use_plain_modules` removes all of it.

`agents/models/kernel_choice.py` decides where they are used.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from types import FunctionType
from typing import Any, Literal, Protocol, cast

import torch
from torch import nn
from torch.nn import functional as F

from gymnast.agents.models.double_precision import FAILURES
from gymnast.errors import ModelError, first_line

Casting = Literal["llama", "gemma"]
Activation = Literal["silu", "gelu_tanh"]

DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})
# The function that Transformers' attention modules call, by its name in their files.
ROTARY = "apply_rotary_pos_emb"
# The layers of a gated MLP: down(activation(gate(x)) * up(x)).
GATED = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
# A module's result and the formula's differ by rounding alone, relative to the values.
TOLERANCE = 1e-4
# What share of an RMSNorm's results in bfloat16 the formula has to give to the bit.
SAME_BITS = 0.99


class Normalize(Protocol):
    """x / rms(x) * (offset + weight), over the last dimension."""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, casting: Casting
    ) -> torch.Tensor:
        """Normalize x [..., width] in float32; returns [..., width] in the dtype of x.

        Args:
            x: [..., width].
            weight: [width].
            eps: Added to the mean square.
            offset: Added to the weight.
            casting: "llama" rounds x / rms(x) to the dtype of x and multiplies there; "gemma"
                multiplies in float32, and rounds the product.
        """


@dataclass(frozen=True)
class Kernels:
    """Fused computations with gradients, and where they run. None of them keeps its arguments.

    Attributes:
        name: For messages.
        devices: Types of devices, such as "cuda".
        normalize: See `Normalize`.
        gate: activation(gate) * up, of two tensors [..., width].
        rotate: Queries [B, H, N, D] and keys [B, Hkv, N, D] turned by the cosines and sines
            [B or 1, N, D] of their positions, whose halves along D are alike. It may overwrite
            queries and keys where no gradient is computed.
    """

    name: str
    devices: frozenset[str]
    normalize: Normalize
    gate: Callable[[torch.Tensor, torch.Tensor, Activation], torch.Tensor]
    rotate: Callable[
        [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
        tuple[torch.Tensor, torch.Tensor],
    ]

    def take(self, *tensors: torch.Tensor) -> bool:
        """Whether the kernels can compute with these tensors, of one dtype."""
        first = tensors[0]
        return (
            first.device.type in self.devices
            and first.dtype in DTYPES
            and all(each.dtype == first.dtype and each.numel() > 0 for each in tensors)
        )


@dataclass(frozen=True)
class FusedModules:
    """The number of modules that compute with kernels, by kind."""

    norms: int = 0
    mlps: int = 0
    rotary_embeddings: int = 0

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        numbers = (f"{getattr(self, field.name)} {field.name}" for field in fields(self))
        return ", ".join(numbers).replace("_", " ")


@dataclass(eq=False)
class _FusedForward:
    """Stands in for the `forward` of one module; a deep copy belongs to the copied module."""

    module: Any
    kernels: Kernels

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.module).forward(self.module, *args, **kwargs)


@dataclass(eq=False)
class _Norm(_FusedForward):
    eps: float
    offset: float
    casting: Casting

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        weight = self.module.weight
        if args or kwargs or not self.kernels.take(x, weight):
            return self.plain(x, *args, **kwargs)
        return self.kernels.normalize(x, weight, self.eps, self.offset, self.casting)


@dataclass(eq=False)
class _GatedMLP(_FusedForward):
    gate: str
    up: str
    down: str
    activation: Activation

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not self.kernels.take(x):
            return self.plain(x, *args, **kwargs)
        layers = self.module._modules
        gate, up = layers[self.gate](x), layers[self.up](x)
        return layers[self.down](self.kernels.gate(gate, up, self.activation))


@dataclass(eq=False)
class _Attention(_FusedForward):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        rotating = _rotating(type(self.module).forward, self.kernels)
        return rotating(self.module, *args, **kwargs)


def liger_kernels() -> Kernels:
    """The kernels of liger-kernel.

    Raises:
        ModelError: It is not installed, or cannot be imported.
    """
    try:
        from gymnast.agents.models.liger import LIGER
    except ImportError as error:
        raise ModelError(
            f"kernels: liger needs the package liger-kernel, which cannot be imported "
            f"({first_line(error)}); install it with `pip install gymnast-rl[gpu]`, or set kernels "
            "to none"
        ) from error
    kernels: Kernels = cast(Any, LIGER)
    return kernels


def use_fused_modules(model: Any, kernels: Kernels | None = None) -> FusedModules:
    """Compute norms, gated MLPs and rotary embeddings of this model object by fused kernels.

    Args:
        model: Of Transformers, or of peft around one. Other models, also copies that were made
            before, stay as they are; copies that are made from now on have fused modules too.
        kernels: By default liger-kernel's, which run on CUDA.

    Returns:
        The number of modules that are replaced, none of them twice.

    Raises:
        ModelError: liger-kernel is not installed.
    """
    if kernels is None:
        kernels = liger_kernels()
    use_plain_modules(model)
    with torch.random.fork_rng(devices=[]):  # dropout of a stand-in
        found = [_fused(module, kernels) for module in model.modules()]
    for fused in found:
        if fused is not None:
            vars(fused.module)["forward"] = fused
    kinds = (_Norm, _GatedMLP, _Attention)
    return FusedModules(*(sum(isinstance(each, kind) for each in found) for kind in kinds))


def use_plain_modules(model: Any) -> None:
    """Compute all modules of a model by their own code again."""
    for module in model.modules():
        if isinstance(vars(module).get("forward"), _FusedForward):
            del vars(module)["forward"]


def has_fused_modules(model: Any) -> bool:
    """Whether a module of the model was replaced, wherever the model is."""
    return any(isinstance(vars(each).get("forward"), _FusedForward) for each in model.modules())


@contextmanager
def plain_modules(model: Any) -> Iterator[None]:
    """Within the block, all modules compute by their own code."""
    fused = {
        module: forward
        for module in model.modules()
        if isinstance(forward := vars(module).get("forward"), _FusedForward)
    }
    use_plain_modules(model)
    try:
        yield
    finally:
        for module, forward in fused.items():
            vars(module)["forward"] = forward


@torch.no_grad()
def _fused(module: nn.Module, kernels: Kernels) -> _FusedForward | None:
    """A fused forward for a module, if its own computes one of the known formulas."""
    if "forward" in vars(module):  # of another library, such as accelerate's hooks
        return None
    own = [name for name, weight in module._parameters.items() if weight is not None]
    if any(buffer is not None for buffer in module._buffers.values()):
        return None
    try:
        if own == ["weight"] and not module._modules:
            return _norm(module, kernels)
        if not own and (gated := _gated_mlp(module, kernels)):
            return gated
        if _rotates(type(module).forward):
            return _Attention(module, kernels)
    except FAILURES:  # of a stand-in: its forward takes something else
        pass
    return None


def _norm(module: Any, kernels: Kernels) -> _Norm | None:
    if module.weight.dim() != 1:
        return None
    width = len(module.weight)
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(width, generator=generator, device="cpu") + 0.5
    rows = torch.randn(1, 16, width, generator=generator, device="cpu")
    rows *= torch.logspace(-4, 1, 16, device="cpu")[:, None]  # small ones show the eps
    own = _computed(module, rows, _parameters={"weight": nn.Parameter(weight)})
    numbers = [value for value in vars(module).values() if isinstance(value, float)]
    forms = [(eps, offset) for eps in numbers for offset in (0.0, 1.0)]
    form = next((form for form in forms if _agree(own, _rms(rows, weight, *form, "gemma"))), None)
    if form is None:
        return None
    rows, weight = rows.bfloat16(), weight.bfloat16()
    own = _computed(module, rows, _parameters={"weight": nn.Parameter(weight)})
    castings: tuple[Casting, ...] = ("llama", "gemma")
    same = {
        casting: (_rms(rows, weight, *form, casting) == own).float().mean().item()
        for casting in castings
    }
    casting = max(castings, key=same.__getitem__)
    if own.dtype != rows.dtype or same[casting] < SAME_BITS:
        return None
    return _Norm(module, kernels, *form, casting)


def _gated_mlp(module: Any, kernels: Kernels) -> _GatedMLP | None:
    names = next((names for names in GATED if set(names) <= set(module._modules)), None)
    if names is None:
        return None
    width, inner = 6, 10
    generator = torch.Generator().manual_seed(0)
    shapes = {names[0]: (inner, width), names[1]: (inner, width), names[2]: (width, inner)}
    weights = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        for name, shape in shapes.items()
    }
    rows = torch.randn(1, 20, width, generator=generator, dtype=torch.float64, device="cpu")
    rows *= torch.logspace(-2, 4, 20, dtype=torch.float64, device="cpu")[:, None]  # clamps show
    for training in (False, True):  # dropout shows
        modules = {
            name: _Product(weights[name]) if name in weights else copy.deepcopy(child)
            for name, child in module._modules.items()
        }
        for child in modules.values():
            child.train(training)
        own = _computed(module, rows, _modules=modules, training=training)
        gate, up = rows @ weights[names[0]].T, rows @ weights[names[1]].T
        activations: dict[Activation, torch.Tensor] = {
            "silu": F.silu(gate),
            "gelu_tanh": F.gelu(gate, approximate="tanh"),
        }
        down = weights[names[2]].T
        found = [name for name, gated in activations.items() if _agree(own, gated * up @ down)]
        if not found:
            return None
    return _GatedMLP(module, kernels, *names, found[0])


class _Product(nn.Module):
    """A linear layer of a stand-in."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.product = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.product.T


def _computed(module: Any, rows: torch.Tensor, **parts: Any) -> torch.Tensor:
    """The result of a module's own forward with other parts in place of its own."""
    stand_in = copy.copy(module)
    vars(stand_in).update(parts)
    result: torch.Tensor = type(module).forward(stand_in, rows)
    return result


def _agree(own: Any, formula: torch.Tensor) -> bool:
    """Whether a module's results [1, N, width] are those of a formula, row by row."""
    if not isinstance(own, torch.Tensor) or own.shape != formula.shape:
        return False
    own, formula = own.double(), formula.double()
    limit = TOLERANCE * formula.abs().amax(-1, keepdim=True)
    return bool(((own - formula).abs() <= limit).all())


def _rms(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, casting: Casting
) -> torch.Tensor:
    """The formula of `Normalize`."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if casting == "llama":
        return wide.to(x.dtype) * (offset + weight)
    return (wide * (offset + weight.float())).to(x.dtype)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The formula of a rotary embedding of x [B, H, N, D]."""
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]


def _rotates(forward: Any) -> bool:
    """Whether a forward calls the usual rotary embedding by its name."""
    return (
        isinstance(forward, FunctionType)
        and ROTARY in forward.__code__.co_names
        and ROTARY in forward.__globals__
        and _is_usual(forward.__globals__[ROTARY])
    )


@cache
def _is_usual(function: Callable[..., Any]) -> bool:
    """Whether a function turns queries and keys as `Kernels.rotate` does."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, n, 5, 8, generator=generator, device="cpu") for n in (3, 1))
    halves = torch.randn(2, 2, 5, 4, generator=generator, device="cpu")
    cos, sin = torch.cat([halves, halves], -1)  # [2, 5, 8] each
    try:
        turned = function(q.clone(), k.clone(), cos, sin)
        return isinstance(turned, tuple) and all(
            torch.allclose(own, _turned(given, cos, sin), rtol=TOLERANCE, atol=1e-5)
            for own, given in zip(turned, (q, k), strict=True)
        )
    except FAILURES:
        return False


@cache
def _rotating(forward: FunctionType, kernels: Kernels) -> FunctionType:
    """A copy of an attention's forward that calls another function by the name `ROTARY`.

    The function's own module stays as it is: other models of the family use it.
    """
    plain: Callable[..., Any] = forward.__globals__[ROTARY]

    def rotate(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 4 and not kwargs and _can_rotate(kernels, *args):
            return kernels.rotate(*args)
        return plain(*args, **kwargs)

    names: dict[str, Any] = {**forward.__globals__, ROTARY: rotate}
    own = FunctionType(
        forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    return own


def _can_rotate(
    kernels: Kernels, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> bool:
    return (
        q.dim() == 4
        and cos.dim() == 3
        and cos.shape[-1] == q.shape[-1]
        and not cos.requires_grad
        and kernels.take(q, k, cos, sin)
    )
