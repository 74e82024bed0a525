"""A SQLite database that a policy may query, within limits.

Every database is its own: a file in a private folder, on which statements run in a process of their
own (`worker.py`). SQLite's authorizer decides what a statement may do while it is compiled, so no
spelling gets around that. The process is killed when a statement's time is up; the file then holds
what was committed before.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnast.envs.builtin.sql.process import Killed, StatementProcess
from gymnast.envs.builtin.sql.worker import authorizer
from gymnast.errors import DataError, InfrastructureError
from gymnast.sandboxes.lifetime.living import when_gone
from gymnast.sandboxes.lifetime.owner import folder_prefix

Value = int | float | str | bytes | None

_PAGE_BYTES = 4096
_LEAST_MEMORY_BYTES = 64 * 2**20  # of SQLite, in addition to twice the database
_RESULT_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Limits:
    """Limits of a policy's statements.

    Attributes:
        timeout_s: Seconds a statement may run.
        database_bytes: The size limit of the database.
        rows: The rows of a result that are kept, as far as they fit in 8 MiB of JSON.
    """

    timeout_s: float = 2.0
    database_bytes: int = 32 * 2**20
    rows: int = 10_000


@dataclass(frozen=True)
class Result:
    """The result of a statement.

    Attributes:
        columns: The names of its columns; empty for a statement that returns no rows.
        rows: Its rows, in order; at most as many as the limits allow.
        cut: Whether there were more.
        changed: The number of rows that it inserted, updated or deleted; -1 where it could change
            none.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    cut: bool = False
    changed: int = -1


class Database:
    """The database of a row, to be closed.

    Args:
        schema: SQL that makes the tables, and may fill them.
        tables: Rows to insert in addition, by table: mappings from column to value.
        limits: Limits of `run`. The schema, which is the row's, has none but the size.

    Attributes:
        schema: The statements that make its tables and views at the start, a line each.

    Raises:
        DataError: SQLite does not accept the schema or a row.
        InfrastructureError: The database's folder cannot be written.
    """

    def __init__(
        self,
        schema: str,
        tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        limits: Limits = Limits(),
    ) -> None:
        self._limits = limits
        self._connection, self._in_transaction = 0, False
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            _fill(connection, schema, tables or {}, limits.database_bytes)
            self.schema = _schema_of(connection)
            folder = _saved(connection)
        settings = {
            "database_bytes": limits.database_bytes,
            "memory_bytes": _LEAST_MEMORY_BYTES + 2 * limits.database_bytes,
            "rows": limits.rows,
            "result_bytes": _RESULT_BYTES,
        }
        self._process = StatementProcess(folder, settings)
        self._discard = when_gone(self, self._process.close)

    def run(self, statement: str, *, writable: bool = False) -> Result:
        """Run one statement.

        Args:
            statement: In SQLite's SQL.
            writable: Whether it may change rows and tables.

        Raises:
            sqlite3.Error: It is wrong, does what it may not, or ran into a limit. One that ran out
                of time has rolled back its transaction and dropped what is temporary.
            InfrastructureError: No process can be started to run it.
        """
        request = {"statement": statement, "writable": writable, "connection": self._connection}
        in_transaction, self._in_transaction = self._in_transaction, False
        try:
            reply = self._process.request(request, self._limits.timeout_s)
        except Killed as killed:
            undone = "; the open transaction was rolled back" if in_transaction else ""
            raise sqlite3.OperationalError(f"{killed}{undone}") from None
        self._in_transaction = reply["transaction"]
        if "error" in reply:
            raise _error(*reply["error"])
        rows = (tuple(map(_value, row)) for row in reply["rows"])
        return Result(tuple(reply["columns"]), tuple(rows), reply["cut"], reply["changed"])

    def reconnect(self) -> None:
        """Stop a statement that is running, and give the next one a new connection.

        What is not committed is rolled back, and temporary tables, views and triggers are gone.
        """
        self._connection += 1
        self._process.stop()

    def close(self) -> None:
        """Stop a statement that is running, and delete the database. May be called twice."""
        self._discard()


def _fill(
    connection: sqlite3.Connection,
    schema: str,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    database_bytes: int,
) -> None:
    connection.execute(f"PRAGMA max_page_count = {max(1, database_bytes // _PAGE_BYTES)}")
    connection.set_authorizer(authorizer(writable=True))
    try:
        connection.executescript(schema)
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise DataError(f"the schema {schema!r:.300} is no SQL for SQLite: {error}") from error
    for table, rows in tables.items():
        for row in rows:
            columns = ", ".join(map(_quoted, row))
            places = ", ".join("?" for _ in row)
            statement = f"INSERT INTO {_quoted(table)} ({columns}) VALUES ({places})"
            try:
                connection.execute(statement, tuple(row.values()))
            except (sqlite3.Error, sqlite3.Warning) as error:
                raise DataError(
                    f"the row {dict(row)!r:.200} does not fit table {table!r}: {error}"
                ) from error
    if connection.in_transaction:  # the schema began one
        connection.commit()


def _schema_of(connection: sqlite3.Connection) -> str:
    """Return the statements that make the tables and views, a line each."""
    made = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type IN ('table', 'view') AND sql IS NOT NULL "
        "ORDER BY rowid"
    )
    return "\n".join(f"{' '.join(statement.split())};" for (statement,) in made)


def _saved(connection: sqlite3.Connection) -> Path:
    """Copy a database to a file in a new folder, and return the folder.

    Raises:
        InfrastructureError: The temporary folder of the machine is full, say.
    """
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=folder_prefix()))
        with closing(sqlite3.connect(folder / "database", isolation_level=None)) as file:
            file.execute("PRAGMA synchronous = OFF")
            connection.backup(file)
    except (OSError, sqlite3.Error) as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise InfrastructureError(
            f"the file of a database cannot be written to {tempfile.gettempdir()}: {error}; make "
            "room there, or set TMPDIR"
        ) from error
    return folder


def _error(name: str, message: str) -> sqlite3.Error:
    """Return an error of the worker's; those of other modules become a `DataError` of SQLite."""
    if name == "Warning":  # of Python 3.11: several statements at once
        return sqlite3.ProgrammingError(message)
    kind = getattr(sqlite3, name, None)
    if isinstance(kind, type) and issubclass(kind, sqlite3.Error):
        return kind(message)
    return sqlite3.DataError(f"{name}: {message}")


def _value(value: Any) -> Value:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def _quoted(name: str) -> str:
    return '"' + str(name).replace('"', '""') + '"'
