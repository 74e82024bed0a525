"""Results of queries that have the same rows, and those that have not."""

import itertools
import sqlite3
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs import rubrics
from gymnast.envs.rubrics import same_number, same_rows
from gymnast.errors import DataError
from rubric_fixtures import reward

CELLS = st.none() | st.integers(-3, 3) | st.sampled_from(["a", "b", ""]) | st.booleans()
ROWS = st.lists(st.tuples(CELLS, CELLS), max_size=6)
QUARTERS = st.integers(0, 8).map(lambda n: n / 4)
NUMBER_ROWS = st.lists(st.tuples(QUARTERS, QUARTERS), max_size=5)


@given(ROWS, st.randoms())
def test_the_order_of_rows_counts_where_it_is_said(rows: Any, random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    assert same_rows(shuffled, rows)
    assert same_rows(rows, rows, ordered=True)
    typed = [tuple((type(cell), cell) for cell in row) for row in rows]
    other = [tuple((type(cell), cell) for cell in row) for row in shuffled]
    assert same_rows(shuffled, rows, ordered=True) == (typed == other)


@given(ROWS, ROWS)
def test_without_a_tolerance_it_is_the_multiset(one: Any, other: Any) -> None:
    def counted(rows: Any) -> list[str]:
        return sorted(repr(row) for row in rows)

    assert same_rows(one, other) == (counted(one) == counted(other))


@given(NUMBER_ROWS, NUMBER_ROWS, st.sampled_from([0.0, 0.25, 0.5]))
def test_within_a_tolerance_some_pairing_has_to_be_there(
    one: Any, other: Any, tolerance: float
) -> None:
    def paired(order: Any) -> bool:
        return all(
            all(same_number(a, b, tolerance) for a, b in zip(row, right, strict=True))
            for row, right in zip(order, other, strict=True)
        )

    wanted = len(one) == len(other) and any(map(paired, itertools.permutations(one)))
    assert same_rows(one, other, tolerance=tolerance) == wanted


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from("ab")), max_size=30), st.randoms())
def test_noise_within_the_tolerance_makes_no_difference(rows: Any, random: Any) -> None:
    noisy = [(number + random.uniform(-1e-7, 1e-7), word) for number, word in rows]
    random.shuffle(noisy)
    assert same_rows(noisy, rows, tolerance=1e-6)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([], [], True),
        ([[1]], [[1], [1]], False),
        ([[1, 1], [2]], [[2], [1, 1]], True),
        ([[1]], [(1.0,)], True),
        ([[1]], [["1"]], False),
        ([[1]], [[True]], False),
        ([[None]], [[0]], False),
        ([[float("nan")]], [[float("nan")]], True),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}], True),
        ([{"a": 1, "b": 2}], [{"a": 2, "b": 1}], False),
        ([{"a": 1}], [[1]], False),
        ([["a", 1]], [["a1"]], False),
        ([["a", "b"]], [["a', 'b"]], False),
        ([[b"a"]], [["a"]], False),
        ([[[1, 2]]], [[[1, 2]]], True),
    ],
)
def test_values_are_the_same_by_kind_and_value(one: Any, other: Any, same: bool) -> None:
    assert same_rows(one, other) is same
    assert same_rows(other, one) is same


def test_many_rows_that_could_be_paired_in_many_ways_take_no_ages() -> None:
    one = [(n * 0.5, 0.0) for n in range(200)]
    other = [(n * 0.5 + 0.5, 0.0) for n in range(200)]
    assert same_rows(one, list(reversed(other)), tolerance=0.5)
    assert not same_rows([*one[1:], (500.0, 0.0)], other, tolerance=0.5)


def test_rows_of_a_database_are_compared() -> None:
    with sqlite3.connect(":memory:") as database:
        database.row_factory = sqlite3.Row
        rows = database.execute("SELECT 1 AS n, 'a' AS t UNION SELECT 2, NULL").fetchall()
    assert same_rows(rows, [[2, None], [1, "a"]])
    database.close()


def test_the_answer_holds_the_rows_as_json() -> None:
    rubric = rubrics.result_set("rows", tolerance=0.01)
    answers = ["```json\n[[2, 0.999], [1, null]]\n```", "[[1, null]]", "[1, 2]", "no rows", "7"]
    rows: list[Any] = [[1, None], [2, 1]]
    assert [reward(rubric, answer, rows=rows) for answer in answers] == [1, 0, 0, 0, 0]
    assert reward(rubric, answers[0], rows="[[1, null], [2, 1]]") == 1.0
    ordered = rubrics.result_set("rows", ordered=True, tolerance=0.01)
    assert reward(ordered, answers[0], rows=rows) == 0.0
    with pytest.raises(DataError, match="result_set: column 'rows' must hold a list of rows"):
        reward(rubric, answers[0], rows=[1, 2])


@given(NUMBER_ROWS, NUMBER_ROWS, st.sampled_from([0.2, 0.5, 1.0, 2.0]))
def test_within_a_relative_tolerance_a_pairing_is_found(
    one: Any, other: Any, relative: float
) -> None:
    def paired(order: Any) -> bool:
        return all(
            all(same_number(a, b, 0.0, relative) for a, b in zip(row, right, strict=True))
            for row, right in zip(order, other, strict=True)
        )

    wanted = len(one) == len(other) and any(map(paired, itertools.permutations(one)))
    assert same_rows(one, other, relative_tolerance=relative) == wanted


def test_many_wrong_rows_take_no_ages() -> None:
    rows = [(n, n * 0.37, "a") for n in range(5000)]
    wrong = [(n + 0.5, number, word) for n, number, word in rows]
    moved = [(n, rows[n - 1][1], word) for n, _, word in rows]
    begun = time.process_time()
    for other in (wrong, moved):
        assert not same_rows(other, rows, relative_tolerance=1e-6)
        assert not same_rows(other, rows, tolerance=0.01)
        assert not same_rows(other, rows)
    assert time.process_time() - begun < 20


def test_dense_rows_with_noise_are_still_paired() -> None:
    start = 1_700_000_000
    rows = [(start + n, start + n * 7919 % 2003) for n in range(2003)]
    noisy = [(a + 1e-4 * (b % 3), b - 1e-4 * (a % 5)) for a, b in rows]
    assert same_rows(noisy[::-1], rows, relative_tolerance=1e-6)
    assert not same_rows([*noisy[1:], (start, start + 5e6)], rows, relative_tolerance=1e-6)
