"""Rubrics for the form of an answer: a regular expression, and JSON that fits a schema."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from referencing.exceptions import Unresolvable

from gymnast.envs.builtin.code.environment import fenced_blocks
from gymnast.envs.rubrics.reading import (
    TIMEOUT_S,
    answer_of,
    check_column,
    check_pattern,
    check_timeout,
    extracted,
    of_row,
)
from gymnast.envs.rubrics.rubric import Played, Rubric
from gymnast.envs.tools.schema_checks import bounded_validator, schema_problem
from gymnast.envs.tools.searching import search
from gymnast.errors import ConfigError, DataError
from gymnast.numbers import finite_number


@dataclass(frozen=True)
class Regex(Rubric):
    """1.0 where a regular expression matches in the answer, else 0.0.

    Args:
        pattern: In the syntax of the package `regex`, which is that of `re` and more.
        whole: Whether it has to match all of the answer.
        ignore_case: Whether "a" matches "A".
        timeout_s: How much processor time a search may take, in seconds, counted over all threads
            of the process. A pattern that takes longer is the author's mistake, as an exception in
            `reward` is, whatever the policy wrote.
    """

    name: ClassVar[str] = "regex"
    pattern: str
    whole: bool = False
    ignore_case: bool = False
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        check_pattern("regex", "pattern", self.pattern)
        check_timeout("regex", self.timeout_s)

    def score(self, episode: Played, environment: Any = None) -> float:
        """Whether it matches."""
        options = {"whole": self.whole, "ignore_case": self.ignore_case}
        found = search(self.pattern, answer_of(episode), timeout_s=self.timeout_s, **options)
        return float(found is not None)


@dataclass(frozen=True)
class JsonSchema(Rubric):
    """1.0 where the answer is JSON that fits a schema (draft 2020-12), else 0.0.

    Where the answer has a fenced block, its last one is read instead of the whole.

    Args:
        schema: The schema, or the column of the row that has it. References lead to places in the
            schema itself; nothing is fetched.
        extract: A regular expression; its last match in the answer is read, or what its first group
            matches.
        timeout_s: For each search for a pattern of the schema, as for `Regex`.
    """

    name: ClassVar[str] = "json_schema"
    schema: Mapping[str, Any] | str
    extract: str | None = None
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if isinstance(self.schema, str):
            check_column("json_schema", self.schema)
        elif problem := schema_problem(self.schema):
            raise ConfigError(f"json_schema: schema {problem}")
        if self.extract is not None:
            check_pattern("json_schema", "extract", self.extract)
        check_timeout("json_schema", self.timeout_s)

    def score(self, episode: Played, environment: Any = None) -> float:
        """Whether it fits."""
        value, is_json = json_in(answer_of(episode), self.extract)
        schema = self._schema_of(episode)
        return float(is_json and _fits(value, schema, self.timeout_s))

    def _schema_of(self, episode: Played) -> Any:
        if not isinstance(self.schema, str):
            return self.schema
        schema = of_row(episode.row, self.schema, "json_schema")
        if isinstance(schema, str):  # as datasets keep what has no fixed columns
            schema, _ = parsed_json(schema)
        if problem := schema_problem(schema):
            raise DataError(
                f"json_schema: column {self.schema!r} {problem} (row: {dict(episode.row)!r:.300})"
            )
        return schema


def json_in(answer: str, extract: str | None = None) -> tuple[Any, bool]:
    """The JSON value in an answer, and whether there is one.

    Args:
        answer: The text.
        extract: See `JsonSchema`; without one, the last fenced block or all of the answer.
    """
    text = extracted(answer, extract)
    if extract is None and (blocks := fenced_blocks(answer)):
        text = blocks[-1][1]
    return (None, False) if text is None else parsed_json(text)


def parsed_json(text: str) -> tuple[Any, bool]:
    """A value from JSON, and whether the text is JSON, which has no NaN and no infinity."""
    try:
        read = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        return read, True
    except (ValueError, RecursionError):
        return None, False


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _finite(text: str) -> float:
    return finite_number(float(text))


def _fits(value: Any, schema: Any, timeout_s: float) -> bool:
    validator = bounded_validator(schema, timeout_s)
    try:
        return bool(validator.is_valid(value))
    except Unresolvable as error:
        raise ConfigError(
            f"json_schema: the schema refers to {error.ref!r:.200}, which is not in it; put that "
            "into its $defs"
        ) from error
    except (RecursionError, OverflowError):  # nested too deeply, or too large for `multipleOf`
        return False
