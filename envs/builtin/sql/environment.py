"""SQL: a question about a database, or a change to make in it.

`database.py` runs statements within limits, and `tasks.py` has tasks of Gymnast's own.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gymnast.envs.builtin.sql.database import Database, Limits, Result, Value
from gymnast.envs.builtin.sql.tasks import task
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.assistant import call
from gymnast.envs.records.episode import Episode
from gymnast.envs.rubrics.result_rows import same_rows
from gymnast.envs.tools.marks import tool
from gymnast.errors import ConfigError, DataError
from gymnast.types import Message

_SHOWN = 20  # rows of a result
_LONGEST_CELL = 200  # characters
_RELATIVE_TOLERANCE = 1e-6  # sums of floats depend on the order in which a query adds


class SQL(Environment):
    """Answer a question about a SQLite database with a query, or make a change in it.

    The reward is 1.0 if the last statement that ran without an error returned the rows of the right
    answer; where the row has a `check`, if that query returns the right rows after the episode.
    Rows are compared as a multiset, or in order where the row says `ordered`; numbers are equal up
    to a relative 1e-6, and names of columns do not count. Rows of a dataset have

        prompt     the question; the tables are shown before it
        schema     SQL that makes the tables, and may fill them
        tables     optional: rows to insert beside, {table: [{column: value}]}
        solution   SQL that solves it, also for demonstrations; or
        expected   the right rows, as lists, where there is no solution
        check      optional: a query whose rows are compared after the episode. With it the policy
                   may change the database, without it only read.
        ordered    optional: whether the order of rows counts

    Without rows, the environment asks about small shops of its own. `metrics` gives `right` and
    `ran` (1 if a statement ran without an error).

    Args:
        changes: The share of its own tasks that change the database.
        timeout_s: Seconds that a statement may run.
        database_bytes: How large a database may grow.
        **settings: Those of `Environment`.
    """

    def __init__(
        self,
        *arguments: Any,
        changes: float = 0.0,
        timeout_s: float = 2.0,
        database_bytes: int = 32 * 2**20,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        number = isinstance(changes, int | float) and not isinstance(changes, bool)
        if not number or not 0 <= changes <= 1:
            raise ConfigError(f"SQL: changes must be a share from 0 to 1, got {changes!r}.")
        for name, value in (("timeout_s", timeout_s), ("database_bytes", database_bytes)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"SQL: {name} must be > 0, got {value!r}.")
        self.changes = changes
        self._limits = Limits(timeout_s=timeout_s, database_bytes=int(database_bytes))
        self._database: Database | None = None
        self._expected: Sequence[Sequence[Value]] = ()
        self._last: Result | None = None

    @tool
    def sql(self, query: str) -> str:
        """Run one SQL statement in the SQLite database and return its rows.

        Args:
            query: The statement.
        """
        assert self._database is not None
        self._last = self._database.run(query, writable=_changes(self.row))
        return _in_words(self._last)

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else a task about a shop."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        return task(rng, changes=bool(rng.random() < self.changes))

    def setup(self, row: Mapping[str, Any]) -> list[Message] | None:
        """Open the database; show its tables before the question."""
        self.cleanup()
        _check_row(row)
        self._last = None
        self._expected = self._right_rows(row)
        self._database = self._open(row)
        prompt = row["prompt"]
        if not isinstance(prompt, str):
            return None
        return [{"role": "user", "content": f"{self._database.schema}\n\n{prompt}"}]

    def cleanup(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def solve(self, row: Mapping[str, Any]) -> list[Any] | None:
        """The row's `solution`, and that it is done."""
        if row.get("solution") is None:
            return None
        return [call("sql", query=row["solution"]), "Done."]

    def reward(self, episode: Episode) -> float:
        """Whether the right rows were returned, or are there; see the class."""
        return self.metrics(episode)["right"]

    def metrics(self, episode: Episode) -> dict[str, float]:
        """See the class."""
        return {"right": float(self._is_right()), "ran": float(self._last is not None)}

    def _is_right(self) -> bool:
        found = self._last
        if found is None or self._database is None:
            return False
        if _changes(self.row):
            try:
                found = self._database.run(self.row["check"])
            except sqlite3.Error:  # the policy has dropped the table, say
                return False
        return not found.cut and same_rows(
            found.rows,
            self._expected,
            ordered=bool(self.row.get("ordered")),
            relative_tolerance=_RELATIVE_TOLERANCE,
        )

    def _right_rows(self, row: Mapping[str, Any]) -> Sequence[Sequence[Value]]:
        if row.get("expected") is not None:
            expected: Sequence[Sequence[Value]] = row["expected"]
            return expected
        database, statement = self._open(row), row["solution"]
        try:
            result = database.run(statement, writable=_changes(row))
            if _changes(row):
                statement = row["check"]
                result = database.run(statement)
        except sqlite3.Error as error:
            raise DataError(f"SQL: the row's {statement!r:.300} fails: {error}") from error
        finally:
            database.close()
        if result.cut:
            raise DataError(
                f"SQL: the row's {statement!r:.300} has over {len(result.rows):,} rows."
            )
        return result.rows

    def _open(self, row: Mapping[str, Any]) -> Database:
        return Database(row["schema"], row.get("tables"), self._limits)


def _changes(row: Mapping[str, Any]) -> bool:
    """Whether the policy may change the row's database."""
    return row.get("check") is not None


def _check_row(row: Mapping[str, Any]) -> None:
    missing = [name for name in ("prompt", "schema") if row.get(name) is None]
    if missing or (row.get("solution") is None and row.get("expected") is None):
        lacks = f"no {missing[0]!r}" if missing else "neither 'solution' nor 'expected'"
        raise DataError(
            f"SQL: the row {dict(row)!r:.300} has {lacks}; it needs a prompt, a schema, and a "
            "solution in SQL or the expected rows."
        )


def _in_words(result: Result) -> str:
    """A result as a policy reads it: the names of its columns, and its first rows."""
    if not result.columns:
        return f"{result.changed} rows changed" if result.changed >= 0 else "done"
    lines = [" | ".join(result.columns)]
    lines += [" | ".join(map(_cell, row)) for row in result.rows[:_SHOWN]]
    count = f"more than {len(result.rows)}" if result.cut else f"{len(result.rows)}"
    if len(result.rows) > _SHOWN:
        lines.append(f"... ({count} rows; the first {_SHOWN} are shown)")
    else:
        lines.append(f"({count} row{'s' if len(result.rows) != 1 else ''})")
    return "\n".join(lines)


def _cell(value: Value) -> str:
    if value is None:
        return "NULL"
    text = f"<{len(value)} bytes>" if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}..."
