"""pass@k, means and their intervals: by hand, against enumeration, and by how often they hold."""

import itertools
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.evaluation.estimates import (
    Estimate,
    clustered_mean,
    mean_share,
    pass_at_k,
    student_t,
)

# pass@k


def test_pass_at_k_of_four_episodes_by_hand() -> None:
    # Of four episodes two passed; of their six pairs, one holds no passed one.
    assert [pass_at_k(4, 2, k) for k in (1, 2, 3, 4)] == pytest.approx([1 / 2, 5 / 6, 1, 1])
    assert pass_at_k(4, 0, 4) == 0
    assert pass_at_k(1, 1, 1) == 1


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_average_over_all_subsets(passed: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(passed)))
    subsets = list(itertools.combinations(passed, k))
    assert pass_at_k(len(passed), sum(passed), k) == pytest.approx(fmean(map(any, subsets)))


@given(st.integers(1, 200), st.data())
def test_pass_at_k_is_a_chance_and_grows_with_k_and_with_what_passed(
    episodes: int, data: st.DataObject
) -> None:
    passed = data.draw(st.integers(0, episodes))
    chances = [pass_at_k(episodes, passed, k) for k in range(1, episodes + 1)]
    assert all(0 <= chance <= 1 for chance in chances)
    assert chances == sorted(chances)
    if passed < episodes:
        assert pass_at_k(episodes, passed + 1, 1) > chances[0]


@pytest.mark.parametrize(("episodes", "passed", "k"), [(3, 1, 4), (3, 4, 1), (3, 1, 0), (0, 0, 1)])
def test_pass_at_k_needs_k_episodes(episodes: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@k needs 1 <= k <= episodes"):
        pass_at_k(episodes, passed, k)


# Student's t


@pytest.mark.parametrize(
    ("degrees", "quantile"),  # the usual table, 97.5%
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)],
)
def test_quantiles_are_those_of_the_table(degrees: int, quantile: float) -> None:
    assert student_t(degrees) == pytest.approx(quantile, abs=5e-4)
    assert student_t(degrees) > student_t(degrees + 1) > 1.95996


# The mean, rows as clusters


def test_the_interval_of_four_numbers_by_hand() -> None:
    # Four rows of one episode: mean 2, sample variance (4 + 0 + 0 + 4) / 3, t with 3 degrees.
    half = 3.182446 * math.sqrt(8 / 3 / 4)
    assert clustered_mean([[0], [2], [2], [4]]) == pytest.approx((2, 2 - half, 2 + half))
    # Two rows of two: their means are 1 and 3, with variance 2; t with 1 degree.
    half = 12.706205 * math.sqrt(2 / 2)
    assert clustered_mean([[0, 2], [2, 4]]) == pytest.approx((2, 2 - half, 2 + half))


def test_episodes_of_one_row_are_not_independent() -> None:
    """Repeating each episode adds no rows, so it leaves the interval as it is."""
    rows = [[0.0], [1.0], [1.0], [0.5]]
    repeated = [row * 8 for row in rows]
    assert clustered_mean(repeated) == pytest.approx(clustered_mean(rows))


def test_without_two_rows_there_is_a_mean_and_no_interval() -> None:
    assert clustered_mean([[0.0, 1.0, 0.5], []]) == Estimate(0.5, None, None)
    assert mean_share([0.25], 8) == Estimate(0.25, None, None)
    with pytest.raises(ValueError, match="no numbers"):
        clustered_mean([[], []])
    with pytest.raises(ValueError, match="no shares"):
        mean_share([], 0)


def test_rows_that_are_all_alike_leave_a_point() -> None:
    assert clustered_mean([[0.5, 0.5]] * 5) == Estimate(0.5, 0.5, 0.5)


rewards = st.floats(-1e6, 1e6)


@given(st.lists(st.lists(rewards, max_size=5), min_size=1).filter(any))
def test_the_interval_holds_the_mean(groups: list[list[float]]) -> None:
    numbers = [number for group in groups for number in group]
    estimate = clustered_mean(groups)
    assert estimate.value == pytest.approx(fmean(numbers))
    if estimate.low is not None and estimate.high is not None:
        assert estimate.low <= estimate.value <= estimate.high
    else:
        assert sum(map(bool, groups)) == 1


# Shares


def test_with_an_episode_a_row_it_is_wilsons_interval() -> None:
    # 1 of 4: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), worked out by hand.
    assert mean_share([1, 0, 0, 0], 4) == pytest.approx((0.25, 0.045587, 0.699358), abs=1e-6)
    assert mean_share([0] * 10, 10) == pytest.approx((0, 0, 0.277533), abs=1e-6)
    assert mean_share([1] * 10, 10) == pytest.approx((1, 0.722467, 1), abs=1e-6)


def test_many_episodes_of_rows_that_are_alike_say_no_more_than_the_rows() -> None:
    assert mean_share([0.0] * 10, 640) == mean_share([0.0] * 10, 10)


def test_shares_that_differ_less_give_a_narrower_interval() -> None:
    def width(shares: list[float]) -> float:
        found = mean_share(shares, 80)
        assert found.low is not None and found.high is not None
        return found.high - found.low

    assert width([0.5] * 10) < width([0.3, 0.7] * 5) < width([0.2, 0.8] * 5) < width([0, 1] * 5)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40), st.integers(1, 16))
def test_the_interval_of_shares_holds_their_mean_and_stays_in_range(
    shares: list[float], group_size: int
) -> None:
    found = mean_share(shares, group_size * len(shares))
    assert found.low is not None and found.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high


# How often they hold


def test_95_percent_intervals_of_the_mean_hold_in_about_95_percent_of_evaluations() -> None:
    """Ten rows of four episodes; what rows have in common makes most of the variance."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        groups = rng.normal(0.3, 1.0, size=(10, 1)) + rng.normal(0, 0.5, size=(10, 4))
        found = clustered_mean(groups.tolist())
        assert found.low is not None and found.high is not None
        held += found.low <= 0.3 <= found.high
    assert 0.935 <= held / 2000 <= 0.965


@pytest.mark.parametrize("k", [1, 2, 4])
def test_95_percent_intervals_of_pass_at_k_hold_in_about_95_percent_of_evaluations(k: int) -> None:
    """Forty rows of four episodes; the chances of rows are uniform, so E[(1-p)^k] = 1/(k+1)."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        passed = rng.binomial(4, rng.uniform(size=40))
        found = mean_share([pass_at_k(4, int(c), k) for c in passed], 160)
        assert found.low is not None and found.high is not None
        held += found.low <= k / (k + 1) <= found.high
    assert 0.93 <= held / 2000 <= 0.975


@given(st.lists(st.lists(st.floats(-1.7e308, 1.7e308), min_size=1, max_size=3), min_size=1))
def test_estimates_of_the_largest_numbers_do_not_overflow(groups: list[list[float]]) -> None:
    numbers = [number for group in groups for number in group]
    estimate = clustered_mean(groups)
    size = max(map(abs, numbers))
    assert abs(estimate.value) <= size * (1 + 1e-9)
    assert estimate.low is None or estimate.low <= estimate.value
