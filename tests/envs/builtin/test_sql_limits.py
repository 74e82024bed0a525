"""SQL-v0 against statements that take time or memory, leave something open, or hide a table."""

import gc
import math
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gymnast.envs import call
from gymnast.envs.builtin.sql import worker
from gymnast.envs.builtin.sql.database import Database, Limits
from gymnast.envs.builtin.sql.environment import SQL
from gymnast.errors import DataError, InfrastructureError
from gymnast.types import StopReason

COUNT = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {})"
# Each row is one operation of SQLite's virtual machine, and takes seconds.
TRIM = "trim(printf('%.*c', 99000, 'x') || {0}, printf('%.*c', 6000 - {0} % 9, 'y') || 'x')"
SLOW = f"{COUNT.format(40)} SELECT max({TRIM.format('i')}) FROM n"
FAR_BELOW_S = 12.0  # SLOW takes minutes, and a busy machine some seconds to start a process

CHANGED = {
    "prompt": "Let a be 2.",
    "schema": "CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1);",
    "solution": "UPDATE t SET a = 2",
    "check": "SELECT a FROM t",
}
ASKED = {"prompt": "What is a?", "schema": CHANGED["schema"], "solution": "SELECT a FROM t"}


def said(*queries: str) -> list[Any]:
    done = {"role": "assistant", "content": "Done."}
    return [*(call("sql", query=query) for query in queries), done]


def children() -> list[psutil.Process]:
    """The processes of this one that run statements, those that were not waited for included."""
    return [each for each in psutil.Process().children() if is_worker(each)]


def is_worker(process: psutil.Process) -> bool:
    try:
        return worker.__file__ in process.cmdline()
    except psutil.NoSuchProcess as error:
        return isinstance(error, psutil.ZombieProcess)


def files(pid: int) -> list[Path]:
    """The databases of a process."""
    return list(Path(tempfile.gettempdir()).glob(f"gymnast-*-{pid}-*/database*"))


@pytest.fixture(autouse=True)
def nothing_is_left_of_other_tests() -> None:
    """Environments that a test does not close end their processes once they are garbage."""
    until = time.monotonic() + FAR_BELOW_S
    while children() and time.monotonic() < until:
        gc.collect()
        time.sleep(0.05)


@pytest.fixture
def open_database() -> Iterator[Callable[..., Database]]:
    """Open databases of a table `t` that holds 1, and close them after the test."""
    opened: list[Database] = []

    def open_database(**limits: Any) -> Database:
        opened.append(Database(CHANGED["schema"], limits=Limits(**limits)))
        return opened[-1]

    yield open_database
    for database in opened:
        database.close()


def test_one_slow_operation_ends_at_the_timeout(open_database: Any) -> None:
    database = open_database(timeout_s=0.3)
    begun = time.monotonic()
    with pytest.raises(sqlite3.OperationalError, match=r"stopped after 0\.3 s"):
        database.run(SLOW)
    assert time.monotonic() - begun < FAR_BELOW_S
    assert children() == []
    assert database.run("SELECT a FROM t").rows == ((1,),)


def test_a_killed_statement_keeps_what_was_committed(open_database: Any) -> None:
    database = open_database(timeout_s=0.5)
    database.run("INSERT INTO t VALUES (2)", writable=True)
    database.run("BEGIN IMMEDIATE", writable=True)
    database.run("INSERT INTO t VALUES (3)", writable=True)
    with pytest.raises(sqlite3.OperationalError, match="transaction was rolled back"):
        database.run(f"INSERT INTO t SELECT length({TRIM.format('a')}) FROM t", writable=True)
    assert database.run("SELECT a FROM t").rows == ((1,), (2,))
    database.run("INSERT INTO t VALUES (4)", writable=True)
    assert len(database.run("SELECT a FROM t").rows) == 3


def test_the_policy_goes_on_after_a_killed_statement(play: Callable[..., Any]) -> None:
    env = SQL(timeout_s=0.5)
    outcome = play(env, *said(SLOW, "SELECT a FROM t"), row=ASKED)[-1]
    assert outcome.reward == 1.0
    results = [str(message["content"]) for message in env.messages if message["role"] == "tool"]
    assert "stopped after 0.5 s" in results[0]
    assert results[1] == "a\n1\n(1 row)"


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TEMP VIEW t AS SELECT 2 AS a"],
        ["CREATE TEMP TABLE t (a)", "INSERT INTO temp.t VALUES (2)"],
        ["ALTER TABLE t RENAME TO u", "CREATE VIEW T AS SELECT a + 1 AS a FROM u"],
        ["BEGIN", "UPDATE t SET a = 2"],
        ["BEGIN EXCLUSIVE", "UPDATE t SET a = 2"],
        ["SAVEPOINT one", "UPDATE t SET a = 2"],
        ["BEGIN", "UPDATE t SET a = 2", "SAVEPOINT one", "RELEASE one"],
    ],
)
def test_what_hides_a_table_or_is_open_is_not_paid(
    play: Callable[..., Any], statements: list[str]
) -> None:
    assert play(SQL(), *said(*statements), row=CHANGED)[-1].reward == 0.0
    expected = CHANGED | {"expected": [[2]], "solution": None}
    assert play(SQL(), *said(*statements), row=expected)[-1].reward == 0.0


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE t SET a = 2"],
        ["BEGIN", "UPDATE t SET a = 2", "COMMIT"],
        ["SAVEPOINT one", "UPDATE t SET a = 2", "RELEASE one"],
        ["CREATE TEMP TABLE u AS SELECT 2 AS a", "UPDATE t SET a = (SELECT a FROM u)"],
        ["CREATE VIEW v AS SELECT 2 AS a", "UPDATE t SET a = (SELECT a FROM v)"],
        ["UPDATE t SET a = 2", "BEGIN", "UPDATE t SET a = 3"],
    ],
)
def test_committed_changes_are_paid(play: Callable[..., Any], statements: list[str]) -> None:
    assert play(SQL(), *said(*statements), row=CHANGED)[-1].reward == 1.0


def test_a_view_that_the_solution_makes_is_paid(play: Callable[..., Any]) -> None:
    row = CHANGED | {"solution": "CREATE VIEW v AS SELECT 2 AS a", "check": "SELECT * FROM v"}
    assert play(SQL(), *said(row["solution"]), row=row)[-1].reward == 1.0
    assert play(SQL(), *said("CREATE TEMP VIEW v AS SELECT 2 AS a"), row=row)[-1].reward == 0.0


@pytest.mark.parametrize(
    "statements",
    [
        [
            "ALTER TABLE t RENAME TO u",
            f"CREATE VIEW t AS {COUNT.format(40)} SELECT {TRIM.format('i')} AS a FROM n",
        ],
        [
            "DROP TABLE t",
            f"CREATE TABLE t (b, a AS ({TRIM.format('b')}))",
            f"INSERT INTO t (b) {COUNT.format(40)} SELECT i FROM n",
        ],
    ],
)
def test_a_slow_check_ends_without_a_reward(
    play: Callable[..., Any], statements: list[str]
) -> None:
    begun = time.monotonic()
    outcome = play(SQL(timeout_s=0.5), *said(*statements), row=CHANGED)[-1]
    assert outcome.reward == 0.0
    assert outcome.info["metrics"]["ran"] == 1.0
    assert time.monotonic() - begun < FAR_BELOW_S


def test_a_slow_solution_is_an_error_of_the_row() -> None:
    with pytest.raises(DataError, match=r"stopped after 0\.3 s"):
        SQL(timeout_s=0.3).reset(options={"row": ASKED | {"solution": SLOW}})
    assert children() == []


@pytest.mark.parametrize("row", [ASKED, CHANGED])
def test_the_end_of_an_episode_kills_its_statement(
    play: Callable[..., Any], row: dict[str, Any]
) -> None:
    env = SQL(timeout_s=60.0, episode_timeout_s=3.0)
    begun = time.monotonic()
    (outcome,) = play(env, call("sql", query=SLOW), row=row)
    assert time.monotonic() - begun < FAR_BELOW_S
    assert outcome.info["stop_reason"] == StopReason.timeout
    assert outcome.reward == 0.0
    assert children() == []
    assert files(os.getpid()) == []


def test_close_ends_a_statement_of_another_thread(open_database: Any) -> None:
    database = open_database(timeout_s=60.0)
    raised = []

    def run() -> None:
        try:
            database.run(SLOW)
        except sqlite3.Error as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not children():
        time.sleep(0.01)
    time.sleep(0.3)
    database.close()
    thread.join(FAR_BELOW_S)
    assert len(raised) == 1
    assert children() == []
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE TEMP TABLE u AS {COUNT.format(-1)} SELECT randomblob(9000) FROM n",
        f"{COUNT.format(-1)} SELECT randomblob(90000) AS r FROM n ORDER BY r",
        f"SELECT {', '.join(['hex(zeroblob(49000))'] * 1900)}",
    ],
)
def test_a_statement_has_a_memory_limit(open_database: Any, statement: str) -> None:
    database = open_database(timeout_s=60.0, database_bytes=2**20)
    with pytest.raises(sqlite3.OperationalError, match="out of memory"):
        database.run(statement, writable=True)
    (process,) = children()
    assert process.memory_info().rss < 300 * 2**20
    assert database.run("SELECT a FROM t").rows == ((1,),)


def test_a_result_has_a_size_limit(open_database: Any) -> None:
    database = open_database(timeout_s=60.0)
    result = database.run(f"{COUNT.format(9000)} SELECT hex(zeroblob(9000)) FROM n")
    assert result.cut
    assert sum(len(text) for (text,) in result.rows) < 9 * 2**20
    wide = ", ".join(["hex(zeroblob(49000))"] * 100)
    with pytest.raises(sqlite3.DataError, match="first row is too large"):
        database.run(f"SELECT {wide}")


def test_the_text_of_a_wide_result_is_cut(play: Callable[..., Any]) -> None:
    env = SQL(timeout_s=60.0)
    wide = ", ".join(["hex(zeroblob(90)) AS column_name"] * 1900)
    play(env, *said(f"{COUNT.format(20)} SELECT {wide} FROM n"), row=ASKED)
    assert len(str(env.messages[2]["content"])) < 110_000


def test_values_arrive_as_sqlite_holds_them(open_database: Any) -> None:
    database = open_database()
    values: tuple[Any, ...] = (2**63 - 1, -(2**63), 0.1, 5e-324, math.inf, -math.inf, None)
    columns = "9223372036854775807, -9223372036854775808, 0.1, 5e-324, 9e999, -9e999, 0.0 / 0"
    assert database.run(f"SELECT {columns}").rows == (values,)
    texts = database.run("SELECT x'00ff80', 'a' || char(0, 34, 92, 10, 128512), '', x''")
    assert texts.rows == ((b"\x00\xff\x80", 'a\0"\\\n\U0001f600', "", b""),)
    with pytest.raises(sqlite3.OperationalError, match="UTF-8"):
        database.run("SELECT CAST(x'ff' AS TEXT)")


def test_the_process_inherits_no_secret_and_no_file(
    open_database: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GYMNAST_TEST_TOKEN", "secret")
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        open_database().run("SELECT 1")
        (process,) = children()
        assert "secret" not in str(process.environ())
        descriptors = Path(f"/proc/{process.pid}/fd").iterdir()
        assert str(tmp_path / "open") not in [os.readlink(each) for each in descriptors]


def test_a_process_that_was_killed_is_started_again(open_database: Any) -> None:
    database = open_database()
    database.run("INSERT INTO t VALUES (2)", writable=True)
    (process,) = children()
    process.kill()
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    time.sleep(0.2)  # its other threads end after the one that was seen
    assert len(database.run("SELECT a FROM t").rows) == 2


def test_a_process_that_cannot_start_is_reported(
    open_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(InfrastructureError, match="did not start"):
        database.run("SELECT 1")


def test_a_folder_that_cannot_be_made_is_reported(
    open_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(InfrastructureError, match="TMPDIR"):
        open_database()


def test_episodes_leave_nothing_behind(play: Callable[..., Any]) -> None:
    env = SQL(timeout_s=0.2)
    endless = f"{COUNT.format(-1)} SELECT count(*) FROM n"
    play(env, *said("SELECT 1"), row=ASKED)
    before = psutil.Process().num_fds()
    for row in (ASKED, CHANGED) * 3:
        play(env, *said("SELECT a FROM t", endless, "BEGIN"), row=row)
    assert psutil.Process().num_fds() <= before + 1  # of the event loop
    assert children() == []
    assert files(os.getpid()) == []


RUNS_UNTIL_KILLED = """
import sys, threading, time, psutil
from gymnast.envs.builtin.sql import worker
from gymnast.envs.builtin.sql.database import Database, Limits

idle, busy = (Database("CREATE TABLE t (a)", limits=Limits(timeout_s=600)) for _ in range(2))
idle.run("SELECT 1")
threading.Thread(target=busy.run, args=(sys.argv[1],), daemon=True).start()
while len(found := psutil.Process().children()) < 2:
    time.sleep(0.01)
time.sleep(0.5)
print(*(child.pid for child in found), flush=True)
time.sleep(600)
"""


def test_processes_and_files_end_with_a_killed_trainer() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNS_UNTIL_KILLED, SLOW], stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 2
        assert len(files(trainer.pid)) == 2
        trainer.send_signal(signal.SIGKILL)
    until = time.monotonic() + FAR_BELOW_S
    while time.monotonic() < until and (any(map(psutil.pid_exists, pids)) or files(trainer.pid)):
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))
    assert files(trainer.pid) == []
    assert list(Path(tempfile.gettempdir()).glob(f"gymnast-*-{trainer.pid}-*")) == []
