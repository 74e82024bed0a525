"""What a computation allocates and frees, in order.

A trace sees what PyTorch's operators return, forward and backward, on any device. What a kernel
takes for itself while it runs is not seen, nor what an allocator keeps (`heap.py`).
"""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

_Ref = weakref.ref[torch.UntypedStorage]


class AllocationTrace(TorchDispatchMode):
    """Records, while it is entered, every storage that is made and when it is freed.

    Args:
        device: Whose storages are recorded.

    Attributes:
        sizes: Of each storage, in bytes, in the order of making.
        events: The index of a storage that is made, or ~index of one that is freed.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kind = device.type
        self.sizes: list[int] = []
        self.events: list[int] = []
        self._alive: dict[_Ref, int] = {}
        self._entered = False

    def __enter__(self) -> "AllocationTrace":
        self._entered = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._entered = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call an operator, and note the storages that it made."""
        given = {ref for tensor in _tensors((args, kwargs)) if (ref := _storage(tensor, None))}
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            ref = _storage(tensor, self._freed) if tensor.device.type == self._kind else None
            if ref is not None and ref not in given and ref not in self._alive:
                self._alive[ref] = len(self.sizes)
                self.events.append(len(self.sizes))
                self.sizes.append(tensor.untyped_storage().nbytes())
        return out

    def _freed(self, ref: _Ref) -> None:
        index = self._alive.pop(ref, None)
        if index is not None and self._entered:
            self.events.append(~index)


def live_bytes(sizes: np.ndarray, events: Sequence[int]) -> np.ndarray:
    """How many bytes are allocated after each event, [events].

    Args:
        sizes: Of each storage, in bytes.
        events: As in `AllocationTrace`.
    """
    number = np.array(events, dtype=np.int64)
    changes = np.where(number >= 0, sizes[np.maximum(number, ~number)], 0.0)
    changes -= np.where(number < 0, sizes[np.maximum(number, ~number)], 0.0)
    return changes.cumsum()


def _storage(tensor: torch.Tensor, ended: Any) -> _Ref | None:
    try:
        return weakref.ref(tensor.untyped_storage(), ended)
    except (NotImplementedError, RuntimeError):  # a tensor without a storage
        return None


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for part in value for tensor in _tensors(part)]
