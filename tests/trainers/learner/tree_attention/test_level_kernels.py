"""Triton's sums over levels: interpreted on the CPU, compiled for GPUs, run on one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled_kernels import CAPABILITIES, TYPES, check_resources, compiled
from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.tree_attention.calls import Tree
from gymnast.trainers.learner.tree_attention.cuda_flash import FlashVarlen
from gymnast.trainers.learner.tree_attention.join import attend
from gymnast.trainers.learner.tree_attention.kernels import varlen_for
from gymnast.trainers.learner.tree_attention.level_sums import (
    TILE,
    add_by_kernel,
    add_plain,
    gradient_of_sinks,
    join_by_kernel,
    join_plain,
)
from trees import attend_under_a_mask, chain, drawn_tree, groups, seen_in_truth, tree_of

Part = tuple[torch.Tensor, torch.Tensor]
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
# Triton's interpreter cuts off what a GPU rounds.
ROUNDING = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


class Case:
    """Parts of random tokens at each level.

    Args:
        levels: The number of levels.
        tokens: N.
        heads: H and Hkv.
        width: D.
        dtype: Of the parts.
        seed: Of the random numbers.
    """

    def __init__(
        self,
        levels: int,
        tokens: int,
        heads: tuple[int, int],
        width: int,
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.levels, self.tokens, self.heads = levels, tokens, heads
        self.width, self.dtype = width, dtype
        self.depth = self.integers(1, levels + 1)
        seen = self.integers(0, levels)
        self.seen_at = torch.where(seen <= self.depth, seen, 0)
        self.outs = [self.floats(tokens, heads[0], width) for _ in range(levels)]
        self.sums = [self.floats(heads[0], tokens).float() * 5 for _ in range(levels)]
        self.sinks = self.floats(heads[0]) * 5
        self.grads = [
            [self.floats(tokens, heads[kind], width) for kind in (0, 1, 1)] for _ in range(levels)
        ]

    def integers(self, low: int, high: int) -> torch.Tensor:
        drawn = torch.randint(low, high, (self.tokens,), generator=self.draw)
        return drawn.int()

    def floats(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.draw).to(self.dtype)

    def parts(self, nothing: float, endless: float) -> list[Part]:
        """Copies of the parts; `nothing` and `endless` where a token has no part."""
        parts = []
        for level, (out, total) in enumerate(zip(self.outs, self.sums, strict=True)):
            missing = self.depth <= level
            out, total = out.clone(), total.clone()
            out[missing], total[:, missing] = nothing, endless
            parts.append((out, total))
        return parts

    def gradients(self, nothing: float) -> list[Gradients]:
        """Copies of the gradients; `nothing` where a token has no part."""
        copies = []
        for level, (query, key, value) in enumerate(self.grads):
            query, key, value = query.clone(), key.clone(), value.clone()
            query[self.depth <= level] = nothing
            if level > 0:
                key[self.seen_at != level] = nothing
                value[self.seen_at != level] = nothing
            copies.append((query, key, value))
        return copies


cases = st.builds(
    Case,
    st.integers(1, 12),
    st.integers(1, 90),
    st.sampled_from([(1, 1), (2, 1), (6, 2), (3, 3)]),
    st.sampled_from([8, 24, 64, 72]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.integers(0, 10**6),
)


def join_there(parts: list[Part], *arguments: Any) -> Part:
    return join_by_kernel(iter(parts), *arguments)


def add_there(parts: list[Gradients], *arguments: Any) -> Gradients:
    return add_by_kernel(iter(parts), *arguments)


def assert_near(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == expected.dtype
    torch.testing.assert_close(
        found.float(), expected.float(), rtol=ROUNDING[dtype], atol=ROUNDING[dtype]
    )


@pytest.mark.triton
@settings(max_examples=30)
@given(cases, st.booleans())
def test_the_kernel_joins_as_plain_torch_does(
    interpreted: Callable[..., Any], case: Case, sinks: bool
) -> None:
    """Rows of tokens that have no part are not read: they are NaN here."""
    rest = (case.levels, case.depth, case.sinks if sinks else None)
    out, sums = interpreted(join_there, case.parts(torch.nan, torch.nan), *rest)
    expected, total = join_plain(iter(case.parts(0.0, torch.inf)), *rest)
    assert_near(out, expected, case.dtype)
    assert_near(sums, total, torch.float32)


@pytest.mark.triton
@settings(max_examples=30)
@given(cases)
def test_the_kernel_adds_as_plain_torch_does(interpreted: Callable[..., Any], case: Case) -> None:
    rest = (case.levels, case.depth, case.seen_at)
    found = interpreted(add_there, case.gradients(torch.nan), *rest)
    expected = add_plain(iter(case.gradients(0.0)), *rest)
    for mine, other in zip(found, expected, strict=True):
        assert_near(mine, other, case.dtype)


def sinks_by_kernel(*tensors: torch.Tensor) -> torch.Tensor:
    from unittest.mock import patch

    from gymnast.trainers.learner.tree_attention import level_sums

    with patch.object(level_sums, "has_kernels", lambda device: True):
        return gradient_of_sinks(*tensors)


@pytest.mark.triton
@settings(max_examples=20)
@given(cases)
def test_the_kernel_computes_the_gradient_of_sinks(
    interpreted: Callable[..., Any], case: Case
) -> None:
    sums = case.sums[0].abs() + case.sinks.max()  # of all weights, theirs included
    arguments = (case.grads[0][0], case.outs[0], sums, case.sinks)
    found, expected = interpreted(sinks_by_kernel, *arguments), gradient_of_sinks(*arguments)
    size = float(expected.abs().max())
    assert_near(found / size, expected / size, case.dtype)


@pytest.mark.triton
def test_parts_may_have_any_strides(interpreted: Callable[..., Any]) -> None:
    case = Case(7, 50, (4, 2), 24, torch.float32, 3)
    rest = (case.levels, case.depth, case.seen_at)

    def laid_out(by_head: Callable[[int], bool]) -> list[Any]:
        return [
            [t.transpose(0, 1).contiguous().transpose(0, 1) for t in part]
            if by_head(level)
            else part
            for level, part in enumerate(case.gradients(0.0))
        ]

    expected = add_plain(iter(case.gradients(0.0)), *rest)
    for parts in (laid_out(lambda level: True), laid_out(lambda level: level % 2 == 0)):
        for mine, other in zip(interpreted(add_there, parts, *rest), expected, strict=True):
            assert_near(mine, other, torch.float32)


def far_rows() -> list[torch.Tensor]:
    """Join and add rows of which the last is more than 2**31 elements after the first."""
    tokens, width = 5, 16
    stride = 2**31 // (tokens - 1) + width
    depth = torch.full((tokens,), 2, dtype=torch.int32)

    def far(value: float) -> torch.Tensor:  # memory that is not touched takes none
        memory = torch.empty(stride * tokens, dtype=torch.float16)
        return memory.as_strided((tokens, 1, width), (stride, width, 1)).fill_(value)

    sums = torch.zeros(1, tokens)
    out, _ = join_there([(far(1.0), sums.clone()), (far(3.0), sums.clone())], 2, depth, None)
    near = torch.zeros(4, tokens, 1, width, dtype=torch.float16)
    first, second = (far(1.0), near[0], near[1]), (far(3.0), near[2], near[3])
    query = add_there([first, second], 2, depth, depth * 0)[0][:, 0].clone()
    first, second = (near[0], far(5.0), near[1]), (near[2], far(7.0), near[3])
    key = add_there([first, second], 2, depth, depth * 0 + 1)[1]
    return [out[:, 0].clone(), query, key[:, 0].clone()]


@pytest.mark.triton
def test_tensors_may_exceed_2_to_the_31_elements(interpreted: Callable[..., Any]) -> None:
    out, query, key = interpreted(far_rows)
    assert (out == 2.0).all()
    assert (query == 4.0).all()
    assert (key == 12.0).all()


# --- Compiled


def configurations() -> Iterator[Any]:
    for capability in CAPABILITIES:
        for width in (64, 128, 256):
            yield torch.bfloat16, width, capability, False
        yield torch.bfloat16, 128, capability, True
    for width in (8, 24, 64, 72, 80, 96, 192, 256):
        yield torch.bfloat16, width, 86, True
    for width in (64, 256):
        yield torch.float16, width, 90, True


@pytest.mark.triton
@pytest.mark.parametrize(
    ("dtype", "width", "capability", "everything"),
    [
        pytest.param(*each, id="-".join([TYPES[each[0]], *map(str, each[1:])]))
        for each in configurations()
    ],
)
def test_sums_fit_every_card(
    dtype: torch.dtype, width: int, capability: int, everything: bool, tmp_path: Path
) -> None:
    """No spilled register, results are rounded to the nearest, rows are loaded 16 bytes at once."""
    pytest.importorskip("triton")
    from gymnast.trainers.learner.tree_attention.level_kernels import (
        add_levels,
        dot_rows,
        join_levels,
    )

    pointer = f"*{TYPES[dtype]}"
    stride = "i32 by 16" if width % 16 == 0 else "i32"
    padded = max(16, 1 << (width - 1).bit_length())
    shape = {"WIDTH": width, "PADDED_WIDTH": padded, "TOKENS": TILE // padded}
    numbers = {"tokens": "i32", "first": "i32"}
    letters = "abcd"
    joined = compiled(
        join_levels,
        capability,
        4,
        3,
        **dict.fromkeys(["out", "sinks", *(f"out_{each}" for each in letters)], pointer),
        **dict.fromkeys(["sums", "carry", *(f"sums_{each}" for each in letters)], "*fp32"),
        depth="*i32",
        **numbers,
        **dict.fromkeys(["token_stride", "head_stride"], stride),
        **shape,
        RESUMED=everything,
        HAS_SINKS=everything,
    )
    kinds = ("query", "key", "value")
    parts = [kind + suffix for kind in kinds for suffix in ("", *(f"_{each}" for each in letters))]
    strides = [f"{kind}_{of}_stride" for kind in kinds for of in ("token", "head")]
    added = compiled(
        add_levels,
        capability,
        4,
        3,
        **dict.fromkeys(parts, pointer),
        carry="*fp32",
        depth="*i32",
        seen_at="*i32",
        **numbers,
        **dict.fromkeys(strides, stride),
        HEADS=16,
        KEY_HEADS=8,
        **shape,
        RESUMED=everything,
    )
    dotted = compiled(
        dot_rows,
        capability,
        4,
        3,
        one=pointer,
        other=pointer,
        products="*fp32",
        tokens="i32",
        HEADS=16,
        **shape,
    )
    for made in (joined, added, dotted):
        check_resources(made, capability, tmp_path, spilled_bytes=0)
        assert "ld.global.v4" in made.asm["ptx"]
    for made in (joined, added):
        assert "cvt.rn." in made.asm["ptx"]


# --- On a GPU


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return torch.device("cuda")


TREES = {
    "a group": tree_of([-1, *[0] * 8], [300, *range(150, 158)]),
    "groups": drawn_tree([(0, 200), *[(0, 90)] * 6, (9, 130), (1, 40), (0, 1), (0, 170)]),
    "a tree": tree_of([-1, 0, 1, 1, 0, 1, 1, 2, 2, 0], [129, 40, 128, 1, 17, 250, 3, 64, 65, 200]),
    "a chain": tree_of([-1, *range(8)], [30] * 9),
}


def squares(ours: list[torch.Tensor], exact: list[torch.Tensor]) -> torch.Tensor:
    pairs = zip(ours, exact, strict=True)
    return torch.stack([(one.cpu().double() - other).square().mean() for one, other in pairs])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(8, 2, 64, 64), (4, 4, 128, 128), (6, 1, 80, 48)], ids=str)
@pytest.mark.parametrize("sinks", [False, True], ids=["plain", "sinks"])
@pytest.mark.parametrize("name", TREES)
def test_levels_on_a_gpu_are_as_close_as_explicit_attention(
    gpu: torch.device, name: str, heads: tuple[int, int, int, int], sinks: bool, dtype: torch.dtype
) -> None:
    tree, paths = TREES[name]
    query_heads, key_heads, width, value_width = heads
    seen = seen_in_truth(tree, paths)
    draw = torch.Generator().manual_seed(0)
    widths = ((query_heads, width), (key_heads, width), (key_heads, value_width))
    inputs = [torch.randn(len(tree), *each, generator=draw).to(dtype) for each in widths]
    if sinks:
        inputs.append(torch.randn(query_heads, generator=draw).to(dtype))
    gradient = torch.randn(len(tree), query_heads, value_width, generator=draw).to(dtype)
    layer = LayerSettings(0, width**-0.5)

    def computed(plain: bool) -> list[torch.Tensor]:
        there = [tensor.to(gpu).requires_grad_() for tensor in inputs]
        assert isinstance(varlen_for(there[0], there[2], layer), FlashVarlen)
        with_sinks = replace(layer, sinks=there[3] if sinks else None)
        out = attend(there[0], there[1], there[2], tree, with_sinks, plain=plain)
        return [out.detach(), *torch.autograd.grad(out, there, gradient.to(gpu))]

    wide = [tensor.double().requires_grad_() for tensor in inputs]
    out = attend_under_a_mask(
        wide[0], wide[1], wide[2], seen, layer.scale, wide[3] if sinks else None
    )
    exact = [out.detach(), *torch.autograd.grad(out, wide, gradient.double())]
    ours, theirs = (squares(computed(plain), exact).sqrt() for plain in (False, True))
    size = squares(exact, [torch.zeros_like(t) for t in exact]).sqrt()
    assert (ours / size < (0.02 if dtype == torch.bfloat16 else 0.003)).all()
    # There are few sinks, so the distance of theirs is a matter of chance.
    assert (ours[:4] <= 1.1 * theirs[:4]).all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tree", "calls"), [(groups(4, 8, 90, 60), 2), (chain(7, 33), 7)], ids=["groups", "chain"]
)
def test_levels_on_a_gpu_take_a_call_each(gpu: torch.device, tree: Tree, calls: int) -> None:
    from torch.profiler import ProfilerActivity, profile

    inputs = [
        torch.randn(len(tree), heads, 64, device=gpu, dtype=torch.bfloat16).requires_grad_()
        for heads in (8, 2, 2)
    ]
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        out = attend(inputs[0], inputs[1], inputs[2], tree, LayerSettings(0, 0.125))
        torch.autograd.grad(out.float().sum(), inputs)
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["aten::_flash_attention_forward"] == calls
    assert counts["aten::_flash_attention_backward"] == calls
