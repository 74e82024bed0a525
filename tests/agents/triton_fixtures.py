"""A process in which Triton's interpreter runs kernels on the CPU, with NumPy.

Triton decides when it is imported and when a kernel is decorated, so tests that compile kernels and
tests that interpret them cannot share a process.
"""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]


def _interpret() -> None:
    """Have kernels interpreted, and products of bfloat16 computed, which it takes for integers."""
    sys.path.append(str(ROOT))  # pytest names a test's module from here, and a function by it
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    np.seterr(divide="ignore")  # the logarithm of 0 is -inf on a GPU, without a warning
    multiply = interpreter.InterpreterBuilder.create_dot

    def widened(tensor: Any) -> Any:
        if tensor.dtype.scalar != tl.bfloat16:
            return tensor
        bits = tensor.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, widened(a), widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = create_dot


@pytest.fixture(scope="session")
def interpreted() -> Iterator[Callable[..., Any]]:
    """Call a function with arguments in that process: `interpreted(attend_pages, query, ...)`."""
    pytest.importorskip("triton")
    with ProcessPoolExecutor(1, get_context("spawn"), _interpret) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result()
