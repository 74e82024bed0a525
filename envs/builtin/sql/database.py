"""A SQLite database in memory that a policy may query, within limits.

Every database is its own: it has no file, cannot attach one, and loads no extension. What a
statement may do is decided by SQLite's authorizer while it is compiled, so no spelling of it gets
around that. Each statement has a time limit, and the database a size.
"""

import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnast.errors import DataError

Value = int | float | str | bytes | None

_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_OPENS = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA}
_NEVER = {"load_extension", "fts3_tokenizer"}  # the second tells addresses of this process
_PAGE_BYTES = 4096
_OPERATIONS = 1000  # of SQLite's machine between two looks at the clock
# Functions such as replace() and instr() take the product of two lengths, and nothing stops them.
_LONGEST_VALUE = 100_000


@dataclass(frozen=True)
class Limits:
    """What statements of a policy may take.

    Attributes:
        timeout_s: Seconds a statement may run.
        database_bytes: How large a database may grow.
        rows: How many rows of a result are kept.
    """

    timeout_s: float = 2.0
    database_bytes: int = 32 * 2**20
    rows: int = 10_000


@dataclass(frozen=True)
class Result:
    """What a statement returned.

    Attributes:
        columns: The names of its columns; empty for a statement that returns no rows.
        rows: Its rows, in order; at most as many as the limits say.
        cut: Whether there were more.
        changed: How many rows it inserted, updated or deleted; -1 where it could change none.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    cut: bool = False
    changed: int = -1


class Database:
    """A database of a row's, to be closed.

    Args:
        schema: SQL that makes the tables, and may fill them.
        tables: Rows to insert beside, by table: mappings from column to value.
        limits: Of `run`; the schema is the row's, and has none but the size.

    Raises:
        DataError: The schema or a row is not what SQLite takes.
    """

    def __init__(
        self,
        schema: str,
        tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        limits: Limits = Limits(),
    ) -> None:
        self._limits = limits
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        try:
            self._fill(schema, tables or {})
        except BaseException:
            self.close()
            raise
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)

    def _fill(self, schema: str, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        pages = max(1, self._limits.database_bytes // _PAGE_BYTES)
        self._connection.execute(f"PRAGMA max_page_count = {pages}")
        self._connection.set_authorizer(_authorizer(writable=True))
        try:
            self._connection.executescript(schema)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise DataError(f"the schema {schema!r:.300} is no SQL for SQLite: {error}") from error
        for table, rows in tables.items():
            for row in rows:
                columns = ", ".join(map(_quoted, row))
                places = ", ".join("?" for _ in row)
                statement = f"INSERT INTO {_quoted(table)} ({columns}) VALUES ({places})"
                try:
                    self._connection.execute(statement, tuple(row.values()))
                except (sqlite3.Error, sqlite3.Warning) as error:
                    raise DataError(
                        f"the row {dict(row)!r:.200} does not fit table {table!r}: {error}"
                    ) from error

    @property
    def schema(self) -> str:
        """The statements that make its tables and views, a line each."""
        made = self._connection.execute(
            "SELECT sql FROM sqlite_master WHERE type IN ('table', 'view') AND sql IS NOT NULL "
            "ORDER BY rowid"
        )
        return "\n".join(f"{' '.join(statement.split())};" for (statement,) in made)

    def run(self, statement: str, *, writable: bool = False) -> Result:
        """Run one statement.

        Args:
            statement: In SQLite's SQL.
            writable: Whether it may change rows and tables.

        Raises:
            sqlite3.Error: It is wrong, does what it may not, or ran into a limit.
        """
        begun = time.monotonic()

        def late() -> bool:
            return time.monotonic() - begun > self._limits.timeout_s

        self._connection.set_authorizer(_authorizer(writable=writable))
        self._connection.set_progress_handler(late, _OPERATIONS)
        before = self._connection.total_changes
        try:
            cursor = self._connection.execute(statement)
            rows = cursor.fetchmany(self._limits.rows + 1)
            cursor.close()
        except sqlite3.Warning as error:  # of Python 3.11: several statements at once
            raise sqlite3.ProgrammingError(str(error)) from error
        except sqlite3.OperationalError as error:
            if late():
                raise sqlite3.OperationalError(
                    f"stopped after {self._limits.timeout_s:g} s"
                ) from error
            raise
        finally:
            self._connection.set_progress_handler(None, 0)
        columns = tuple(name for name, *_ in cursor.description or ())
        changed = self._connection.total_changes - before if not columns and writable else -1
        kept = tuple(rows[: self._limits.rows])
        return Result(columns, kept, len(rows) > self._limits.rows, changed)

    def close(self) -> None:
        """Give its memory back."""
        self._connection.close()


def _authorizer(*, writable: bool) -> Any:
    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_FUNCTION and second in _NEVER:
            return sqlite3.SQLITE_DENY
        allowed = action not in _OPENS if writable else action in _READS
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return authorize


def _quoted(name: str) -> str:
    return '"' + str(name).replace('"', '""') + '"'
