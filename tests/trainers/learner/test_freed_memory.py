"""Memory that tensors have left goes back to the system."""

import ctypes
from pathlib import Path

import pytest
import torch

from gymnast.trainers.learner.freed_memory import give_back_freed_memory

MIB = 1 << 20
CPU = torch.device("cpu")

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc"
)


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@needs_glibc
def test_what_lies_between_tensors_in_use_is_given_back() -> None:
    torch.ones(16 * MIB, dtype=torch.uint8)  # from now on glibc keeps what is smaller
    tensors = [torch.ones(MIB, dtype=torch.uint8) for _ in range(256)]
    last = tensors[-1]
    tensors.clear()
    kept = resident_bytes()
    give_back_freed_memory(CPU)
    assert resident_bytes() < kept - 128 * MIB
    assert last.sum().item() == MIB
