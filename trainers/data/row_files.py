"""Rows by the name that a config gives them, and the mapping of their columns.

    rows.jsonl, rows.csv, folder/    a file, or a saved dataset (`trainers/data/row_formats.py`)
    org/name                         a dataset of a hub, through `datasets`

What an environment needs of a row, it checks itself.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import jmespath

from gymnast.errors import DataError, first_line
from gymnast.lookup import nearest, nearest_file
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.data.row_formats import (
    SUFFIXES,
    Row,
    location_of,
    read_rows,
    read_saved,
    shortened,
)


def load_rows(
    name: str,
    *,
    columns: Mapping[str, str] | None = None,
    keep_columns: bool = True,
    split: str = "train",
    subset: str | None = None,
) -> Sequence[Row]:
    """Load a dataset.

    Args:
        name: A file (.jsonl, .json, .csv, .parquet or .arrow), a folder that
            `datasets.Dataset.save_to_disk` wrote, or a hub dataset's name. All values of a CSV file
            are text.
        columns: Columns to add, each a jmespath expression over a row of the dataset
            (`{"prompt": "question.text", "answer": "to_number(answer)"}`); one of an existing
            name replaces that column.
        keep_columns: Whether the dataset's other columns stay.
        split: Of a hub dataset, or of a folder with several.
        subset: Of a hub dataset; some have several and no default.

    Returns:
        The rows, mapped when they are read.

    Raises:
        DataError: The dataset cannot be found or read, has no rows, or a column finds nothing.
    """
    path = Path(name).expanduser()
    label = shown_path(name)
    if path.is_dir():
        rows = read_saved(label, path, split)
    elif path.exists():
        rows = read_rows(label, path)
    elif path.suffix.lower() in SUFFIXES or name.startswith((".", "/", "~")):
        raise _not_there(label)
    else:
        rows = _read_hub(name, split, subset)
    if not len(rows):
        raise DataError(f"{label}: has no rows, and at least one is needed")
    return rows if columns is None else _mapped(label, rows, columns, keep_columns)


class MappedRows(Sequence[Row]):
    """Rows of a dataset with columns that are jmespath expressions over the dataset's rows.

    Args:
        name: What the dataset is called in errors.
        rows: The dataset's rows.
        columns: The expression of each column.
        keep_columns: Whether the dataset's other columns stay.

    Attributes:
        expressions: The expression of each column.
    """

    def __init__(
        self, name: str, rows: Sequence[Row], columns: Mapping[str, str], keep_columns: bool
    ) -> None:
        self._name, self._rows, self._keep = name, rows, keep_columns
        self._columns = {name: jmespath.compile(text) for name, text in columns.items()}
        self.expressions = dict(columns)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = self._rows[index]
        columns = {name: self._value(name, row, index) for name in self._columns}
        return {**row, **columns} if self._keep else columns

    def location(self, row_index: int) -> str:
        """Where a row is in the dataset."""
        return location_of(self._rows, row_index, self._name)

    def _value(self, name: str, row: Row, row_index: int) -> Any:
        try:
            return self._columns[name].search(row)
        except jmespath.exceptions.JMESPathError as error:  # an unknown function, a wrong argument
            expression = self._columns[name].expression
            raise DataError(
                f"{self.location(row_index)}: data.columns.{name}: {expression!r} cannot be read: "
                f"{first_line(error)}; the row is {shortened(row)}"
            ) from error


def _mapped(
    name: str, rows: Sequence[Row], columns: Mapping[str, str], keep_columns: bool
) -> MappedRows:
    """Map rows, and check that each column finds something and no row lacks its prompt."""
    try:
        mapped = MappedRows(name, rows, columns, keep_columns)
    except jmespath.exceptions.JMESPathError as error:
        raise DataError(f"data.columns: {first_line(error)}") from error
    unseen = dict(columns)
    for row_index, row in enumerate(mapped):
        if "prompt" in columns and row["prompt"] is None and "prompt" not in unseen:
            raise DataError(
                f"{mapped.location(row_index)}: has nothing at {columns['prompt']!r} "
                "(data.columns.prompt), but every row needs a prompt; the row is "
                f"{shortened(rows[row_index])}"
            )
        for column in [column for column in unseen if row[column] is not None]:
            del unseen[column]
    for column, expression in unseen.items():
        part, there = _first_missing(expression, rows[0])
        near = nearest(part, there)
        hint = f"; did you mean {near}?" if near else ""
        raise DataError(
            f"{name}: data.columns.{column}: no row has anything at {expression!r}; where "
            f"{part!r} is looked for there are {', '.join(there) or 'no columns'}{hint}"
        )
    return mapped


def _not_there(label: str) -> DataError:
    near = nearest_file(label)
    hint = f"; did you mean {near}?" if near else ""
    looked = "" if Path(label).is_absolute() else f" (looked in {Path.cwd()})"
    return DataError(f"{label}: there is no such file{looked}{hint}")


def _first_missing(expression: str, row: Row) -> tuple[str, list[str]]:
    """The first part of a dotted expression that a row lacks, and the keys it has instead."""
    value: Any = row
    part = expression
    for part in expression.split("."):
        if not isinstance(value, Mapping) or part not in value:
            break
        value = value[part]
    return part, [str(key) for key in value] if isinstance(value, Mapping) else []


def _read_hub(name: str, split: str, subset: str | None) -> Sequence[Row]:
    import datasets

    hub_logger = logging.getLogger("huggingface_hub")
    level = hub_logger.level
    hub_logger.setLevel(logging.ERROR)  # it warns of every retry; the error below says it once
    try:
        rows: Sequence[Row] = datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # each transport and each format has its own exceptions
        near = nearest_file(name)
        hint = f"; did you mean {near}?" if near else ""
        raise DataError(
            f"{name}: there is no such file here ({Path.cwd()}), and no dataset of this name could "
            f"be loaded from the hub (split {split!r}, subset {subset!r}): "
            f"{first_line(error)}{hint}"
        ) from error
    finally:
        hub_logger.setLevel(level)
    return rows
