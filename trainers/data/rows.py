"""Which rows a run trains on, in what order, and which ones its evaluations play.

Training rows are an endless source that keeps no state: which rows step k gets depends on the
seed and k alone, so a resumed run goes on with the rows that the killed one would have had.
Evaluation rows are never trained on, nor is any row equal to one of them.
"""

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gymnast.errors import DataError
from gymnast.trainers.base.seeds import derive

Row = Mapping[str, Any]
SampleRow = Callable[[np.random.Generator], Row]

# After this many draws in succession without a new row, the rows count as used up.
MOST_DRAWS = 1000


class RowSource(ABC):
    """Training rows without end.

    A complete small source:

        class Counting(RowSource):
            def row(self, position):
                return {"prompt": f"What comes after {position}?", "answer": position + 1}
    """

    @abstractmethod
    def row(self, position: int) -> Row:
        """The row at a position of the endless sequence; the same at every call."""

    def batch(self, step: int, size: int) -> list[Row]:
        """The rows of a step.

        Args:
            step: How many steps came before it; the first is 0.
            size: Rows a step, the same at every step.
        """
        return [self.row(step * size + i) for i in range(size)]

    def reseeded(self, seed: int) -> "RowSource":
        """The same rows in the order of another seed; here, in the order that they have."""
        return self


class DatasetRows(RowSource):
    """A dataset, over and over, each epoch in an order of its own.

    Args:
        rows: The dataset.
        seed: Of the orders.
        excluded: Rows that are left out wherever they occur: evaluation rows.

    Raises:
        DataError: No row is left.
    """

    def __init__(self, rows: Sequence[Row], *, seed: int, excluded: Sequence[Row] = ()) -> None:
        texts = {canonical(row) for row in excluded}
        self._rows = rows
        self._indices = np.array(
            [i for i in range(len(rows)) if not texts or canonical(rows[i]) not in texts],
            dtype=np.int64,
        )
        self._seed = seed
        self._order: tuple[int, np.ndarray] | None = None  # of the epoch read last
        if not len(self._indices):
            raise DataError(
                f"no training row is left: of {len(rows)} rows, each is equal to one of "
                f"{len(excluded)} evaluation rows; lower evaluation.rows, or name other rows"
            )

    def __len__(self) -> int:
        """Rows per epoch."""
        return len(self._indices)

    @property
    def in_order(self) -> Sequence[Row]:
        """The rows of an epoch in the dataset's order, each looked up when it is asked for."""
        return ChosenRows(self._rows, self._indices)

    def row(self, position: int) -> Row:
        """The row at a position; position `len(self)` begins the second epoch."""
        epoch, within = divmod(position, len(self._indices))
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng(derive(self._seed, "epoch", epoch))
            self._order = (epoch, rng.permutation(self._indices))
        return self._rows[int(self._order[1][within])]

    def reseeded(self, seed: int) -> "DatasetRows":
        """The same rows in the order of another seed."""
        other = copy.copy(self)
        other._seed, other._order = seed, None
        return other


class ChosenRows(Sequence[Row]):
    """Some rows of a dataset, each looked up when it is asked for.

    Args:
        rows: The dataset.
        indices: Theirs.
    """

    def __init__(self, rows: Sequence[Row], indices: Sequence[int] | np.ndarray) -> None:
        self._rows, self._indices = rows, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, number: Any) -> Any:
        return self._rows[int(self._indices[number])]


class SampledRows(RowSource):
    """Rows that an environment makes, each from a generator of its own.

    Args:
        sample_row: Makes a row.
        seed: Of the generators.
        excluded: Evaluation rows; one that comes up is drawn again.
    """

    def __init__(self, sample_row: SampleRow, *, seed: int, excluded: Sequence[Row] = ()) -> None:
        self._sample_row = sample_row
        self._seed = seed
        self._excluded = {canonical(row) for row in excluded}

    def row(self, position: int) -> Row:
        """The row at a position.

        Raises:
            DataError: Every row that comes up is an evaluation row.
        """
        rng = np.random.default_rng(derive(self._seed, "training row", position))
        for _ in range(MOST_DRAWS):
            row = self._sample_row(rng)
            if canonical(row) not in self._excluded:
                return row
        raise DataError(
            f"the environment's sample_row gave {MOST_DRAWS} times in a row one of the "
            f"{len(self._excluded)} evaluation rows; make its rows vary with rng, or lower "
            "evaluation.rows"
        )

    def reseeded(self, seed: int) -> "SampledRows":
        """Rows of generators of another seed."""
        other = copy.copy(self)
        other._seed = seed
        return other


class Split(NamedTuple):
    """Rows to train on and rows to evaluate with; no row is in both."""

    training: RowSource
    evaluation: list[Row]


def split_sampled(
    sample_row: SampleRow,
    count: int,
    *,
    seed: int,
    evaluation_seed: int = 0,
    excluded: Sequence[Row] = (),
) -> Split:
    """Split the rows that an environment makes.

    Args:
        sample_row: Makes a row.
        count: How many distinct evaluation rows.
        seed: Of the training rows.
        evaluation_seed: Of the evaluation rows, so that runs of other seeds compare.
        excluded: More rows that are not trained on.

    Raises:
        DataError: `sample_row` does not make more distinct rows than that.
    """
    chosen = sample_distinct(sample_row, count, seed=evaluation_seed, to_train=1)
    training = SampledRows(sample_row, seed=seed, excluded=[*chosen, *excluded])
    training.row(0)  # raises now where nothing is left to train on
    return Split(training, chosen)


def split_dataset(
    rows: Sequence[Row],
    count: int,
    *,
    seed: int,
    evaluation_seed: int = 0,
    excluded: Sequence[Row] = (),
) -> Split:
    """Split one dataset.

    Args:
        rows: The dataset.
        count: How many evaluation rows; 0 trains on all rows.
        seed: Of the training rows' order.
        evaluation_seed: Of the choice, so that runs of other seeds compare.
        excluded: More rows that are not trained on.

    Raises:
        DataError: The dataset does not have more rows than that.
    """
    if count >= len(rows):
        raise DataError(
            f"evaluation.rows: must be < {len(rows)}, the rows of data.train, got {count}; "
            "lower it, or name a second dataset in data.evaluation"
        )
    chosen = choose(rows, count, seed=evaluation_seed)
    return Split(DatasetRows(rows, seed=seed, excluded=[*chosen, *excluded]), chosen)


def sample_distinct(
    sample_row: SampleRow, count: int, *, seed: int, key: str = "evaluation.rows", to_train: int = 0
) -> list[Row]:
    """Distinct rows that an environment makes.

    Args:
        sample_row: Makes a row.
        count: How many.
        seed: Of the rows.
        key: What set `count`, for the message.
        to_train: How many more there must be, which are trained on; for the message.

    Raises:
        DataError: `sample_row` does not make so many.
    """
    rng = np.random.default_rng(derive(seed, "held-out rows"))
    rows, draws_in_vain = dict[str, Row](), 0
    while len(rows) < count:
        row = sample_row(rng)
        draws_in_vain = draws_in_vain + 1 if canonical(row) in rows else 0
        rows.setdefault(canonical(row), row)
        if draws_in_vain >= MOST_DRAWS:
            gave = "the same row" if len(rows) == 1 else f"no row but the same {len(rows)}"
            most = len(rows) - to_train
            unlike = ", and no row is both evaluated and trained on" if to_train else ""
            raise DataError(
                f"{key}: must be <= {most}, got {count}: the environment's "
                f"sample_row gave {gave} in {MOST_DRAWS} draws{unlike}; make its rows "
                f"vary with rng, or set {key} to {most}"
            )
    return list(rows.values())


def choose(
    rows: Sequence[Row],
    count: int,
    *,
    seed: int,
    key: str = "evaluation.rows",
    source: str = "data.evaluation",
) -> list[Row]:
    """Some rows of a dataset, in a seeded order.

    Args:
        rows: The dataset.
        count: How many.
        seed: Of the choice.
        key: What set `count`, for the message.
        source: Where the rows come from, for the message.

    Raises:
        DataError: The dataset has fewer.
    """
    if count > len(rows):
        raise DataError(f"{key}: must be <= {len(rows)}, the rows of {source}, got {count}")
    rng = np.random.default_rng(derive(seed, "held-out rows"))
    return [rows[int(i)] for i in rng.permutation(len(rows))[:count]]


def as_row_source(rows: Sequence[Row] | RowSource, *, seed: int) -> RowSource:
    """A source as it is; rows as a source that shuffles them.

    Raises:
        DataError: There are no rows.
    """
    if isinstance(rows, RowSource):
        return rows
    if not len(rows):
        raise DataError("rows: is empty; training needs at least one row")
    return DatasetRows(rows, seed=seed)


def canonical(row: Row) -> str:
    """A text that equal rows share, whatever the order of their keys."""
    return json.dumps(row, sort_keys=True, default=repr)
