"""Compute a model in float64, whatever its weights are in: what is left is structure, not rounding.

Two ways of computing the same logits differ by rounding, in bfloat16 the more the longer a model
has been trained: by a tenth after a few steps, which no limit tells from a layer that mixes
sequences. In float64 the two agree to ten digits or are two different functions. One weight at a
time is converted, in the call that uses it, so a model takes no second copy of itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gymnast.errors import ModelError

# Differences between two computations, relative to the logits of a token.
LIMIT = 1e-3
LIMIT_OF_HALF = 0.05  # of the median token, where only the weights' own precision can be computed

# What a forward raises that is not made for what it is given.
FAILURES = (TypeError, ValueError, LookupError, AttributeError, RuntimeError)

_CASTS = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}
_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}
# Libraries of operators that would take tensors in float64 for tensors in float32.
_WITHOUT_FLOAT64 = {"bitsandbytes"}
_LOOKUPS = {torch.Tensor.__getitem__, F.embedding}  # the result is converted, not the table


class _InFloat64(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") in ("__get__", "__set__"):  # properties
            return func(*args, **kwargs)
        if getattr(func, "namespace", "") in _WITHOUT_FLOAT64:
            raise TypeError(f"{func} has no float64")
        if func in _CASTS:
            return args[0].double()
        if _is_in_place(func):  # what it changes stays what it is
            return func(args[0], *_raised(args[1:]), **_raised(kwargs))
        if func in _LOOKUPS:
            return _raised(func(*args, **kwargs))
        if func is torch.full:  # whose value may be the least float64
            kwargs.setdefault("dtype", torch.float64 if isinstance(args[1], float) else None)
        return _raised(func(*_raised(args), **_raised(kwargs)))


def _is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def _raised(value: Any) -> Any:
    """With float64 in place of every narrower floating dtype, of tensors and by name."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if type(value) in (list, tuple):
        return type(value)(map(_raised, value))
    if type(value) is dict:
        return {key: _raised(inner) for key, inner in value.items()}
    return value


@contextmanager
def in_float64(model: Any) -> Iterator[None]:
    """Have everything that torch computes on this thread computed in float64.

    Args:
        model: Of Transformers; its fused kernel for experts, which has no float64, is not used.
    """
    config = model.config.get_text_config()
    experts = getattr(config, "_experts_implementation", None)
    if experts is not None:
        config._experts_implementation = "eager"
    # A forward may replace tensors of its modules (rotary frequencies that change with the length).
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    try:
        with _InFloat64():
            yield
    finally:
        for module, attributes, buffers in before:
            _put_back(vars(module), attributes)
            _put_back(module._buffers, buffers)
        if experts is not None:
            config._experts_implementation = experts


def _put_back(current: dict[str, Any], before: Mapping[str, Any]) -> None:
    current.clear()
    current.update(before)


class Precision:
    """In what a model is compared with itself: float64, or where it cannot be, its own dtype.

    Args:
        model: Of Transformers, or of peft around one.
        ids: Some tokens to try it on.

    Attributes:
        in_float64: Whether it is float64.

    Raises:
        ModelError: The model cannot be run, or its logits are not finite.
    """

    def __init__(self, model: Any, ids: Sequence[int]) -> None:
        self._model = model
        given = torch.tensor([list(ids)], device=model.device)
        self.in_float64 = True
        with torch.no_grad():
            try:
                with in_float64(model):
                    logits = model(input_ids=given).logits
            except FAILURES:  # a kernel for one dtype, a device without float64
                self.in_float64 = False
                logits = _own_logits(model, given)
            _check_finite(model, logits)

    def computing(self) -> AbstractContextManager[None]:
        """Have what is computed within computed so."""
        return in_float64(self._model) if self.in_float64 else nullcontext()

    def differ(self, ours: torch.Tensor, theirs: torch.Tensor) -> float | None:
        """Compare logits [..., n, V] token by token.

        Half precision rounds coarsely, and now and then chooses another expert for a token, whose
        logits are then others altogether: there the median token decides.

        Returns:
            None if they agree up to rounding, else their relative difference.
        """
        difference = self.difference(ours, theirs)
        return None if difference < self.limit else difference

    @property
    def limit(self) -> float:
        """From where on a difference is no rounding."""
        return LIMIT if self._every_token else LIMIT_OF_HALF

    def difference(self, ours: torch.Tensor, theirs: torch.Tensor) -> float:
        """The relative difference of logits [..., n, V], that of the token which decides."""
        ours, theirs = ours.double(), theirs.double()
        size = torch.linalg.vector_norm(theirs, dim=-1).clamp(min=1e-6)
        relative = torch.linalg.vector_norm(ours - theirs, dim=-1) / size  # [..., n]
        return (relative.max() if self._every_token else relative.median()).item()

    @property
    def _every_token(self) -> bool:
        return self.in_float64 or self._model.dtype in (torch.float32, torch.float64)


def _own_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    try:
        logits: torch.Tensor = model(input_ids=ids).logits
    except FAILURES as error:
        raise ModelError(
            f"{type(model).__name__}: its forward pass over a few tokens failed "
            f"({type(error).__name__}: {error}). It must take input_ids alone and return logits, "
            "as the causal language models of Transformers do."
        ) from error
    return logits


def _check_finite(model: Any, logits: torch.Tensor) -> None:
    if torch.isfinite(logits).all():
        return
    weights = (name for name, weight in model.named_parameters() if not weight.isfinite().all())
    culprit = next(weights, None)
    why = "its weights are too large" if culprit is None else f"{culprit} holds NaN or infinity"
    raise ModelError(
        f"{type(model).__name__} gives logits that are not finite ({why}): the training that made "
        "it diverged, or its file is damaged. Choose another checkpoint."
    )
