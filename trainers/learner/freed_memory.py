"""Memory that tensors on the CPU have left, given back to the system (Linux with glibc).

A pass through a model frees what its layers needed, tens of megabytes at a time; the C library
keeps most of it, in pieces that the next phase's tensors do not fit into, so that the peak of a
step would count both. Where another C library or device is in use, nothing is done.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import torch


def give_back_freed_memory(device: torch.device) -> None:
    """Give freed memory back; a few milliseconds.

    Args:
        device: Where the tensors are that were freed.
    """
    if device.type == "cpu" and (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
