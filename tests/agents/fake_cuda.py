"""Tensors on a CUDA device that have shapes and no values, wherever there is no such device.

An operation between a tensor there and one on the CPU fails, as it would there, and so does what
asks for one value; `tolist` is counted and gives zeros. A PyTorch built without CUDA has no device
to make current, which some methods of tensors do before they are dispatched: these go to the
dispatcher directly. Its autograd has none either, so gradients are not computed here.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


@contextmanager
def fake_cuda() -> Iterator[FakeTensorMode]:
    """Make tensors fake; `device="cuda"` works."""
    reading = patch.object(FakeTensor, "tolist", _tolist)
    with torch.no_grad(), FakeTensorMode() as mode, _Dispatched(), reading:
        yield mode


def moved(model: Any) -> Any:
    """A model with weights of the same shapes there; call it within `fake_cuda`."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(_like(weight), requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, _like(buffer))
    return model


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")


class _Dispatched(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        dispatched = _DIRECTLY.get(func)
        return (dispatched or func)(*args, **(kwargs or {}))


_waits = 0


def waits() -> int:
    """How often values were read from the device so far."""
    return _waits


def _tolist(tensor: torch.Tensor) -> Any:
    global _waits
    _waits += tensor.device.type == "cuda"
    return np.zeros(tensor.shape).tolist()


def _contiguous(tensor: torch.Tensor, **_: Any) -> Any:
    return (
        tensor
        if tensor.is_contiguous()
        else aten.clone(tensor, memory_format=torch.contiguous_format)
    )


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    for value in [*args, *kwargs.values()]:
        if isinstance(value, torch.Tensor):
            value_dtype, device = value.dtype, value.device
            return aten._to_copy(tensor, dtype=value_dtype, device=device)
    dtype, device = tensor.dtype, tensor.device
    for value in [*args, *kwargs.values()]:
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, torch.device | str):
            device = torch.device(value)
    if dtype == tensor.dtype and device == tensor.device:
        return tensor
    return aten._to_copy(tensor, dtype=dtype, device=device)


def _getitem(tensor: torch.Tensor, index: Any) -> Any:
    """`tensor[index]` for whole numbers, slices, None, ... and tensors."""
    index = list(index) if isinstance(index, tuple) else [index]
    used = sum(1 for part in index if part is not None and part is not Ellipsis)
    if Ellipsis in [part for part in index if not isinstance(part, torch.Tensor)]:
        at = next(i for i, part in enumerate(index) if part is Ellipsis)
        index[at : at + 1] = [slice(None)] * (tensor.dim() - used)
    dimension, indices = 0, list[torch.Tensor | None]()
    for part in index:
        if part is None:
            tensor, dimension = aten.unsqueeze(tensor, dimension), dimension + 1
        elif isinstance(part, torch.Tensor):
            indices += [None] * (dimension - len(indices)) + [part]
            dimension += 1
        elif isinstance(part, slice):
            if part != slice(None):
                step = 1 if part.step is None else part.step
                tensor = aten.slice(tensor, dimension, part.start, part.stop, step)
            dimension += 1
        else:
            tensor = aten.select(tensor, dimension, part)
    return aten.index(tensor, indices) if indices else tensor


def _made(data: Any, dtype: Any = None, device: Any = None) -> Any:
    """`torch.tensor(data)`."""
    array = np.array(data)
    kind = dtype or torch.get_default_dtype()
    if dtype is None and (array.dtype != np.float64 or isinstance(data, np.ndarray)):
        kind = {"b": torch.bool, "i": torch.long, "f": torch.float64}[array.dtype.kind]
    return torch.empty(array.shape, dtype=kind, device=device)


def _setitem(tensor: torch.Tensor, index: Any, value: Any) -> None:
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, torch.Tensor) for part in parts):
        whole = [part if isinstance(part, torch.Tensor) else None for part in parts]
        assert all(isinstance(part, torch.Tensor) or part == slice(None) for part in parts)
        aten.index_put_(tensor, whole, value)
    elif isinstance(value, torch.Tensor):
        aten.copy_(_getitem(tensor, index), value)
    else:
        aten.fill_(_getitem(tensor, index), value)


_DIRECTLY: dict[Any, Any] = {
    torch.tensor: _made,
    torch.from_numpy: _made,
    torch.Tensor.copy_: aten.copy_,
    torch.Tensor.contiguous: _contiguous,
    torch.Tensor.to: _to,
    torch.Tensor.float: lambda tensor: _to(tensor, torch.float32),
    torch.Tensor.double: lambda tensor: _to(tensor, torch.float64),
    torch.Tensor.long: lambda tensor: _to(tensor, torch.long),
    torch.Tensor.bool: lambda tensor: _to(tensor, torch.bool),
    torch.Tensor.__invert__: aten.bitwise_not,
    torch.Tensor.__getitem__: _getitem,
    torch.Tensor.__setitem__: _setitem,
}
