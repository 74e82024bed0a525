"""Triton's kernels of paged attention: interpreted on the CPU, compiled for GPUs, run on one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled_kernels import CAPABILITIES, TYPES, check_resources, compiled
from gymnast.agents.engine.paged_attention import (
    PAGE,
    attend_pages,
    padded,
    tiles,
    write_pages,
    write_pages_plain,
)
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
    splits=st.sampled_from([1, 2, 12]),
    narrow_rows=st.sampled_from([16, 32]),
    wide_rows=st.sampled_from([16, 32]),
)


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest, relative to 1 or to the largest value expected; NaN if any is."""
    size = max(1.0, float(expected.abs().max()))
    return float((found.double() - expected.double()).abs().max()) / size


def sampled(case: Case, out: torch.Tensor) -> torch.Tensor:
    """Without the tokens that are padding."""
    return out[: len(out) - case.padding]


@pytest.mark.triton
@given(SPECS)
@settings(max_examples=80)
def test_items_attend_to_what_tokens_see(interpreted: Callable[..., Any], spec: Spec) -> None:
    case = make_case(spec)
    found = interpreted(attend_pages, *case.arguments(), case.work, case.settings)
    assert found.dtype == spec.dtype and found.is_contiguous()
    assert difference(found, case.expected()) < ROUNDING[spec.dtype]
    assert difference(sampled(case, found), sampled(case, case.plain())) < ROUNDING[spec.dtype]
    if not (case.settings.sinks is not None or case.settings.softcap):
        assert difference(found, case.by_sdpa()) < ROUNDING[spec.dtype]


@pytest.mark.triton
@given(SPECS, st.sampled_from([torch.bfloat16, torch.float16]))
@settings(max_examples=20)
def test_half_precision_differs_by_rounding(
    interpreted: Callable[..., Any], spec: Spec, dtype: torch.dtype
) -> None:
    case = make_case(replace(spec, dtype=dtype, wide_rows=64))
    found = interpreted(attend_pages, *case.arguments(), case.work, case.settings)
    assert found.dtype == dtype
    assert difference(found, case.expected()) < ROUNDING[dtype]


@pytest.mark.triton
@given(SPECS, st.integers(1, 40))
@settings(max_examples=20)
def test_items_stay_valid_as_positions_advance(
    interpreted: Callable[..., Any], spec: Spec, steps: int
) -> None:
    """As in replays of a CUDA graph: an empty split fills, a window moves, items do not change."""
    case = make_case(spec, spare=steps).advanced(steps)
    found = interpreted(attend_pages, *case.arguments(), case.work, case.settings)
    assert difference(found, case.expected()) < ROUNDING[spec.dtype]


@pytest.mark.triton
@pytest.mark.parametrize("width", [96, 128, 192, 256, 512])
def test_wide_heads(interpreted: Callable[..., Any], width: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        spec = Spec(seed=width, width=width, value_width=min(width, 256), dtype=dtype, window=60)
        case = make_case(replace(spec, wide_rows=max(tiles(width, 256, dtype))))
        found = interpreted(attend_pages, *case.arguments(), case.work, case.settings)
        assert difference(found, case.expected()) < ROUNDING[dtype]


@pytest.mark.triton
def test_padding_gets_zeros_and_changes_nobody(interpreted: Callable[..., Any]) -> None:
    case = make_case(Spec(seed=3, rows=6, padding=3, sinks=True))
    found = interpreted(attend_pages, *case.arguments(), case.work, case.settings)
    assert not found[-3:].any()
    case.query[-3:] = torch.nan
    case.rows[-3:] = 0
    case.positions[-3:] = 7
    again = interpreted(attend_pages, *case.arguments(), case.work, case.settings)
    assert torch.equal(found, again)


@pytest.mark.triton
def test_a_query_may_have_any_strides(interpreted: Callable[..., Any]) -> None:
    case = make_case(Spec(seed=4))
    found = interpreted(attend_pages, *case.arguments(), case.work, case.settings)
    for query in (case.query.contiguous(), case.query.permute(2, 1, 0).clone().permute(2, 1, 0)):
        same = replace(case, query=query)
        assert torch.equal(
            found, interpreted(attend_pages, *same.arguments(), same.work, same.settings)
        )


def written(case: Case, write: Callable[..., None]) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the pages, with a key and a value for each token that is no padding."""
    keys, values = case.keys.clone(), case.values.clone()
    tokens = len(case.query) - case.padding
    key = case.query[:tokens, : keys.shape[1]] + 1
    value = key[..., : values.shape[3]].transpose(1, 2).clone().transpose(1, 2)
    places = (case.tables, case.table_width, case.rows[:tokens], case.positions[:tokens])
    write(key, value, keys, values, *places)
    return keys, values


@pytest.mark.triton
@given(SPECS)
@settings(max_examples=20)
def test_the_kernel_writes_what_plain_torch_writes(
    interpreted: Callable[..., Any], spec: Spec
) -> None:
    case = make_case(replace(spec, value_width=8, levels=0))  # no two tokens have one place
    found = interpreted(written, case, write_pages)
    for pages, expected in zip(found, written(case, write_pages_plain), strict=True):
        assert torch.equal(pages.nan_to_num(7.0), expected.nan_to_num(7.0))


def far_pages() -> float:
    """Read and write a page that begins more than 2**31 elements into its pool."""
    case = make_case(Spec(seed=5, rows=1, levels=0, key_heads=1, padding=0, dtype=torch.float16))
    page = int(case.tables[case.tables.nonzero()[0]])
    stride = 2**31 // page + PAGE
    far = [  # memory that is not touched takes none
        torch.empty(stride * page + PAGE * 16, dtype=torch.float16).as_strided(
            (page + 1, 1, PAGE, 16), (stride, PAGE * 16, 16, 1)
        )
        for _ in range(2)
    ]
    case.work.items[case.work.items[:, 1] > 0, 4] = PAGE  # of one page
    case = replace(case, positions=torch.zeros_like(case.positions), keys=far[0], values=far[1])
    key = torch.randn(len(case.query), 1, 16).half()
    places = (case.tables, case.table_width, case.rows, case.positions)
    write_pages(key, key + 1, case.keys, case.values, *places)
    found = attend_pages(*case.arguments(), case.work, case.settings)
    return difference(found, (key + 1).expand_as(found))


@pytest.mark.triton
def test_pools_may_exceed_2_to_the_31_elements(interpreted: Callable[..., Any]) -> None:
    assert interpreted(far_pages) < ROUNDING[torch.float16]


def configurations() -> Iterator[Any]:
    """All tiles with all that a layer may ask, for each card; other widths and types for some."""
    for width in (64, 128, 256, 512):
        for dtype in (torch.float32, torch.bfloat16):
            for rows in tiles(width, width, dtype):
                for capability in CAPABILITIES:
                    yield dtype, width, width, rows, capability, True
                yield dtype, width, width, rows, 90, False
        yield torch.float16, width, width, 16, 90, True
    for width, value_width in ((8, 8), (40, 24), (72, 72), (80, 80), (96, 96), (192, 128)):
        for dtype in (torch.float32, torch.bfloat16):
            for rows in (16, max(tiles(width, value_width, dtype))):
                yield dtype, width, value_width, rows, 86, True


@pytest.mark.triton
@pytest.mark.parametrize(
    ("dtype", "width", "value_width", "rows", "capability", "everything"),
    [
        pytest.param(*each, id="-".join([TYPES[each[0]], *map(str, each[1:])]))
        for each in configurations()
    ],
)
def test_kernels_fit_every_card(
    dtype: torch.dtype,
    width: int,
    value_width: int,
    rows: int,
    capability: int,
    everything: bool,
    tmp_path: Path,
) -> None:
    """Hardly a spilled register, no TF32, no more shared memory than consumer cards have."""
    pytest.importorskip("triton")
    from gymnast.agents.engine.paged_kernels import attend_items

    tile = tiles(width, value_width, dtype)[rows]
    pointer, aligned = f"*{TYPES[dtype]}", width % 16 == 0 and value_width % 16 == 0
    stride = "i32 by 16" if aligned else "i32"
    made = compiled(
        attend_items,
        capability,
        tile.warps,
        tile.stages,
        **dict.fromkeys(["query", "keys", "values", "sinks", "out"], pointer),
        **dict.fromkeys(["tables", "table_width", "items"], "*i32"),
        positions="*i64",
        partials="*fp32",
        logsums="*fp32",
        scale="fp32",
        softcap="fp32",
        window="i32",
        query_token_stride=stride,
        query_head_stride=stride,
        **dict.fromkeys(["key_page_stride", "key_head_stride"], "i32 by 16"),
        **dict.fromkeys(["value_page_stride", "value_head_stride"], "i32 by 16"),
        HEADS=24,
        GROUP=3,
        WIDTH=width,
        VALUE_WIDTH=value_width,
        PADDED_WIDTH=padded(width),
        PADDED_VALUE_WIDTH=padded(value_width),
        PAGE=PAGE,
        ROWS=rows,
        BLOCK=tile.block,
        HAS_WINDOW=everything,
        HAS_SOFTCAP=everything,
        HAS_SINKS=everything,
    )
    check_resources(made, capability, tmp_path)


@pytest.mark.triton
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", TYPES)
def test_small_kernels_fit_every_card(dtype: torch.dtype, capability: int, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from gymnast.agents.engine.paged_kernels import join_parts, write_tokens

    pointer = f"*{TYPES[dtype]}"
    for width in (72, 512):
        shape = {"VALUE_WIDTH": width, "PADDED_VALUE_WIDTH": padded(width)}
        joined = compiled(
            join_parts,
            capability,
            1 if width <= 128 else 4,
            3,
            partials="*fp32",
            logsums="*fp32",
            parts="*i32",
            part_slots="*i32",
            sinks=pointer,
            out=pointer,
            HEADS=24,
            PARTS=8,
            HAS_SINKS=True,
            **shape,
        )
        strides = [name for name in write_tokens.arg_names if name.endswith("stride")]
        wrote = compiled(
            write_tokens,
            capability,
            1,
            3,
            **dict.fromkeys(["key", "value", "keys", "values"], pointer),
            **dict.fromkeys(["tables", "table_width", "rows"], "*i32"),
            positions="*i64",
            **dict.fromkeys(strides, "i32"),
            WIDTH=width,
            PADDED_WIDTH=padded(width),
            PAGE=PAGE,
            **shape,
        )
        check_resources(joined, capability, tmp_path)
        check_resources(wrote, capability, tmp_path)


@pytest.mark.triton
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("block", [16, 256])
def test_random_numbers_fit_every_card(block: int, capability: int, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from gymnast.agents.engine.paged_kernels import draw_uniforms

    types = {"seeds": "*i32", "indices": "*i64", "points": "*fp64", "count": "i32"}
    made = compiled(draw_uniforms, capability, 4, 3, **types, BLOCK=block)
    check_resources(made, capability, tmp_path)


ON_GPU = [
    Spec(seed=11, rows=8, levels=3, key_heads=8, width=128, value_width=128),
    Spec(seed=12, rows=8, levels=2, key_heads=3, group=3, width=64, value_width=64, sinks=True),
    Spec(seed=13, rows=6, group=7, width=72, value_width=40, window=50, softcap=20.0),
    Spec(seed=14, rows=4, key_heads=1, group=8, width=192, value_width=128, window=7),
    Spec(seed=15, rows=4, key_heads=1, width=512, value_width=512, softcap=0.5, sinks=True),
]


@pytest.fixture
def gpu() -> torch.device:
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spec", ON_GPU, ids=lambda spec: f"width-{spec.width}")
def test_kernels_on_a_gpu(gpu: torch.device, spec: Spec, dtype: torch.dtype) -> None:
    case = make_case(replace(spec, dtype=dtype))
    there = case.to(gpu)
    found = attend_pages(*there.arguments(), there.work, there.settings).cpu()
    assert difference(found, case.expected()) < ROUNDING[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spec", ON_GPU, ids=lambda spec: f"width-{spec.width}")
def test_a_gpu_writes_what_plain_torch_writes(
    gpu: torch.device, spec: Spec, dtype: torch.dtype
) -> None:
    case = make_case(replace(spec, dtype=dtype, levels=0))  # no two tokens have one place
    found = written(case.to(gpu), write_pages)
    for pages, expected in zip(found, written(case, write_pages_plain), strict=True):
        assert torch.equal(pages.cpu().nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_graph_decodes_as_positions_advance(gpu: torch.device, dtype: torch.dtype) -> None:
    """A graph that writes and attends is captured once, and replayed for each further token."""
    steps = 20
    spec = Spec(seed=16, rows=8, levels=2, key_heads=4, width=64, value_width=64, dtype=dtype)
    case = make_case(spec, spare=steps, one_query=True).to(gpu)
    key = torch.randn_like(case.query[:, : case.keys.shape[1]])
    places = (case.tables, case.table_width, case.rows, case.positions)

    def step() -> torch.Tensor:
        write_pages(key, -key, case.keys, case.values, *places)
        return attend_pages(*case.arguments(), case.work, case.settings)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for _ in range(steps):
        case.positions[: len(case.query) - case.padding] += 1
        graph.replay()
        expected = sampled(case, case.plain())
        assert difference(sampled(case, out), expected) < ROUNDING[dtype]
