"""liger-kernel computes the formulas of fused modules, values and gradients; interpreted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from interpreted_liger import Pair, gated, model_of, normalized, rotated

pytestmark = pytest.mark.triton

ROUNDING = {torch.float32: 1e-5, torch.float16: 5e-3}
DTYPES = pytest.mark.parametrize("dtype", ROUNDING)


@pytest.fixture
def compare(interpreted: Callable[..., Any]) -> Callable[..., None]:
    pytest.importorskip("liger_kernel")

    def compared(function: Callable[..., Pair], *arguments: Any, limit: float) -> None:
        ours, theirs = interpreted(function, *arguments)
        assert len(ours) == len(theirs)
        for found, expected in zip(ours, theirs, strict=True):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            size = max(1.0, float(expected.abs().max()))
            assert float((found.double() - expected.double()).abs().max()) <= limit * size

    return compared


@DTYPES
@pytest.mark.parametrize("width", [8, 24, 130])
@pytest.mark.parametrize(("offset", "casting"), [(0.0, "llama"), (1.0, "gemma"), (0.0, "gemma")])
def test_norms(
    compare: Callable[..., None], dtype: torch.dtype, width: int, offset: float, casting: str
) -> None:
    compare(normalized, dtype, width, offset, casting, limit=ROUNDING[dtype])


@DTYPES
@pytest.mark.parametrize("width", [8, 24, 130])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_activations(
    compare: Callable[..., None], dtype: torch.dtype, width: int, activation: str
) -> None:
    compare(gated, dtype, width, activation, limit=ROUNDING[dtype])


@DTYPES
@pytest.mark.parametrize(("batch", "heads", "key_heads", "width"), [(1, 4, 2, 8), (3, 3, 1, 24)])
def test_rotary_embeddings(
    compare: Callable[..., None],
    dtype: torch.dtype,
    batch: int,
    heads: int,
    key_heads: int,
    width: int,
) -> None:
    compare(rotated, dtype, batch, heads, key_heads, width, limit=ROUNDING[dtype])


@pytest.mark.parametrize("family", ["gemma2", "lfm2", "olmo2", "qwen3"])
def test_models(compare: Callable[..., None], family: str) -> None:
    compare(model_of, family, limit=1e-4)
