"""Which rows are trained on, in what order, and that evaluation rows are never among them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.errors import DataError
from gymnast.trainers.data.rows import (
    DatasetRows,
    RowSource,
    SampledRows,
    as_row_source,
    canonical,
    choose,
    split_dataset,
    split_sampled,
)

ROWS = [{"n": n} for n in range(10)]
sizes = st.integers(1, 7)
seeds = st.integers(0, 3)


def numbers(rows: list[Any]) -> list[int]:
    return [row["n"] for row in rows]


def one_of(count: int) -> Any:
    return lambda rng: {"n": int(rng.integers(count))}


# A dataset


@given(size=sizes, seed=seeds)
def test_every_epoch_has_every_row_once(size: int, seed: int) -> None:
    source = DatasetRows(ROWS, seed=seed)
    stream = [n for step in range(30) for n in numbers(source.batch(step, size))]
    for start in range(0, len(stream) - 10, 10):
        assert sorted(stream[start : start + 10]) == list(range(10))


def test_epochs_and_seeds_differ_in_their_order() -> None:
    source = DatasetRows(ROWS, seed=0)
    orders = [numbers(source.batch(epoch, 10)) for epoch in range(3)]
    orders.append(numbers(DatasetRows(ROWS, seed=1).batch(0, 10)))
    assert len({tuple(order) for order in orders}) == 4


@given(steps=st.lists(st.integers(0, 20), max_size=8), size=sizes)
def test_a_step_gets_the_same_rows_whenever_it_is_asked_for(steps: list[int], size: int) -> None:
    source = DatasetRows(ROWS, seed=5)
    for step in steps:
        assert source.batch(step, size) == DatasetRows(ROWS, seed=5).batch(step, size)


@given(count=st.integers(0, 9), seed=seeds, evaluation_seed=seeds)
def test_a_dataset_is_split_into_all_its_rows(count: int, seed: int, evaluation_seed: int) -> None:
    split = split_dataset(ROWS, count, seed=seed, evaluation_seed=evaluation_seed)
    trained = numbers(split.training.batch(0, 10 - count))
    assert sorted(trained + numbers(split.evaluation)) == list(range(10))


def test_evaluation_rows_do_not_depend_on_the_seed_of_the_run() -> None:
    kept = [split_dataset(ROWS, 4, seed=seed).evaluation for seed in range(3)]
    assert kept[0] == kept[1] == kept[2]
    assert split_dataset(ROWS, 4, seed=0, evaluation_seed=1).evaluation != kept[0]


def test_a_row_equal_to_an_evaluation_row_is_not_trained_on() -> None:
    rows = [{"a": 1, "b": [2]}, {"b": [2], "a": 1}, {"a": 3, "b": []}]
    source = DatasetRows(rows, seed=0, excluded=[{"a": 1, "b": [2]}])
    assert source.batch(0, 3) == [rows[2]] * 3


def test_a_dataset_too_small_to_split() -> None:
    with pytest.raises(DataError, match=r"evaluation.rows: must be < 10.*got 10"):
        split_dataset(ROWS, 10, seed=0)
    with pytest.raises(DataError, match="no training row is left: of 2 rows"):
        split_dataset([{"n": 1}, {"n": 1}], 1, seed=0)
    with pytest.raises(DataError, match=r"must be <= 10, the rows of data.evaluation, got 11"):
        choose(ROWS, 11, seed=0)


def test_choosing_rows_takes_distinct_ones() -> None:
    assert sorted(numbers(choose(ROWS, 10, seed=3))) == list(range(10))


# Rows that an environment makes


@given(count=st.integers(0, 15), seed=seeds)
def test_evaluation_rows_that_are_made_are_distinct_and_never_trained_on(
    count: int, seed: int
) -> None:
    split = split_sampled(one_of(20), count, seed=seed)
    kept = set(numbers(split.evaluation))
    assert len(kept) == len(split.evaluation) == count
    assert not kept & set(numbers(split.training.batch(0, 40)))


@given(steps=st.lists(st.integers(0, 20), max_size=8), size=sizes)
def test_rows_made_for_a_step_are_the_same_whenever_asked_for(steps: list[int], size: int) -> None:
    source = split_sampled(one_of(1000), 5, seed=2).training
    for step in steps:
        again = split_sampled(one_of(1000), 5, seed=2).training
        assert source.batch(step, size) == again.batch(step, size)


def test_rows_made_for_other_steps_and_seeds_differ() -> None:
    batches = [SampledRows(one_of(10**9), seed=seed).batch(seed, 4) for seed in range(4)]
    batches += [SampledRows(one_of(10**9), seed=0).batch(step, 4) for step in range(1, 4)]
    assert len({canonical({"rows": batch}) for batch in batches}) == 7


@pytest.mark.parametrize("count", [3, 4])
def test_an_environment_with_too_few_rows(count: int) -> None:
    with pytest.raises(DataError, match=r"evaluation.rows"):
        split_sampled(one_of(3), count, seed=0)


# Sources


def test_a_list_becomes_a_source_and_a_source_stays_itself() -> None:
    source = as_row_source(ROWS, seed=1)
    assert source.batch(2, 4) == DatasetRows(ROWS, seed=1).batch(2, 4)
    assert as_row_source(source, seed=9) is source
    with pytest.raises(DataError, match="rows: is empty"):
        as_row_source([], seed=0)


def test_a_source_of_ones_own_needs_one_method() -> None:
    class Counting(RowSource):
        def row(self, position: int) -> dict[str, int]:
            return {"n": position}

    assert numbers(Counting().batch(2, 3)) == [6, 7, 8]


def test_rows_are_compared_whatever_they_hold() -> None:
    assert canonical({"a": np.int64(1), "b": {1}}) == canonical({"b": {1}, "a": np.int64(1)})
    assert canonical({"a": 1}) != canonical({"a": "1"})
