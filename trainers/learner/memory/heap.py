"""How the C library holds what tensors on the CPU have freed (glibc; elsewhere nothing is done).

Storages below a threshold, which glibc raises to 32 MiB by and by, lie in its heap, where pieces
that are freed stay until what comes next fits into them. That is fast. But a step then takes about
a fifth more than its tensors, and two times as much where layers are computed again. Above the
threshold every storage is the system's and goes back at once, which costs the system's time in
every step, since it clears the pages anew.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

# What a step takes in glibc's heap, for each byte of its activations (benchmarks/memory.py).
SLACK = 1.2
# Longer micro-batches are freed exactly always: they leave more in the heap (nine tenths more at
# 8,192 tokens), and the system's time is little beside their attention.
HEAP_TOKENS = 2048
# From which size on a storage is the system's, where memory is short.
EXACT_FROM_BYTES = 2**20
_M_MMAP_THRESHOLD = -3  # of malloc.h


def give_back_freed_memory(device: torch.device) -> None:
    """Give memory that tensors on the CPU have left back to the system; a few milliseconds.

    A pass through a model frees what its layers needed, tens of megabytes at a time. glibc keeps
    most of it, in pieces that the next phase's tensors do not fit into, so that the peak of a step
    would count both. With another C library, or on another device, nothing is done.

    Args:
        device: Where the tensors are that were freed.
    """
    if device.type == "cpu" and (trim := _function("malloc_trim")) is not None:
        trim(0)


def free_exactly(device: torch.device) -> None:
    """From now on, give back what larger tensors on the CPU take as soon as they are freed."""
    if device.type == "cpu" and (mallopt := _function("mallopt")) is not None:
        mallopt(_M_MMAP_THRESHOLD, EXACT_FROM_BYTES)


@cache
def _function(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None)
