"""Row tags: what an evaluation is divided by.

    by: [operation]                                     a column of the rows
    by: {operation: operation, large: "a > `50`"}       jmespath over a row, by name

A division is written `operation=add`: a tag's name and its value in a row. In a name and in a
value, whatever is not a letter, a digit or one of `_ . : + -` becomes `_`; values that are then
the same count as one. A row at which an expression finds nothing is in no division of that tag.
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

# More values than this are no tags but something that each row has of its own.
MOST_VALUES = 100


def tag_expressions(by: By) -> dict[str, str]:
    """Each tag's jmespath expression.

    Args:
        by: Columns of the rows, or expressions by name.

    Raises:
        ConfigError: An expression cannot be read, or two tags have one name.
    """
    if isinstance(by, Mapping):
        pairs = list(by.items())
    else:
        pairs = [(column, json.dumps(column)) for column in by]  # as jmespath quotes a key
    found: dict[str, str] = {}
    for name, expression in pairs:
        try:
            jmespath.compile(expression)
        except jmespath.exceptions.JMESPathError as error:
            raise ConfigError(
                f"evaluation.by.{name}: must be a jmespath expression ({_first_line(error)}), "
                f"got {expression!r}"
            ) from error
        if _label(name) in found:
            raise ConfigError(f"evaluation.by: names {name!r} twice, as {_label(name)!r}")
        found[_label(name)] = expression
    return found


def divide(rows: Sequence[Row], expressions: Mapping[str, str]) -> dict[str, list[int]]:
    """The rows of each division, as their places, by the division's name.

    Args:
        rows: The rows.
        expressions: Of `tag_expressions`.

    Raises:
        ConfigError: An expression cannot be applied to a row.
    """
    found: dict[str, list[int]] = {}
    for name, expression in expressions.items():
        compiled = jmespath.compile(expression)
        of_tag: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            try:
                value = compiled.search(row)
            except Exception as error:  # jmespath's functions let Python's own errors through
                raise ConfigError(
                    f"evaluation.by.{name}: {expression!r} cannot be applied to row {place}: "
                    f"{_first_line(error)}; the row is {dict(row)!r:.200}"
                ) from error
            if value is not None:
                of_tag.setdefault(f"{name}={_label(_text(value))}", []).append(place)
        found |= dict(sorted(of_tag.items()))
    return found


def check_tags(row_sets: Sequence[Sequence[Row]], expressions: Mapping[str, str]) -> None:
    """Each tag must find something in one set of rows at least, and few values in each.

    Args:
        row_sets: The rows of each environment that is evaluated.
        expressions: Of `tag_expressions`.

    Raises:
        ConfigError: It does not.
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
                f"evaluation.by.{name}: must find something in a held-out row, got {expression} "
                f"(the columns: {', '.join(columns)}){hint}"
            )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str).strip('"')


def _label(text: str) -> str:
    return re.sub(r"[^\w.:+-]", "_", text)


def _first_line(error: Exception) -> str:
    return next(line for line in str(error).splitlines() if line.strip()).rstrip(":")
