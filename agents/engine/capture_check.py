"""A check that a CUDA graph can hold a model's steps, made on any device.

A graph replays kernels alone: a step must not read a tensor's value on the host, have a shape that
depends on values, or copy from the host. A CPU tells these by the operations that it computes. What
only a GPU does otherwise it cannot tell, such as a kernel that is chosen by the type of the card.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gymnast.agents.engine.sampling import Filters
from gymnast.agents.engine.static_step import (
    StaticStep,
    StepInputs,
    StepShape,
    layer_shapes,
)
from gymnast.agents.models.routing import Routers

# Operators that read values, or whose results have sizes that depend on values.
_READING = {
    "_local_scalar_dense",
    "_unique",
    "_unique2",
    "allclose",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
# Methods that read values without an operator, on a CPU.
_METHODS = {
    torch.Tensor.cpu: "cpu",
    torch.Tensor.numpy: "numpy",
    torch.Tensor.tolist: "tolist",
}
_MADE_ON_THE_HOST = {
    torch.tensor: "tensor",
    torch.as_tensor: "as_tensor",
    torch.Tensor.new_tensor: "new_tensor",
}


def reads_values(model: Any, routers: Routers | None = None) -> str | None:
    """Find the first operation of a decoding step that a CUDA graph cannot hold.

    Args:
        model: Of Transformers, in evaluation mode, that attends through a plan.
        routers: Of the model, if the experts that it chooses are to be recorded.

    Returns:
        The operation and the function that calls it, such as "nonzero in Experts.forward"; None if
        there is none.
    """
    shape = StepShape(tokens=4, samples=4, filters=Filters(True, True, True))
    numbers = StepInputs.numbers_before_tables(shape) + 1
    step = StaticStep(
        model,
        layer_shapes(model),
        pages=2,
        slots=shape.samples,
        most_tokens=shape.tokens,
        most_samples=shape.samples,
        most_numbers=numbers,
        most_steps=1,
        unread=1,
        attention="plain",
        routers=routers,
        use_graphs=False,
    )
    step.mark_seen(0, np.array([1]))
    with torch.no_grad():  # under inference_mode, operators come here without their parts
        step.step_on_padding(shape)  # buffers that are made once
        operators = _Operators()  # type: ignore[no-untyped-call]
        with operators, _Calls(operators):
            step.step_on_padding(shape)
    return operators.first


class _Operators(TorchDispatchMode):
    """Notes the first operator that reads a value or has a size that depends on values."""

    first: str | None = None
    ignoring = False

    def note(self, operation: str) -> None:
        """Note an operation, unless there was one before it."""
        if self.first is None and not self.ignoring:
            self.first = f"{operation} in {_caller()}"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if name in _READING:
            self.note({"_local_scalar_dense": "item"}.get(name, name.strip("_2")))
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            if any(
                each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
            ):
                self.note("an index of booleans")
        elif func is torch.ops.aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            self.note("repeat_interleave without output_size")
        return func(*args, **kwargs)


class _Calls(TorchFunctionMode):
    """Notes calls that read values without an operator, and tensors that are made on the host."""

    def __init__(self, operators: _Operators) -> None:
        super().__init__()
        self._operators = operators

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        operators = self._operators
        if func in _METHODS:
            operators.note(_METHODS[func])
        elif func in _MADE_ON_THE_HOST:
            data = kwargs.get("data", args[-1] if args else None)
            there = kwargs.get("device") is not None or func is torch.Tensor.new_tensor
            if there and not isinstance(data, torch.Tensor):
                operators.note(_MADE_ON_THE_HOST[func])
        elif func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else args[1:2]
            if any(isinstance(part, list | np.ndarray) for part in index):
                operators.note("an index made on the host")
            elif (
                func is torch.Tensor.__setitem__
                and any(isinstance(part, torch.Tensor) for part in index)
                and not isinstance(args[2], torch.Tensor)
            ):
                operators.note("a number put at indices")
        elif func is torch.nn.functional.one_hot and kwargs.get("num_classes", args[-1]) != -1:
            # Only a CPU looks if the classes are in range.
            ignoring, operators.ignoring = operators.ignoring, True
            try:
                return func(*args, **kwargs)
            finally:
                operators.ignoring = ignoring
        return func(*args, **kwargs)


def _caller() -> str:
    """Name the function that called torch."""
    frame = sys._getframe(1)
    inside = {Path(torch.__file__).parent, Path(__file__)}
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if not inside & {path, *path.parents}:
            break
        frame = frame.f_back
    return frame.f_code.co_qualname
