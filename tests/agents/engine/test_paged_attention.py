"""Paged attention in plain torch, which needs no Triton, is the attention of models."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents.engine.paged_attention import PAGE, supported, write_pages_plain
from gymnast.agents.models.attention import attend, causal_mask, fold
from paged_cases import Case, Spec, make_case

SPECS = st.builds(
    Spec,
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 6),
    levels=st.integers(0, 3),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 8),
    width=st.sampled_from([8, 24, 72]),
    value_width=st.sampled_from([8, 40]),
    window=st.sampled_from([None, 1, 7, 50]),
    softcap=st.sampled_from([None, 0.5, 20.0]),
    sinks=st.booleans(),
    padding=st.integers(0, 3),
)


def by_models(case: Case) -> torch.Tensor:
    """`agents.models.attention.attend` on each token's keys, laid one after another."""
    outs = []
    group = case.query.shape[1] // case.keys.shape[1]
    for token in range(len(case.query) - case.padding):
        key, value = (each.transpose(0, 1)[None] for each in case.context(token))  # [1, L, Hkv, D]
        position = torch.tensor([key.shape[1] - 1])
        seen = causal_mask(position, torch.arange(key.shape[1]), case.settings.window)
        mask = fold(seen[None], group, torch.float32)
        outs.append(attend(case.query[token][None, None], key, value, mask, case.settings)[0, 0])
    return torch.stack(outs)


@given(SPECS)
@settings(max_examples=60)
def test_plain_attention_is_that_of_models(spec: Spec) -> None:
    case = make_case(spec)
    found = case.plain()[: len(case.query) - case.padding]
    torch.testing.assert_close(found, by_models(case), rtol=2e-6, atol=2e-6)


@given(SPECS)
@settings(max_examples=20)
def test_plain_attention_ignores_room_beyond_the_tables(spec: Spec) -> None:
    """The width in use changes from step to step; the most pages that may come do not."""
    case = make_case(replace(spec, padding=0))
    found = replace(case, most_pages=case.most_pages + 7).plain()
    torch.testing.assert_close(found, case.plain(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_plain_attention_keeps_the_type(dtype: torch.dtype) -> None:
    case = make_case(Spec(seed=1, dtype=dtype, padding=0, sinks=True))
    found = case.plain()
    assert found.dtype == dtype
    torch.testing.assert_close(found, case.expected().to(dtype))


def test_tokens_are_written_to_the_pages_of_their_rows() -> None:
    tables = torch.tensor([3, 1, 0, 2, 4, 0], dtype=torch.int32)  # two rows of three pages
    keys, values = torch.zeros(5, 2, PAGE, 4), torch.zeros(5, 2, PAGE, 8)
    key, value = torch.randn(3, 2, 4), torch.randn(3, 2, 8)
    rows = torch.tensor([0, 1, 1], dtype=torch.int32)
    positions = torch.tensor([PAGE - 1, PAGE, PAGE + 1])
    width = torch.tensor([3], dtype=torch.int32)
    write_pages_plain(key, value, keys, values, tables, width, rows, positions)
    for token, (page, slot) in enumerate([(3, PAGE - 1), (4, 0), (4, 1)]):
        assert torch.equal(keys[page, :, slot], key[token])
        assert torch.equal(values[page, :, slot], value[token])
    assert keys.count_nonzero() == key.numel() and values.count_nonzero() == value.numel()


def test_nothing_imports_triton_before_a_kernel_runs() -> None:
    program = (
        "import sys; sys.modules['triton'] = None; import gymnast.agents.engine.paged_attention"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.triton
@pytest.mark.parametrize(
    ("shape", "dtype", "capability", "named"),
    [
        ((64, 64), torch.float64, (9, 0), "float64"),
        ((576, 512), torch.bfloat16, (9, 0), "576"),
        ((64, 64), torch.bfloat16, (7, 5), "7.5"),
        ((512, 512, 64), torch.bfloat16, (9, 0), "64 query heads"),
    ],
)
def test_unsupported_layers_have_a_reason(
    shape: tuple[int, ...], dtype: torch.dtype, capability: tuple[int, int], named: str
) -> None:
    width, value_width, *group = shape
    reason = supported(width, value_width, dtype, capability, *group)
    assert reason is not None and named in reason and "\n" not in reason


@pytest.mark.triton
@pytest.mark.parametrize("width", [8, 64, 72, 80, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_common_widths_are_supported(width: int, dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    for capability in (None, (8, 0), (8, 9), (9, 0), (12, 0)):
        assert supported(width, width, dtype, capability, group=16) is None


def test_a_missing_triton_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    reason = supported(64, 64, torch.bfloat16, (9, 0))
    assert reason is not None and "gymnast-rl[gpu]" in reason
