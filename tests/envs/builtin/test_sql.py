"""SQL-v0: what a policy may do to a database, what it is told, and when it is right."""

import pickle
import sqlite3
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs import Renderer, call, check_env, make
from gymnast.envs.builtin.sql.database import Database, Limits
from gymnast.envs.builtin.sql.environment import SQL
from gymnast.errors import ConfigError, DataError, UserCodeError

SCHEMA = "CREATE TABLE fruits (name TEXT, price INTEGER);"
FRUITS = [{"name": "fig", "price": 3}, {"name": "pear", "price": 2}, {"name": "lime", "price": 3}]
ASKED = {
    "prompt": "Which fruits cost 3?",
    "schema": SCHEMA,
    "tables": {"fruits": FRUITS},
    "solution": "SELECT name FROM fruits WHERE price = 3",
}
CHANGED = {
    "prompt": "Raise the price of figs by 1.",
    "schema": SCHEMA,
    "tables": {"fruits": FRUITS},
    "solution": "UPDATE fruits SET price = price + 1 WHERE name = 'fig'",
    "check": "SELECT * FROM fruits",
}
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def said(*queries: str) -> list[Any]:
    return [
        *(call("sql", query=query) for query in queries),
        {"role": "assistant", "content": "Done."},
    ]


def reward(play: Callable[..., Any], row: dict[str, Any], *queries: str, **settings: Any) -> float:
    outcomes = play(SQL(**settings), *said(*queries), row=row)
    return float(outcomes[-1].reward)


@pytest.mark.parametrize(
    ("query", "right"),
    [
        ("SELECT name FROM fruits WHERE price = 3", 1.0),
        ("SELECT name AS n FROM fruits WHERE price > 2 ORDER BY 1 DESC", 1.0),
        ("SELECT name FROM fruits", 0.0),
        ("SELECT name, price FROM fruits WHERE price = 3", 0.0),
        ("SELECT name FROM fruits WHERE price = 3 UNION ALL SELECT 'fig'", 0.0),
        ("SELECT name FROM fruit WHERE price = 3", 0.0),
    ],
)
def test_the_rows_of_the_last_statement_are_the_answer(
    play: Callable[..., Any], query: str, right: float
) -> None:
    assert reward(play, ASKED, query) == right
    assert reward(play, ASKED, "SELECT 1", query) == right
    assert reward(play, ASKED, query, "SELECT 1") == 0.0
    assert reward(play, ASKED, query, "SELEC 1") == right  # which did not run
    assert reward(play, ASKED) == 0.0


def test_order_counts_where_the_row_says_so(play: Callable[..., Any]) -> None:
    row = ASKED | {"ordered": True, "expected": [["lime"], ["fig"]]}
    query = "SELECT name FROM fruits WHERE price = 3 ORDER BY name"
    assert reward(play, row, query) == 0.0
    assert reward(play, row, f"{query} DESC") == 1.0


def test_a_change_is_right_by_what_it_leaves(play: Callable[..., Any]) -> None:
    assert reward(play, CHANGED, "UPDATE fruits SET price = 4 WHERE name = 'fig'") == 1.0
    assert reward(play, CHANGED, "UPDATE fruits SET price = price + 1") == 0.0
    assert reward(play, CHANGED, "SELECT 'fig', 4") == 0.0
    assert reward(play, CHANGED, "DROP TABLE fruits") == 0.0
    undone = (
        "DELETE FROM fruits",
        "INSERT INTO fruits VALUES ('fig', 4), ('pear', 2), ('lime', 3)",
    )
    assert reward(play, CHANGED, *undone) == 1.0


def test_the_policy_reads_tables_rows_and_errors(play: Callable[..., Any]) -> None:
    env = SQL()
    play(env, *said("SELECT name, price FROM fruits", "SELECT nme FROM fruits"), row=ASKED)
    question, _, shown, _, refused, _ = env.messages
    assert question["content"] == f"{SCHEMA}\n\nWhich fruits cost 3?"
    assert shown["content"] == "name | price\nfig | 3\npear | 2\nlime | 3\n(3 rows)"
    assert "no such column: nme" in str(refused["content"])
    play(env, *said("DELETE FROM fruits WHERE price = 3"), row=CHANGED)
    assert env.messages[2]["content"] == "2 rows changed"
    many = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) SELECT i FROM n"
    )
    play(env, *said(many.format(21), many.format(20_000), "SELECT NULL, x'00ff'"), row=ASKED)
    results = [str(message["content"]) for message in env.messages if message["role"] == "tool"]
    assert results[0].endswith("\n20\n... (21 rows; the first 20 are shown)")
    assert results[1].endswith("\n20\n... (more than 10000 rows; the first 20 are shown)")
    assert results[2].endswith("NULL | <2 bytes>\n(1 row)")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM fruits",
        "UPDATE fruits SET price = 0",
        "INSERT INTO fruits VALUES ('plum', 1)",
        "REPLACE INTO fruits VALUES ('plum', 1)",
        "DROP TABLE fruits",
        "CREATE TABLE more (a)",
        "CREATE TEMP TABLE more (a)",
        "ALTER TABLE fruits ADD COLUMN more",
        "WITH x AS (SELECT 1) DELETE FROM fruits",
        "BEGIN",
        "VACUUM",
    ],
)
def test_a_question_lets_nothing_be_changed(statement: str) -> None:
    database = Database(SCHEMA, {"fruits": FRUITS})
    with pytest.raises(sqlite3.DatabaseError):
        database.run(statement)
    assert len(database.run("SELECT * FROM fruits").rows) == 3
    database.close()


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH DATABASE '{file}' AS other",
        "VACUUM INTO '{file}'",
        "SELECT load_extension('{file}')",
        "SELECT writefile('{file}', 'x')",
        "SELECT readfile('/etc/passwd')",
        "PRAGMA writable_schema = 1",
        "PRAGMA max_page_count = 1000000000",
        "PRAGMA temp_store_directory = '/tmp'",
        "SELECT fts3_tokenizer('simple')",
        "SELECT 1; SELECT 2",
    ],
)
def test_nothing_beside_the_database_is_reached(
    statement: str, writable: bool, tmp_path: Any
) -> None:
    database = Database(SCHEMA)
    with pytest.raises(sqlite3.Error):
        database.run(statement.format(file=tmp_path / "file"), writable=writable)
    assert list(tmp_path.iterdir()) == []
    database.close()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (ENDLESS, "stopped after 0.2 s"),
        ("SELECT zeroblob(1000000000)", "too big"),
        ("SELECT replace(hex(zeroblob(40000)), '00', hex(zeroblob(40000)))", "too big"),
        ("INSERT INTO fruits SELECT hex(randomblob(1000)), i FROM "
         "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n)",
         "full|stopped"),
    ],
)  # fmt: skip
def test_a_statement_stays_within_its_limits(statement: str, said: str) -> None:
    limits = Limits(timeout_s=0.2, database_bytes=2**20)
    database = Database(SCHEMA, {"fruits": FRUITS}, limits)
    with pytest.raises(sqlite3.Error, match=said):
        database.run(statement, writable=True)
    assert len(database.run("SELECT name FROM fruits").rows) == 3  # what it did is undone
    database.close()


@given(st.text(max_size=60), st.booleans())
def test_any_statement_returns_rows_or_raises_an_error_of_sqlite(text: str, writable: bool) -> None:
    database = Database(SCHEMA, {"fruits": FRUITS})
    try:
        database.run(text, writable=writable)
    except sqlite3.Error:
        pass
    finally:
        database.close()


def test_its_own_tasks_are_solved_by_their_solutions(play: Callable[..., Any]) -> None:
    env = SQL(changes=0.5)
    rng = np.random.default_rng(0)
    rows = [env.sample_row(rng) for _ in range(60)]
    assert 20 < sum("check" in row for row in rows) < 40
    assert len({str(row["prompt"]) for row in rows}) > 40
    for row in rows:
        assert play(env, *said(row["solution"]), row=row)[-1].reward == 1.0


def test_it_keeps_gymnasiums_and_gymnasts_rules(renderer: Renderer) -> None:
    for settings in ({}, {"changes": 1.0}):
        env: Any = make("gymnast/SQL-v0", renderer, **settings)
        assert pickle.loads(pickle.dumps(env)).changes == env.changes
        check_env(env)
        gymnasium.utils.env_checker.check_env(env)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"changes": 2}, "SQL: changes must be a share from 0 to 1, got 2"),
        ({"changes": "half"}, "SQL: changes must be a share from 0 to 1, got 'half'"),
        ({"timeout_s": 0}, "SQL: timeout_s must be > 0, got 0"),
        ({"database_bytes": "1"}, "SQL: database_bytes must be > 0, got '1'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SQL(**settings)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schema": None}, "has no 'schema'"),
        ({"solution": None}, "has neither 'solution' nor 'expected'"),
        ({"schema": "CREATE TABEL x (a)"}, 'is no SQL for SQLite: near "TABEL"'),
        ({"schema": "ATTACH 'x' AS y"}, "is no SQL for SQLite: not authorized"),
        ({"tables": {"fruits": [{"colour": "red"}]}}, "does not fit table 'fruits'"),
        ({"solution": "SELECT x"}, "the row's 'SELECT x' fails: no such column"),
        ({"solution": "DELETE FROM fruits"}, "fails: not authorized"),
    ],
)
def test_a_wrong_row_says_what_is_wrong(changed: dict[str, Any], said: str) -> None:
    with pytest.raises((DataError, UserCodeError), match=said):
        SQL().reset(options={"row": ASKED | changed})
