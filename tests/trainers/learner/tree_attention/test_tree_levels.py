"""A tree in as many calls as it is deep: the calls, the join and the gradients, without a GPU.

`varlen_reference.py` stands in for the kernels; all else is what runs on a GPU.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.policy.packing import TreePlan, pack
from gymnast.trainers.learner.tree_attention import join
from gymnast.trainers.learner.tree_attention.calls import Tree
from gymnast.trainers.learner.tree_attention.join import attend
from gymnast.trainers.learner.tree_attention.levels import divide_into_levels
from trees import (
    attend_under_a_mask,
    chain,
    drawn_tree,
    groups,
    seen_in_truth,
    shapes,
    tree_of,
)
from varlen_reference import PlainVarlen, levels_everywhere

CPU = torch.device("cpu")
APART = {torch.float64: 1e-11, torch.float32: 1e-5}
Tensors = list[torch.Tensor]


def drawn_inputs(
    tokens: int,
    heads: tuple[int, int],
    widths: tuple[int, int],
    dtype: torch.dtype,
    seed: int,
    sinks: bool,
) -> Tensors:
    """Query, key and value, and sinks if there are some."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [(tokens, heads[0], widths[0]), (tokens, heads[1], widths[0])]
    shapes.append((tokens, heads[1], widths[1]))
    drawn = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    if sinks:
        drawn.append(torch.randn(heads[0], generator=draw, dtype=torch.float64))
    return [tensor.to(dtype) for tensor in drawn]


def values_and_gradients(
    function: Callable[[Tensors], torch.Tensor], inputs: Tensors, gradient: torch.Tensor
) -> Tensors:
    """The result of a function of the inputs, and the gradients of all of them."""
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    out = function(inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, gradient.to(out.dtype))]


def by_tree(tree: Tree, layer: LayerSettings, *, plain: bool) -> Callable[[Tensors], torch.Tensor]:
    """Attend over a tree, with the sinks among the inputs if there are any."""

    def attended(inputs: Tensors) -> torch.Tensor:
        query, key, value, *sinks = inputs
        with_sinks = replace(layer, sinks=sinks[0] if sinks else None)
        return attend(query, key, value, tree, with_sinks, plain=plain)

    return attended


def by_mask(seen: torch.Tensor, layer: LayerSettings) -> Callable[[Tensors], torch.Tensor]:
    """Attend in one piece, under the mask of a tree."""

    def attended(inputs: Tensors) -> torch.Tensor:
        query, key, value, *sinks = inputs
        extra = sinks[0] if sinks else None
        return attend_under_a_mask(query, key, value, seen, layer.scale, extra)

    return attended


# --- Division


@given(shapes)
def test_levels_cover_what_every_token_sees_once(shape: list[tuple[int, int]]) -> None:
    tree, paths = drawn_tree(shape)
    levels = divide_into_levels(tree, CPU)
    times = torch.zeros(len(tree), len(tree), dtype=torch.long)
    for call in levels.calls:
        both = zip(pairwise(call.queries.tolist()), pairwise(call.keys.tolist()), strict=True)
        for (a, b), (c, d) in both:
            ones = torch.ones(b - a, d - c, dtype=torch.long)
            times[a:b, c:d] += ones.tril() if call.causal else ones
    assert torch.equal(times, seen_in_truth(tree, paths).long())


@given(shapes)
def test_bounds_cover_every_query_and_every_key(shape: list[tuple[int, int]]) -> None:
    tree, _ = drawn_tree(shape)
    for call in divide_into_levels(tree, CPU).calls:
        for bounds, longest in (
            (call.queries, call.longest_query),
            (call.keys, call.longest_key),
        ):
            lengths = bounds.diff()
            assert (int(bounds[0]), int(bounds[-1])) == (0, len(tree))
            assert (lengths >= 0).all() and longest == max(2, int(lengths.max()))


@given(shapes)
def test_fillers_are_no_longer_than_the_longest_sequence(shape: list[tuple[int, int]]) -> None:
    for call in divide_into_levels(drawn_tree(shape)[0], CPU).calls[1:]:
        queries, keys = call.queries.diff(), call.keys.diff()
        real = (queries > 0) & (keys > 0)
        most = max(int(queries[real].max()), int(keys[real].max()))
        assert max(int(queries.max()), int(keys.max())) == most


@given(shapes)
def test_depths_count_the_parts_of_tokens(shape: list[tuple[int, int]]) -> None:
    tree, paths = drawn_tree(shape)
    levels = divide_into_levels(tree, CPU)
    for number, (subtree, path) in enumerate(zip(tree.subtrees, paths, strict=True)):
        below = any(number in other[:-1] for other in paths)
        assert (levels.depth[subtree.own] == len(path)).all()
        assert (levels.seen_at[subtree.own] == (len(path) if below else 0)).all()


@pytest.mark.parametrize(
    ("tree", "calls"),
    [
        (tree_of([-1], [5])[0], 1),
        (tree_of([-1] * 6, [5, 1, 4, 1, 1, 9])[0], 1),
        (groups(1, 8), 2),
        (groups(5, 8), 2),
        (groups(40, 3), 2),
        (chain(7), 7),
        (tree_of([-1, 0, 1, 1, 0, 1, 1, 2, 2], [9, 4, 2, 2, 4, 2, 5, 1, 1])[0], 4),
    ],
    ids=["one", "separate", "a group", "five groups", "forty groups", "a chain", "a tree"],
)
def test_calls_are_as_many_as_the_tree_is_deep(tree: Tree, calls: int) -> None:
    layer = LayerSettings(0, 0.3)
    inputs = drawn_inputs(len(tree), (4, 2), (8, 8), torch.float64, 0, sinks=True)
    with levels_everywhere() as used:
        values_and_gradients(by_tree(tree, layer, plain=False), inputs, inputs[0])
    (varlen,) = used
    assert (len(varlen.forwards), len(varlen.backwards)) == (calls, calls)


def test_layers_share_the_bounds_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    divided: list[torch.device] = []

    def divide(tree: Tree, device: torch.device) -> object:
        divided.append(device)
        return divide_into_levels(tree, device)

    monkeypatch.setattr(join, "divide_into_levels", divide)
    tree = groups(2, 3)
    inputs = drawn_inputs(len(tree), (4, 2), (8, 8), torch.float64, 0, sinks=False)
    with levels_everywhere():
        for layer in range(3):
            by_tree(tree, LayerSettings(layer, 0.3, window=99 if layer else None), plain=False)(
                inputs
            )
    assert divided == [CPU]


# --- Values and gradients


@settings(max_examples=150)
@given(
    shapes,
    st.integers(1, 8),
    st.integers(1, 2),
    st.sampled_from([(8, 8), (8, 12), (12, 8), (5, 3), (16, 16)]),
    st.booleans(),
    st.sampled_from([torch.float64, torch.float32]),
    st.integers(0, 9),
)
def test_levels_equal_attention_under_a_mask(
    shape: list[tuple[int, int]],
    heads_per_key: int,
    key_heads: int,
    widths: tuple[int, int],
    sinks: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    tree, paths = drawn_tree(shape)
    layer = LayerSettings(0, 0.3)
    heads = (key_heads * heads_per_key, key_heads)
    inputs = drawn_inputs(len(tree), heads, widths, dtype, seed, sinks)
    gradient = drawn_inputs(len(tree), heads, (widths[1], 1), dtype, seed + 1, False)[0]
    with levels_everywhere() as used:
        ours = values_and_gradients(by_tree(tree, layer, plain=False), inputs, gradient)
    assert used[0].backwards
    seen = seen_in_truth(tree, paths)
    masked = values_and_gradients(by_mask(seen, layer), inputs, gradient)
    usual = values_and_gradients(by_tree(Tree(tree.subtrees), layer, plain=False), inputs, gradient)
    for mine, *others in zip(ours, masked, usual, strict=True):
        for other in others:
            assert mine.dtype == dtype
            torch.testing.assert_close(mine, other, rtol=APART[dtype], atol=APART[dtype])


@pytest.mark.parametrize("segments", [1, 2, 5, 6, 9, 10, 14])
def test_deep_trees_are_exact(segments: int) -> None:
    tree = chain(segments)
    paths = [list(range(number + 1)) for number in range(segments)]
    layer = LayerSettings(0, 0.3)
    inputs = drawn_inputs(len(tree), (6, 2), (8, 8), torch.float64, 3, sinks=True)
    with levels_everywhere():
        ours = values_and_gradients(by_tree(tree, layer, plain=False), inputs, inputs[0] + 1)
    seen = seen_in_truth(tree, paths)
    theirs = values_and_gradients(by_mask(seen, layer), inputs, inputs[0] + 1)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_levels_take_tensors_of_any_layout(dimension: int) -> None:
    tree, layer = groups(2, 3), LayerSettings(0, 0.3)
    inputs = drawn_inputs(len(tree), (4, 2), (8, 8), torch.float64, 0, sinks=True)
    strange = [t.transpose(0, dimension).contiguous().transpose(0, dimension) for t in inputs[:3]]
    strange.append(inputs[3])
    gradient = strange[0] + 1
    with levels_everywhere():
        attended = by_tree(tree, layer, plain=False)
        ours = values_and_gradients(attended, strange, gradient)
        theirs = values_and_gradients(attended, inputs, gradient.contiguous())
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def squares(ours: Tensors, exact: Tensors) -> torch.Tensor:
    """The mean square of the difference, of each tensor."""
    pairs = zip(ours, exact, strict=True)
    return torch.stack([(one.double() - other).square().mean() for one, other in pairs])


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(
    ("tree", "paths"),
    [
        tree_of([-1, *[0] * 4], [30, *range(15, 19)]),
        tree_of([-1, 0, 1, 1, 0, 1, 1], [20, 15, 15, 9, 10, 15, 15]),
        tree_of([-1, *range(8)], [10] * 9),
    ],
    ids=["a group", "a tree", "a chain"],
)
def test_bfloat16_is_as_close_as_explicit_attention(
    tree: Tree, paths: list[list[int]], sinks: bool
) -> None:
    """Its distance from float64 is at most 1.1 times that of attention under a mask.

    There are few sinks, whose gradients are of many tokens: so the distance is that of many draws.
    """
    layer, seen = LayerSettings(0, 16**-0.5), seen_in_truth(tree, paths)
    ours, theirs = torch.zeros(2, 5 if sinks else 4, dtype=torch.float64)
    for seed in range(30):
        inputs = drawn_inputs(len(tree), (8, 2), (16, 16), torch.bfloat16, seed, sinks)
        gradient = drawn_inputs(len(tree), (8, 2), (16, 16), torch.bfloat16, -seed - 1, False)[0]
        exact = values_and_gradients(by_mask(seen, layer), [t.double() for t in inputs], gradient)
        theirs += squares(values_and_gradients(by_mask(seen, layer), inputs, gradient), exact)
        with levels_everywhere():
            found = values_and_gradients(by_tree(tree, layer, plain=False), inputs, gradient)
        ours += squares(found, exact)
    assert ((ours / theirs).sqrt() <= 1.1).all()


# --- Where levels are not used


def test_a_plain_plan_attends_without_levels() -> None:
    packed = pack([[*range(20), 1], [*range(20), 2, 3]])
    shape = (len(packed.ids), (4, 2), (8, 8))
    query, key, value = drawn_inputs(*shape, torch.float64, 0, sinks=False)
    layer = LayerSettings(0, 0.3)
    with levels_everywhere() as used:
        plain = TreePlan(packed, plain=True).attend(query, key, value, layer)
        assert not used
        fused = TreePlan(packed).attend(query, key, value, layer)
        assert used
    torch.testing.assert_close(plain, fused, rtol=1e-11, atol=1e-11)


@settings(max_examples=60)
@given(shapes, st.integers(1, 60), st.booleans(), st.integers(0, 9))
def test_windows_take_levels_where_they_hide_nothing(
    shape: list[tuple[int, int]], window: int, sinks: bool, seed: int
) -> None:
    tree, paths = drawn_tree(shape)
    layer = LayerSettings(0, 0.3, window=window)
    inputs = drawn_inputs(len(tree), (4, 2), (8, 8), torch.float64, seed, sinks)
    seen = seen_in_truth(tree, paths, window)
    with levels_everywhere() as used:
        ours = values_and_gradients(by_tree(tree, layer, plain=False), inputs, inputs[0])
    assert bool(used) == torch.equal(seen, seen_in_truth(tree, paths))
    theirs = values_and_gradients(by_mask(seen, layer), inputs, inputs[0])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_plain_attention_uses_matrix_products_alone(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> PlainVarlen:
        raise AssertionError("a fused kernel was chosen")

    monkeypatch.setattr(join, "varlen_for", refuse)
    monkeypatch.setattr("gymnast.trainers.learner.tree_attention.kernels.CPUFlash.takes", refuse)
    monkeypatch.setattr("gymnast.trainers.learner.tree_attention.kernels.CUDAFlash.takes", refuse)
    tree, paths = tree_of([-1, 0, 0, -1, 0], [9, 4, 6, 5, 5])
    inputs = drawn_inputs(len(tree), (6, 2), (12, 8), dtype, 0, sinks=True)
    layer = LayerSettings(0, 0.3, window=8)
    gradient = inputs[0][..., :8].contiguous()
    found = values_and_gradients(by_tree(tree, layer, plain=True), inputs, gradient)
    seen = seen_in_truth(tree, paths, 8)
    exact = values_and_gradients(by_mask(seen, layer), [t.double() for t in inputs], gradient)
    apart = APART.get(dtype, 0.1)
    for mine, other in zip(found, exact, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=apart, atol=apart)
