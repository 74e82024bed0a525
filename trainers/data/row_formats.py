"""Files of rows: one reader per format. Rows keep their line, so that errors can name it.

rows.jsonl      one object a line
rows.json       a list of objects
rows.csv        a header and one row a line or more; every value is text, as the file has it
rows.parquet    a table
rows.arrow      a table, as `datasets` and pyarrow write it
folder/         what `datasets.Dataset.save_to_disk` writes
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from gymnast.errors import DataError, first_line

Row = dict[str, Any]
Numbered = Iterator[tuple[Row, int]]  # a row and its line in the file

# Python's reader refuses longer fields than this; the default is 128 KiB.
_LONGEST_FIELD = 2**31 - 1


class FileRows(Sequence[Row]):
    """The rows of a file.

    Args:
        file: What the file is called in errors.
        rows: All of them.
        lines: Where each begins, for formats that have lines.
    """

    def __init__(self, file: str, rows: Sequence[Row], lines: Sequence[int] | None = None) -> None:
        self._file, self._rows, self._lines = file, rows, lines

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self._rows[index]

    def location(self, row_index: int) -> str:
        """Where a row is: `rows.jsonl, line 7`, or `rows.parquet, row 6`, the first being row 0."""
        if self._lines is None:
            return f"{self._file}, row {row_index}"
        return f"{self._file}, line {self._lines[row_index]}"


def location_of(rows: Sequence[Any], row_index: int, source: str) -> str:
    """Where a row is, in its file if it has one.

    Args:
        rows: From anywhere.
        row_index: The row's place among them.
        source: Where the rows come from, if they do not know it themselves.
    """
    location = getattr(rows, "location", None)
    return f"{source}, row {row_index}" if location is None else str(location(row_index))


def expression_of(rows: Sequence[Any], column: str) -> str | None:
    """Return the jmespath expression that makes a column of some rows, if one does."""
    expressions = getattr(rows, "expressions", None)
    return None if expressions is None else expressions.get(column)


def read_rows(name: str, path: Path) -> Sequence[Row]:
    """Read a file of rows.

    Args:
        name: What the file is called in errors.
        path: Where it is; its suffix says its format.

    Raises:
        DataError: It cannot be read; the message names the line where there is one.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{name}: files of rows end in {', '.join(SUFFIXES)}, but this one ends in "
            f"{path.suffix or 'none of them'}; convert it"
        )
    try:
        return reader(name, path)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: is not UTF-8 text (byte {error.start + 1}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or first_line(error)}") from error


def read_saved(name: str, folder: Path, split: str) -> Sequence[Row]:
    """The rows of a folder that `save_to_disk` of `datasets` wrote, of one split if it has some.

    Raises:
        DataError: It is not such a folder, or has no such split.
    """
    if not any((folder / mark).exists() for mark in ("dataset_info.json", "dataset_dict.json")):
        files = sorted(f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES)
        hint = f", such as {Path(name) / files[0].name}" if files else f" ({', '.join(SUFFIXES)})"
        raise DataError(
            f"{name}: is a folder that datasets.save_to_disk did not write; name a file of "
            f"rows{hint}"
        )
    import datasets

    try:
        found = datasets.load_from_disk(str(folder))
    except Exception as error:  # each kind of damage has its own
        raise DataError(f"{name}: cannot be read: {first_line(error)}") from error
    if not isinstance(found, datasets.DatasetDict):
        return found
    if split not in found:
        raise DataError(
            f"{name}: has no split {split!r}; name one of {', '.join(found)} in data.split, or in "
            "data.evaluation_split for data.evaluation"
        )
    return found[split]


def _read_jsonl(name: str, path: Path) -> FileRows:
    with path.open(encoding="utf-8-sig") as file:
        return _file_rows(name, _json_lines(name, file))


def _json_lines(name: str, file: Iterator[str]) -> Numbered:
    for number, line in enumerate(file, start=1):
        if line.strip():
            row = _parsed(name, line.rstrip("\n"), number)
            yield _checked(row, f"{name}, line {number}"), number


def _file_rows(name: str, numbered: Numbered) -> FileRows:
    pairs = list(numbered)
    return FileRows(name, [row for row, _ in pairs], [line for _, line in pairs])


def _read_json(name: str, path: Path) -> FileRows:
    rows = _parsed(name, path.read_text(encoding="utf-8-sig"))
    if not isinstance(rows, list):
        raise DataError(
            f"{name}: must hold a list of objects, it holds {shortened(rows)}; for one object a "
            "line, name it .jsonl"
        )
    return FileRows(name, [_checked(row, f"{name}, row {i}") for i, row in enumerate(rows)])


def _parsed(name: str, text: str, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        number = line if line is not None else error.lineno
        problem = error.msg.removesuffix(" at").removesuffix(" starting")
        raise DataError(
            f"{name}, line {number}, column {error.colno}: is not JSON: {problem}"
        ) from error
    except RecursionError as error:
        raise DataError(f"{name}, line {line or 1}: is nested too deeply to be read") from error


def _checked(row: Any, location: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{location}: must be an object ({{...}}), got {shortened(row)}")
    return row


def _read_csv(name: str, path: Path) -> FileRows:
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _file_rows(name, _csv_rows(name, csv.reader(file, strict=True)))
    finally:
        csv.field_size_limit(limit)


def _csv_rows(name: str, reader: Any) -> Numbered:
    header: list[str] | None = None
    line = 1
    try:
        for values in reader:
            if header is None:
                header = _checked_header(name, values)
            elif values:
                if len(values) != len(header):
                    raise DataError(
                        f"{name}, line {line}: must have {len(header)} values, one a column "
                        f"({', '.join(header)}), got {len(values)}; put values that contain "
                        "commas in double quotes"
                    )
                yield dict(zip(header, values, strict=True)), line
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{name}, line {line}: is not CSV: {error}") from error


def _checked_header(name: str, header: list[str]) -> list[str]:
    twice = next((column for column in header if header.count(column) > 1), None)
    if twice is not None:
        raise DataError(f"{name}, line 1: two columns are called {twice!r}; rename one")
    return header


def _read_parquet(name: str, path: Path) -> FileRows:
    import pyarrow.parquet

    return _table(name, lambda: pyarrow.parquet.read_table(path))


def _read_arrow(name: str, path: Path) -> FileRows:
    import pyarrow.ipc

    def read() -> Any:
        with pyarrow.OSFile(str(path)) as file:
            begins = file.read(6)
            file.seek(0)
            opened = pyarrow.ipc.open_file if begins == b"ARROW1" else pyarrow.ipc.open_stream
            return opened(file).read_all()

    return _table(name, read)


def _table(name: str, read: Callable[[], Any]) -> FileRows:
    import pyarrow

    try:
        return FileRows(name, read().to_pylist())
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{name}: cannot be read: {first_line(error)}") from error


_READERS: dict[str, Callable[[str, Path], FileRows]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}
SUFFIXES = tuple(_READERS)


def shortened(value: Any) -> str:
    """A value as an error shows it."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
