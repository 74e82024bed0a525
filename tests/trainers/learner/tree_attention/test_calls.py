"""The calls of a tree cover what its tokens see, each pair once."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.learner.tree_attention.calls import Call
from trees import drawn_tree, seen_in_truth, shapes, tree_of


def seen_in_calls(calls: list[Call], tokens: int) -> torch.Tensor:
    """How often each token sees each key."""
    times = torch.zeros(tokens, tokens, dtype=torch.long)
    for call in calls:
        seen = call.seen(torch.device("cpu"))
        seen = torch.ones(call.asked, call.length, dtype=torch.bool) if seen is None else seen
        assert seen.any(dim=1).all(), f"a query of {call} sees nothing"
        times[call.queries, call.keys] += seen.long()
    return times


windows = st.one_of(st.none(), st.integers(1, 30))


@given(shapes, windows, st.one_of(st.none(), st.integers(1, 12)))
def test_calls_cover_what_every_token_sees_once(
    shape: list[tuple[int, int]], window: int | None, size: int | None
) -> None:
    tree, paths = drawn_tree(shape)
    calls = tree.calls(window)
    if size is not None:
        calls = [block for call in calls for block in call.blocks(size)]
    truth = seen_in_truth(tree, paths, window)
    assert torch.equal(seen_in_calls(calls, len(tree)), truth.long())


@given(shapes, windows)
def test_the_first_call_of_every_token_is_that_of_its_own_segment(
    shape: list[tuple[int, int]], window: int | None
) -> None:
    tree, _ = drawn_tree(shape)
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
