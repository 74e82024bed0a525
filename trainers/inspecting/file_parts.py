"""A file of rollouts read in parts: some of its columns, or one episode.

`trainers/saving/rollout_files.py` writes such files, and reads them whole. Only the columns that
are asked for are read from the disk and decoded; of one episode, all columns of the row group that
it is in.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gymnast.trainers.saving.rollout_files import (
    SavedTrajectory,
    opened,
    saved_trajectory,
    tokenizer_of,
)


def count_episodes(path: Path) -> int:
    """How many episodes a file holds.

    Raises:
        DataError: As `read_rollouts`.
    """
    with opened(path) as file:
        return int(file.metadata.num_rows)


def read_columns(path: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Some columns of a file, as Python's values; of those that it does not have, only nulls.

    Raises:
        DataError: As `read_rollouts`.
    """
    with opened(path) as file:
        table = file.read(columns=list(names), use_threads=False)
        nothing = [None] * file.metadata.num_rows
    return {
        name: table.column(name).to_pylist() if name in table.column_names else nothing
        for name in names
    }


def read_some(
    path: Path, names: Sequence[str] | None, numbers: Sequence[int]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Some columns of some rows; of row groups without any of these, nothing is read.

    Args:
        path: The file.
        names: Of columns; a dotted one is a field of a struct. None: all columns.
        numbers: Of rows, counted from 0, in rising order.

    Raises:
        DataError: As `read_rollouts`.
    """
    with opened(path) as file:
        for group, start, end in _row_groups(file):
            wanted = [number for number in numbers if start <= number < end]
            if wanted:
                chosen = None if names is None else list(names)
                table = file.read_row_group(group, columns=chosen, use_threads=False)
                for number in wanted:
                    yield number, table.slice(number - start, 1).to_pylist()[0]


def read_episodes(path: Path, numbers: Sequence[int]) -> Iterator[tuple[int, SavedTrajectory]]:
    """Some episodes of a file, whole; in memory is one row group at a time.

    Args:
        path: The file.
        numbers: Of their rows, counted from 0, in rising order.

    Raises:
        DataError: As `read_rollouts`.
    """
    with opened(path) as file:
        tokenizer = tokenizer_of(file)
    for number, record in read_some(path, None, numbers):
        yield number, saved_trajectory(record, path.stem, tokenizer)


def _row_groups(file: pq.ParquetFile) -> Iterator[tuple[int, int, int]]:
    """The number of each row group, and its rows: from the first one up to one behind the last."""
    sizes = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
    for group, end in enumerate(accumulate(sizes)):
        yield group, end - sizes[group], end
