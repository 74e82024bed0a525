"""Row tags: what an evaluation is divided by.

    by: [operation]                                     a column of the rows
    by: {operation: operation, large: "a > `50`"}       jmespath over a row, by name

A division is written `operation=add`: a tag's name and its value in a row. In names and values,
every character but letters, digits and `_ . : + -` becomes `_`; values that are then the same count
as one. A row in which an expression finds nothing is in no division of that tag.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jmespath

from gymnast.errors import ConfigError
from gymnast.lookup import nearest

Row = Mapping[str, Any]
By = Sequence[str] | Mapping[str, str]

# With more values than this, it is not a tag but something different in each row.
MOST_VALUES = 100


def tag_expressions(by: By) -> dict[str, str]:
    """The jmespath expression of each tag.

    Args:
        by: Columns of the rows, or expressions by name.

    Raises:
        ConfigError: An expression cannot be read, or two tags have one name.
    """
    if isinstance(by, Mapping):
        pairs = list(by.items())
    else:
        pairs = [(column, json.dumps(column)) for column in by]  # as jmespath quotes a key
    tags: dict[str, str] = {}
    for name, expression in pairs:
        try:
            jmespath.compile(expression)
        except jmespath.exceptions.JMESPathError as error:
            raise ConfigError(
                f"evaluation.by.{name}: must be a jmespath expression ({_first_line(error)}), "
                f"got {expression!r}"
            ) from error
        if _label(name) in tags:
            raise ConfigError(f"evaluation.by: names {name!r} twice, as {_label(name)!r}")
        tags[_label(name)] = expression
    return tags


def divide(rows: Sequence[Row], expressions: Mapping[str, str]) -> dict[str, list[int]]:
    """The row indices of each division, by the division's name.

    Args:
        rows: The rows.
        expressions: As `tag_expressions` returns them.

    Raises:
        ConfigError: An expression cannot be applied to a row.
    """
    divisions: dict[str, list[int]] = {}
    for name, expression in expressions.items():
        compiled = jmespath.compile(expression)
        by_value: dict[str, list[int]] = {}
        for row_index, row in enumerate(rows):
            try:
                value = compiled.search(row)
            except Exception as error:  # jmespath's functions let Python's own errors through
                raise ConfigError(
                    f"evaluation.by.{name}: {expression!r} cannot be applied to row {row_index}: "
                    f"{_first_line(error)}; the row is {dict(row)!r:.200}"
                ) from error
            if value is not None:
                by_value.setdefault(f"{name}={_label(_text(value))}", []).append(row_index)
        divisions |= dict(sorted(by_value.items()))
    return divisions


def check_tags(row_sets: Sequence[Sequence[Row]], expressions: Mapping[str, str]) -> None:
    """Check that each tag finds something in at least one environment, and few values in each.

    Args:
        row_sets: The rows of each environment that is evaluated.
        expressions: As `tag_expressions` returns them.

    Raises:
        ConfigError: A tag finds nothing, or too many values.
    """
    for name, expression in expressions.items():
        divisions = [divide(rows, {name: expression}) for rows in row_sets]
        most = max((len(division) for division in divisions), default=0)
        if most > MOST_VALUES:
            raise ConfigError(
                f"evaluation.by.{name}: must have at most {MOST_VALUES} values, got {most}; name a "
                "column that rows share, or an expression"
            )
        if not most:
            columns = sorted({str(column) for rows in row_sets for row in rows for column in row})
            near = nearest(expression.strip('"'), columns)
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(
                f"evaluation.by.{name}: must find something in an evaluation row, got {expression} "
                f"(the columns: {', '.join(columns)}){hint}"
            )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str).strip('"')


def _label(text: str) -> str:
    return re.sub(r"[^\w.:+-]", "_", text)


def _first_line(error: Exception) -> str:
    return next(line for line in str(error).splitlines() if line.strip()).rstrip(":")
