"""SQL: a question about a database, or a change to make in it.

`database.py` runs statements within limits, in a process of their own (`process.py`, `worker.py`),
and `tasks.py` has tasks of Gymnast's own.
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
_LONGEST_TEXT = 100_000  # characters: a result may have 2,000 columns
_NAMES = "SELECT lower(name) FROM sqlite_master WHERE type = '{}'"
_RELATIVE_TOLERANCE = 1e-6  # sums of floats depend on the order in which a query adds


class SQL(Environment):
    """Answer a question about a SQLite database with a query, or make a change in it.

    The reward is 1.0 if the last statement that ran without an error returned the rows of the right
    answer; where the row has a `check`, if that query returns the right rows after the episode. It
    runs on a connection of its own: changes must be committed, temporary tables and views are gone,
    and a view in the place of a table is wrong. A `check` that runs into a limit is wrong, too.

    Rows are compared as a multiset, or in order where the row says `ordered`; numbers are equal up
    to a relative 1e-6, and names of columns do not count. Rows of a dataset have

        prompt     the question; the tables are shown before it
        schema     SQL that makes the tables, and may fill them
        tables     optional: rows to insert in addition, {table: [{column: value}]}
        solution   SQL that solves it, also for demonstrations; or
        expected   the right rows, as lists, where there is no solution
        check      optional: a query whose rows are compared after the episode. With it the policy
                   may change the database, without it only read.
        ordered    optional: whether the order of rows counts

    Without rows, the environment asks about small shops of its own. `metrics` gives `right` and
    `ran` (1 if a statement ran without an error).

    Args:
        changes: The share of its own tasks that change the database.
        timeout_s: Seconds that a statement may run; its process is killed then.
        database_bytes: The size limit of a database. A statement may use twice as much memory, and
            64 MiB in addition.
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
        self._tables: frozenset[Value] = frozenset()
        self._last: Result | None = None
        self._right: bool | None = None

    @tool
    def sql(self, query: str) -> str:
        """Run one SQL statement in the SQLite database and return its rows.

        Args:
            query: The statement.
        """
        database = self._database
        assert database is not None
        self._right = None
        result = database.run(query, writable=_changes(self.row))
        if database is self._database:  # the episode may be over since
            self._last = result
        return _in_words(result)

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
        self._last = self._right = None
        self._database = Database(row["schema"], row.get("tables"), self._limits)
        self._expected = self._right_rows(row, self._database)
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
        if self._right is None:  # `reward` and `metrics` both ask, and a check may take its time
            self._right = self._find_right()
        return self._right

    def _find_right(self) -> bool:
        found, database = self._last, self._database
        if found is None or database is None:
            return False
        database.reconnect()  # a statement may still run that the episode's time has cut
        if _changes(self.row):
            try:
                found = database.run(self.row["check"])
                views = database.run(_NAMES.format("view"))
            except sqlite3.Error:  # the policy has dropped the table, say
                return False
            if views.cut or self._tables & _first_column(views):
                return False
        return not found.cut and same_rows(
            found.rows,
            self._expected,
            ordered=bool(self.row.get("ordered")),
            relative_tolerance=_RELATIVE_TOLERANCE,
        )

    def _right_rows(self, row: Mapping[str, Any], database: Database) -> Sequence[Sequence[Value]]:
        """Find the right rows, and the tables that there must be; leave the database as it is."""
        statement: Any = row.get("solution")
        try:
            if row.get("expected") is not None:
                if _changes(row):
                    self._tables = _first_column(database.run(_NAMES.format("table")))
                expected: Sequence[Sequence[Value]] = row["expected"]
                return expected
            if not _changes(row):
                result = database.run(statement)
            else:
                database.run("BEGIN", writable=True)
                database.run(statement, writable=True)
                statement = row["check"]
                result = database.run(statement)
                self._tables = _first_column(database.run(_NAMES.format("table")))
                database.reconnect()  # which undoes the solution
        except sqlite3.Error as error:
            raise DataError(f"SQL: the row's {statement!r:.300} fails: {error}") from error
        if result.cut:
            raise DataError(
                f"SQL: the row's {statement!r:.300} has over {len(result.rows):,} rows, or more "
                "than 8 MiB: let it return fewer."
            )
        return result.rows


def _first_column(result: Result) -> frozenset[Value]:
    return frozenset(value for value, *_ in result.rows)


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
    text = "\n".join(lines)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def _cell(value: Value) -> str:
    if value is None:
        return "NULL"
    text = f"<{len(value)} bytes>" if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}..."
