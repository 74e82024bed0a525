"""The calls of a tree cover what its tokens see, each pair once."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.learner.tree_attention.calls import Call, Subtree, Tree


def tree_of(parents: list[int], lengths: list[int]) -> tuple[Tree, list[list[int]]]:
    """A tree in depth-first order, and the segments from the root to each segment.

    Args:
        parents: For each segment, which of the path to the one before it (or -1) is its parent.
        lengths: Of each segment.
    """
    paths: list[list[int]] = []
    for number, parent in enumerate(parents):
        before = paths[-1] if paths else []
        paths.append([*before[: (parent + 1) % (len(before) + 1)], number])
    starts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    subtrees = []
    for number, path in enumerate(paths):
        last = max(i for i, other in enumerate(paths) if number in other)
        position = sum(lengths[i] for i in path[:-1])
        subtrees.append(Subtree(starts[number], starts[number + 1], starts[last + 1], position))
    return Tree(subtrees), paths


def seen_in_truth(tree: Tree, paths: list[list[int]], window: int | None) -> torch.Tensor:
    """Which keys each token sees, [N, N]."""
    seen = torch.zeros(len(tree), len(tree), dtype=torch.bool)
    for path in paths:
        own = tree.subtrees[path[-1]].own
        for number in path:
            seen[own, tree.subtrees[number].own] = True
    positions = torch.cat([s.position + torch.arange(s.end - s.start) for s in tree.subtrees])
    back = positions[:, None] - positions
    return seen & (back >= 0) & (back < (len(tree) + 1 if window is None else window))


def seen_in_calls(calls: list[Call], tokens: int) -> torch.Tensor:
    """How often each token sees each key."""
    times = torch.zeros(tokens, tokens, dtype=torch.long)
    for call in calls:
        seen = call.seen(torch.device("cpu"))
        seen = torch.ones(call.asked, call.length, dtype=torch.bool) if seen is None else seen
        assert seen.any(dim=1).all(), f"a query of {call} sees nothing"
        times[call.queries, call.keys] += seen.long()
    return times


trees = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=8)
windows = st.one_of(st.none(), st.integers(1, 30))


@given(trees, windows, st.one_of(st.none(), st.integers(1, 12)))
def test_calls_cover_what_every_token_sees_once(
    shape: list[tuple[int, int]], window: int | None, size: int | None
) -> None:
    parents, lengths = (list(part) for part in zip(*shape, strict=True))
    tree, paths = tree_of([0, *parents[1:]], lengths)
    calls = tree.calls(window)
    if size is not None:
        calls = [block for call in calls for block in call.blocks(size)]
    truth = seen_in_truth(tree, paths, window)
    assert torch.equal(seen_in_calls(calls, len(tree)), truth.long())


@given(trees, windows)
def test_the_first_call_of_every_token_is_that_of_its_own_segment(
    shape: list[tuple[int, int]], window: int | None
) -> None:
    parents, lengths = (list(part) for part in zip(*shape, strict=True))
    tree, _ = tree_of([0, *parents[1:]], lengths)
    met = torch.zeros(len(tree), dtype=torch.bool)
    for call in tree.calls(window):
        assert met[call.queries].any() != call.first
        assert met[call.queries].all() != call.first
        met[call.queries] = True
    assert met.all()


def test_a_window_that_reaches_everything_hides_nothing() -> None:
    tree, _ = tree_of([0, 0, 0], [5, 3, 4])
    assert tree.calls(9) == tree.calls(None)
    assert tree.calls(8) != tree.calls(None)
