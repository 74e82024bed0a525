"""The rows of a mixture: by weights, each environment's in an order of its own."""

from collections import Counter

import pytest

from gymnast.errors import DataError
from gymnast.trainers import MixtureRows
from gymnast.trainers.data.rows import RowSource

ROWS = {
    "sums": [{"prompt": f"{n} + 1?"} for n in range(5)],
    "words": [{"prompt": f"Spell {n}."} for n in range(3)],
}
WEIGHTS = {"sums": 3.0, "words": 1.0}


def test_rows_come_by_the_weights_and_say_whose_they_are() -> None:
    source = MixtureRows(WEIGHTS, ROWS, seed=0)
    rows = source.batch(0, 640)
    assert Counter(row["environment"] for row in rows) == pytest.approx(
        {"sums": 480, "words": 160}, abs=8
    )
    for name, own in ROWS.items():
        prompts = [row["prompt"] for row in rows if row["environment"] == name]
        for epoch in range(3):  # each has all rows once
            part = prompts[epoch * len(own) : (epoch + 1) * len(own)]
            assert sorted(part) == sorted(row["prompt"] for row in own)


def test_a_resumed_run_has_the_rows_that_it_would_have_had() -> None:
    steps = [MixtureRows(WEIGHTS, ROWS, seed=7).batch(step, 4) for step in range(40)]
    one = MixtureRows(WEIGHTS, ROWS, seed=7)
    assert [one.batch(step, 4) for step in range(40)] == steps
    assert MixtureRows(WEIGHTS, ROWS, seed=8).batch(0, 40) != one.batch(0, 40)
    assert one.reseeded(8).batch(0, 40) == MixtureRows(WEIGHTS, ROWS, seed=8).batch(0, 40)


def test_sources_without_end_are_asked_for_each_row_once_in_order() -> None:
    class Counting(RowSource):
        def row(self, position: int) -> dict[str, int]:
            return {"n": position}

    rows = MixtureRows(WEIGHTS, {"sums": Counting(), "words": Counting()}, seed=1).batch(0, 200)
    for name in WEIGHTS:
        own = [row["n"] for row in rows if row["environment"] == name]
        assert own == [*range(len(own))]


def test_what_cannot_be_a_mixture_is_refused() -> None:
    with pytest.raises(DataError, match="weights are of sums, words, and sources of sums"):
        MixtureRows(WEIGHTS, {"sums": ROWS["sums"]}, seed=0)
    taken = {"sums": [{"environment": "kitchen"}], "words": ROWS["words"]}
    with pytest.raises(DataError, match="a row of sums has a column 'environment' already"):
        MixtureRows(WEIGHTS, taken, seed=0).batch(0, 64)
