"""Rows from files and from a dataset hub, and the mapping of their columns.

    rows.jsonl, rows.json, rows.csv, rows.parquet    a file
    org/name                                         a dataset of a hub, through `datasets`

Left out: which rows are trained on and which are held out (`trainers/data.py`), and what an
environment needs of a row, which it says itself.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import jmespath

from gymnast.errors import DataError
from gymnast.hints import nearest

Row = dict[str, Any]


def load_rows(
    name: str,
    *,
    columns: Mapping[str, str] | None = None,
    split: str = "train",
    subset: str | None = None,
) -> Sequence[Row]:
    """Load a dataset.

    Args:
        name: A file (.jsonl, .json, .csv or .parquet) or a hub dataset's name. Columns of a CSV
            file that hold only numbers, truth values or dates are read as such.
        columns: The columns of the rows returned, each a jmespath expression over a row of the
            dataset (`{"prompt": "question.text", "answer": "answer"}`); None keeps rows as they
            are.
        split: Of a hub dataset.
        subset: Of a hub dataset; some have several and no default.

    Returns:
        The rows, mapped when they are read.

    Raises:
        DataError: The dataset cannot be found or read, has no rows, or a column finds nothing.
    """
    path = Path(name).expanduser()
    if path.suffix.lower() in _READERS or path.exists() or name.startswith((".", "/", "~")):
        rows = _read_file(name, path)
    else:
        rows = _read_hub(name, split, subset)
    if not len(rows):
        raise DataError(f"{name}: has no rows, and at least one is needed")
    return rows if columns is None else _mapped(name, rows, columns)


class MappedRows(Sequence[Row]):
    """Rows of a dataset whose columns are jmespath expressions over the dataset's rows.

    Args:
        rows: The dataset's rows.
        columns: The expression of each column.
    """

    def __init__(self, rows: Sequence[Row], columns: Mapping[str, str]) -> None:
        self._rows = rows
        self._columns = {name: jmespath.compile(text) for name, text in columns.items()}

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
        return {name: self._found(name, row, index) for name in self._columns}

    def _found(self, name: str, row: Row, index: int) -> Any:
        try:
            return self._columns[name].search(row)
        except jmespath.exceptions.JMESPathError as error:  # an unknown function, a wrong argument
            raise DataError(
                f"data.columns.{name}: {self._columns[name].expression!r} cannot be read from row "
                f"{index}: {_first_line(error)}; the row is {_shown(row)}"
            ) from error


def _mapped(name: str, rows: Sequence[Row], columns: Mapping[str, str]) -> MappedRows:
    """Map rows, and check that each column finds something and no row lacks its prompt."""
    try:
        mapped = MappedRows(rows, columns)
    except jmespath.exceptions.JMESPathError as error:
        raise DataError(f"data.columns: {_first_line(error)}") from error
    unseen = dict(columns)
    for number, row in enumerate(mapped):
        if row.get("prompt", "") is None and "prompt" not in unseen:
            raise DataError(
                f"{name}: row {number} has nothing at {columns['prompt']!r} (data.columns.prompt), "
                f"and every row needs a prompt; the row is {_shown(rows[number])}"
            )
        for column in [column for column in unseen if row[column] is not None]:
            del unseen[column]
    for column, expression in unseen.items():
        part, there = _first_unfound(expression, rows[0])
        near = nearest(part, there)
        hint = f"; did you mean {near}?" if near else ""
        raise DataError(
            f"{name}: data.columns.{column}: no row has anything at {expression!r}; where "
            f"{part!r} is looked for there are {', '.join(there) or 'no columns'}{hint}"
        )
    return mapped


def _first_unfound(expression: str, row: Row) -> tuple[str, list[str]]:
    """The first part of a dotted expression that a row lacks, and what there is in its place."""
    value: Any = row
    part = expression
    for part in expression.split("."):
        if not isinstance(value, Mapping) or part not in value:
            break
        value = value[part]
    return part, [str(key) for key in value] if isinstance(value, Mapping) else []


def _read_file(name: str, path: Path) -> Sequence[Row]:
    if path.is_dir():
        raise DataError(f"{name}: is a folder; name a file in it ({_suffixes()})")
    if not path.exists():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, beside)
        hint = f"; did you mean {path.parent / near}?" if near else ""
        raise DataError(f"{name}: there is no such file (looked in {Path.cwd()}){hint}")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{name}: {path.suffix or 'no suffix'} is not known; use {_suffixes()}")
    try:
        return list(reader(name, path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{name}: cannot be read: {_first_line(error)}") from error


def _read_jsonl(name: str, path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _checked(_parsed(name, line, number), f"{name}, line {number}")


def _read_json(name: str, path: Path) -> Iterator[Row]:
    rows = _parsed(name, path.read_text(encoding="utf-8-sig"))
    if not isinstance(rows, list):
        raise DataError(
            f"{name}: must hold a list of objects, it holds {_shown(rows)}; for one object a "
            "line, name it .jsonl"
        )
    for number, row in enumerate(rows):
        yield _checked(row, f"{name}, row {number}")


def _parsed(name: str, text: str, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        number = line if line is not None else error.lineno
        raise DataError(f"{name}, line {number}: is not JSON: {error.msg}") from error


def _checked(row: Any, place: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{place}: must be an object, got {_shown(row)}")
    return row


def _read_csv(name: str, path: Path) -> Iterator[Row]:
    import pyarrow.csv  # type: ignore[import-untyped]

    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    yield from _arrow_rows(name, lambda: pyarrow.csv.read_csv(path, parse_options=options))


def _read_parquet(name: str, path: Path) -> Iterator[Row]:
    import pyarrow.parquet  # type: ignore[import-untyped]

    yield from _arrow_rows(name, lambda: pyarrow.parquet.read_table(path))


def _arrow_rows(name: str, read: Callable[[], Any]) -> list[Row]:
    import pyarrow

    try:
        rows: list[Row] = read().to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{name}: cannot be read: {_first_line(error)}") from error
    return rows


_READERS: dict[str, Callable[[str, Path], Iterator[Row]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _read_hub(name: str, split: str, subset: str | None) -> Sequence[Row]:
    import datasets

    hub_logger = logging.getLogger("huggingface_hub")
    level = hub_logger.level
    hub_logger.setLevel(logging.ERROR)  # it warns of every retry; the error below says it once
    try:
        rows: Sequence[Row] = datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # each transport and each format has its own exceptions
        raise DataError(
            f"{name}: there is no such file here ({Path.cwd()}), and no dataset of this name could "
            f"be loaded from the hub (split {split!r}, subset {subset!r}): {_first_line(error)}"
        ) from error
    finally:
        hub_logger.setLevel(level)
    return rows


def _suffixes() -> str:
    return ", ".join(_READERS)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
