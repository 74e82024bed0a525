"""Triton's kernels of paged attention: interpreted on the CPU, compiled for GPUs, run on one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents.engine.paged_attention import attend_pages, write_pages, write_pages_plain
from paged_cases import Case, Spec, make_case

ROUNDING = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SPECS = st.builds(
    Spec,
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 6),
    levels=st.integers(0, 3),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 8),
    width=st.sampled_from([8, 16, 24, 64, 72]),
    value_width=st.sampled_from([8, 16, 40, 64]),
    window=st.sampled_from([None, None, 1, 7, 16, 50]),
    softcap=st.sampled_from([None, None, 0.5, 20.0]),
    sinks=st.booleans(),
    padding=st.integers(0, 3),
    narrow_rows=st.sampled_from([16, 32]),
    wide_rows=st.sampled_from([16, 64]),
)


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest, relative to 1 or to the largest value expected; NaN if any is."""
    size = max(1.0, float(expected.abs().max()))
    return float((found.double() - expected.double()).abs().max()) / size


@pytest.mark.triton
@given(SPECS)
@settings(max_examples=80)
def test_items_attend_to_what_tokens_see(interpreted: Callable[..., Any], spec: Spec) -> None:
    case = make_case(spec)
    found = interpreted(attend_pages, *case.arguments(), case.work, case.settings)
    assert found.dtype == spec.dtype and found.is_contiguous()
    assert difference(found, case.expected()) < ROUNDING[spec.dtype]
    assert difference(found[: len(found) - case.padding], plain(case)) < ROUNDING[spec.dtype]
    assert not found[len(found) - case.padding :].any()


def plain(case: Case) -> torch.Tensor:
    out = case.plain()
    return out[: len(out) - case.padding]
