"""Documents of a corpus, and the files that they are read from.

documents.jsonl      an object a line with `text`, and `title` and `id` where there are any
documents.parquet    a table with these columns
folder/              a document for each .txt and .md file in it, also in folders below
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jmespath

from gymnast.errors import ConfigError, DataError, first_line

COLUMNS = ("title", "text", "id")
_TEXT_FILES = (".txt", ".md")
_LONGEST_TITLE = 200  # characters
_ENDS = ("\n\n", "\n", ". ", " ")  # where a text is divided, the best place first


class Document(NamedTuple):
    """A document.

    Attributes:
        title: On one line; each document of a corpus has another.
        text: All of it.
        id: What rows call it beside its title; "" if nothing.
    """

    title: str
    text: str
    id: str = ""


def read_documents(path: Path, columns: Mapping[str, str]) -> list[Document]:
    """The documents of a file or a folder.

    Args:
        path: Of a .jsonl or .parquet file, or of a folder.
        columns: jmespath expressions for some of `COLUMNS`, where rows call them otherwise.

    Raises:
        DataError: It cannot be read, or a row has no text.
    """
    reader = _folder if path.is_dir() else _READERS.get(path.suffix.lower())
    if reader is None or not path.exists():
        why = "cannot be read" if path.exists() else f"there is no such file (in {Path.cwd()})"
        raise DataError(
            f"corpus {str(path)!r}: {why}; name a .jsonl or .parquet file of documents, or a "
            f"folder of {' and '.join(_TEXT_FILES)} files"
        )
    expressions = {name: _compiled(name, text) for name, text in columns.items()}
    found, titles = [], set[str]()
    try:
        for where, row in reader(path):
            found.append(_document(f"corpus {str(path)!r}, {where}", row, expressions, titles))
    except (OSError, ValueError) as error:  # pyarrow's are among the latter
        if isinstance(error, DataError):
            raise
        raise DataError(f"corpus {str(path)!r}: cannot be read: {first_line(error)}") from error
    if not found:
        raise DataError(f"corpus {str(path)!r}: has no documents, and at least one is needed")
    return found


def check_columns(columns: Any) -> None:
    """Check what a setting says about columns.

    Raises:
        ConfigError: It names something else than `COLUMNS`, or is no jmespath expression.
    """
    if not isinstance(columns, Mapping) or any(name not in COLUMNS for name in columns):
        raise ConfigError(
            f"Search: corpus_columns must map some of {', '.join(COLUMNS)} to the columns of the "
            f"corpus, got {columns!r:.200}."
        )
    for name, text in columns.items():
        _compiled(name, text)


def divided(text: str, most: int) -> Iterator[tuple[int, int]]:
    """The parts of a text, as where each begins and ends: one at least.

    Args:
        text: The text.
        most: How many characters a part may have; all but the last have more than half as many.
    """
    start = 0
    while len(text) - start > most:
        least, end = start + most // 2, start + most
        for mark in _ENDS:
            at = text.rfind(mark, least, end)
            if at >= 0:
                end = at + len(mark)
                break
        yield start, end
        start = end
    yield start, len(text)


def one_line(text: str) -> str:
    """A text with all its white space as single spaces."""
    return " ".join(text.split())


def _compiled(name: str, text: Any) -> Any:
    try:
        return jmespath.compile(text)
    except (jmespath.exceptions.JMESPathError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"Search: corpus_columns.{name} must be a column or a jmespath expression, got "
            f"{text!r:.100} ({first_line(error)})"
        ) from error


def _document(where: str, row: Any, expressions: Mapping[str, Any], titles: set[str]) -> Document:
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: must be an object with a 'text', got {row!r:.200}")
    values = {
        name: expressions[name].search(row) if name in expressions else row.get(name)
        for name in COLUMNS
    }
    if not isinstance(values["text"], str):
        there = ", ".join(map(str, row)) or "none"
        raise DataError(
            f"{where}: has no text at {_expression(expressions, 'text')!r} (its columns: {there}); "
            "name the column in corpus_columns: {text: ...}"
        )
    id = "" if values["id"] is None else str(values["id"])
    title = "" if values["title"] is None else str(values["title"])
    return Document(
        _own_title(one_line(title) or id or where.rpartition(", ")[2], titles), values["text"], id
    )


def _expression(expressions: Mapping[str, Any], name: str) -> str:
    return str(expressions[name].expression) if name in expressions else name


def _own_title(title: str, titles: set[str]) -> str:
    """A title that no other document has; it is added to the titles."""
    title = one_line(title)[:_LONGEST_TITLE]
    own, number = title, 1
    while own.casefold() in titles:
        number += 1
        own = f"{title} ({number})"
    titles.add(own.casefold())
    return own


def _folder(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in _TEXT_FILES and path.is_file():
            name = str(path.relative_to(folder))
            yield name, {"title": name, "text": path.read_text("utf-8-sig", errors="replace")}


def _jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield f"line {number}", json.loads(line)
                except (json.JSONDecodeError, RecursionError) as error:
                    raise DataError(
                        f"corpus {str(path)!r}, line {number}: is not JSON: {first_line(error)}"
                    ) from error


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                yield f"row {number}", row
                number += 1


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
