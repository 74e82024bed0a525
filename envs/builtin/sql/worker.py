"""The process in which statements run, started as a file; it imports nothing of Gymnast.

Its working folder holds the file `database`. Stdin and stdout are one socket, whose peer is
`process.py`. A frame is its length (8 bytes, big-endian) and a JSON object. The first frame is
empty: the process is ready. Then each request gets one reply:

    request   {"statement", "writable", "connection"}
    reply     {"columns", "rows", "cut", "changed"} or {"error": [class, message]},
              both with "transaction": whether one is open

A blob is {"hex": "00ff"}. The number of the connection is that of the request before, unless a new
one is wanted: closing the old one rolls back what is not committed, and drops temporary tables,
views and triggers.
"""

import _thread
import json
import os
import resource
import select
import sqlite3
import sys
from contextlib import suppress
from typing import Any

_PAGE_BYTES = 4096
_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_OPENS = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA}
_NEVER = {"load_extension", "fts3_tokenizer"}  # the second returns addresses of this process
_LONGEST_VALUE = 100_000  # bytes
_LONGEST_ERROR = 10_000  # characters; an error may quote the statement
_PYTHON_BYTES = 256 * 2**20  # of address space, in addition to SQLite's memory


def main() -> None:
    """Run statements until the peer closes the socket."""
    settings = json.loads(sys.argv[1])
    _limit_memory(settings["memory_bytes"] + _PYTHON_BYTES)
    _thread.start_new_thread(_end_with_peer, ())
    session = Session(**settings)
    _send({})
    while len(size := sys.stdin.buffer.read(8)) == 8:
        _send(session.reply(**json.loads(sys.stdin.buffer.read(int.from_bytes(size, "big")))))
    _end()


class Session:
    """A connection to the database, opened for the first statement.

    Args:
        database_bytes: The size limit of the database.
        memory_bytes: The memory that SQLite may allocate.
        rows: The rows of a result that are returned.
        result_bytes: The JSON of a result that is returned, in bytes.
    """

    def __init__(
        self, database_bytes: int, memory_bytes: int, rows: int, result_bytes: int
    ) -> None:
        self._database_bytes, self._memory_bytes = database_bytes, memory_bytes
        self._rows, self._result_bytes = rows, result_bytes
        self._connection: sqlite3.Connection | None = None
        self._number = -1

    def reply(self, statement: str, writable: bool, connection: int) -> dict[str, Any]:
        """Run one statement; see the top of this file."""
        reply: dict[str, Any]
        try:
            if self._connection is None or self._number != connection:
                if self._connection is not None:
                    self._connection.close()
                self._connection, self._number = self._connect(), connection
            reply = self._run(self._connection, statement, writable)
        except MemoryError:
            limit = f"a statement may use {self._memory_bytes / 2**20:.0f} MiB"
            reply = {"error": ["OperationalError", f"out of memory: {limit}"]}
        except Exception as error:
            reply = {"error": [type(error).__name__, str(error)[:_LONGEST_ERROR]]}
        transaction = self._connection is not None and self._connection.in_transaction
        return {**reply, "transaction": transaction}

    def _connect(self) -> sqlite3.Connection:
        pages = max(1, self._database_bytes // _PAGE_BYTES)
        connection = sqlite3.connect("database", isolation_level=None)
        for setting in (
            f"hard_heap_limit = {self._memory_bytes}",
            f"max_page_count = {pages}",
            f"cache_size = {pages}",
            "temp_store = MEMORY",  # counted by the heap limit, where files have no limit
            "synchronous = OFF",  # the file need not survive the machine
        ):
            connection.execute(f"PRAGMA {setting}")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        return connection

    def _run(
        self, connection: sqlite3.Connection, statement: str, writable: bool
    ) -> dict[str, Any]:
        connection.set_authorizer(authorizer(writable=writable))
        before = connection.total_changes
        cursor = connection.execute(statement)
        try:
            columns = [name for name, *_ in cursor.description or ()]
            rows: list[list[Any]] = []
            cut = False
            left_bytes = self._result_bytes - len(json.dumps(columns))
            for row in cursor:
                values = [{"hex": v.hex()} if isinstance(v, bytes) else v for v in row]
                left_bytes -= len(json.dumps(values))
                if cut := len(rows) == self._rows or left_bytes < 0:
                    break
                rows.append(values)
        finally:
            cursor.close()
        if left_bytes < 0 and not rows:
            limit = f"a result may have {self._result_bytes / 2**20:.0f} MiB"
            raise sqlite3.DataError(f"the first row is too large: {limit}")
        changed = connection.total_changes - before if writable and not columns else -1
        return {"columns": columns, "rows": rows, "cut": cut, "changed": changed}


def authorizer(*, writable: bool) -> Any:
    """Return a function for `set_authorizer` that keeps a statement to the database.

    Args:
        writable: Whether the statement may change the database.
    """

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_FUNCTION and second in _NEVER:
            return sqlite3.SQLITE_DENY
        allowed = action not in _OPENS if writable else action in _READS
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return authorize


def _send(reply: dict[str, Any]) -> None:
    data = json.dumps(reply).encode()
    try:
        sys.stdout.buffer.write(len(data).to_bytes(8, "big") + data)
        sys.stdout.buffer.flush()
    except OSError:
        _end()


def _limit_memory(most_bytes: int) -> None:
    with suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_peer() -> None:
    """End the process when the peer is gone, in the middle of a statement if need be."""
    poll = select.poll()
    poll.register(0, 0)  # the end of it is always reported
    poll.poll()
    _end()


def _end() -> None:
    """Delete the database and its folder, since the peer may have been killed, and end."""
    for name in ("database", "database-journal"):
        with suppress(OSError):
            os.unlink(name)
    with suppress(OSError):
        os.rmdir(os.getcwd())
    os._exit(0)


if __name__ == "__main__":
    main()
