"""Comparisons row by row: what pairs, the mean difference and its interval, and who won."""

import math
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.evaluation.estimates import clustered_mean, student_t
from gymnast.trainers.evaluation.pairs import ScoredRow, compare

numbers = st.floats(-10, 10)
groups = st.lists(numbers, min_size=1, max_size=4)


def scored(*rewards: list[float], first: int = 0) -> list[ScoredRow]:
    return [
        ScoredRow((f"row {n}", n), n, {"n": n}, own) for n, own in enumerate(rewards, start=first)
    ]


def test_an_example_by_hand() -> None:
    ours = scored([0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0])
    theirs = scored([1.0, 1.0], [0.5, 1.0], [0.0, 0.0], [1.0, 1.0])
    found = compare(ours, theirs, 1.0)
    differences = [0.5, -0.25, 0.0, 0.5]
    half = student_t(3) * stdev(differences) / 2
    assert found.reward_difference == pytest.approx((0.1875, 0.1875 - half, 0.1875 + half))
    assert (found.rewards[0].value, found.rewards[1].value) == (0.5, 0.6875)
    assert found.pass_difference.value == pytest.approx(fmean([0.5, -0.5, 0.0, 0.5]))
    assert (found.won, found.tied, found.lost, found.rows) == (2, 1, 1, 4)
    assert [change.number for change in found.changes] == [0, 3, 1, 2]


def test_rows_pair_by_row_and_seed_in_any_order() -> None:
    ours = scored([1.0], [2.0], [3.0])
    theirs = [*reversed(scored([5.0], [7.0], first=1)), ScoredRow(("row 0", 9), 5, {}, [0.0])]
    found = compare(ours, theirs, 1.0)
    assert (found.rows, found.only_first, found.only_second) == (2, 1, 1)
    assert {change.number: change.difference for change in found.changes} == {1: 3.0, 2: 4.0}
    assert found.same_seeds
    with pytest.raises(ValueError, match="no row pairs"):
        compare(ours, [ScoredRow(("row 9", 0), 0, {}, [0.0])], 1.0)


def test_rows_of_other_seeds_pair_by_row_unless_only_seeds_tell_them_apart() -> None:
    ours = scored([1.0], [2.0], [3.0])
    theirs = [ScoredRow((f"row {n}", 9), n, {}, [4.0]) for n in range(2)]
    found = compare(ours, theirs, 1.0)
    assert (found.rows, found.only_first, found.only_second) == (2, 1, 0)
    assert found.reward_difference.value == 2.5 and not found.same_seeds
    alike = [ScoredRow(("{}", seed), seed, {}, [1.0]) for seed in range(4)]
    with pytest.raises(ValueError, match="no row pairs"):
        compare(alike[:2], alike[2:], 1.0)


@given(st.lists(st.tuples(groups, groups), min_size=1, max_size=8))
def test_the_difference_is_that_of_the_means_and_turns_its_sign(
    pairs: list[tuple[list[float], list[float]]],
) -> None:
    ours, theirs = scored(*(a for a, _ in pairs)), scored(*(b for _, b in pairs))
    found, turned = compare(ours, theirs, 1.0), compare(theirs, ours, 1.0)
    assert found.reward_difference.value == pytest.approx(
        found.rewards[1].value - found.rewards[0].value, abs=1e-9
    )
    assert found.reward_difference.value == pytest.approx(-turned.reward_difference.value)
    assert (found.won, found.tied, found.lost) == (turned.lost, turned.tied, turned.won)
    assert found.won + found.tied + found.lost == found.rows == len(pairs)
    low, high = found.reward_difference.low, found.reward_difference.high
    assert (low is None) == (len(pairs) < 2 or found.tied == len(pairs))
    if low is not None and high is not None:
        assert low <= found.reward_difference.value <= high
    assert -1 <= found.pass_difference.value <= 1


def test_a_difference_that_all_rows_share_is_certain_though_the_means_are_not() -> None:
    ours = scored([0.0], [10.0], [20.0])
    found = compare(ours, scored([1.0], [11.0], [21.0]), 100.0)
    assert found.reward_difference == (1.0, 1.0, 1.0)
    assert found.rewards[0] == clustered_mean([[0.0], [10.0], [20.0]])
    assert found.pass_difference == (0.0, None, None), "no row differs, which says little"
    assert math.isfinite(found.passes[0].value)
