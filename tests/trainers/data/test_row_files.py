"""Rows from files of each format: what is read, columns by jmespath, an error for all wrong."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs import Environment
from gymnast.envs.records.messages import in_openai_shape
from gymnast.errors import DataError
from gymnast.trainers.data.row_checks import check_rows
from gymnast.trainers.data.row_files import load_rows

ROWS = [
    {"question": {"text": "What is 1 + 1?"}, "answer": 2},
    {"question": {"text": "Quanto fa 2 x 3, però?\u2028"}, "answer": 6},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_jsonl(rows: Sequence[Any], name: str = "rows.jsonl") -> str:
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return name


def refused(name: str, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load_rows(name, **options)
    return str(caught.value)


# Formats


def test_json_and_json_lines(folder: Path) -> None:
    Path("rows.json").write_text(json.dumps(ROWS), encoding="utf-8-sig")
    Path("raw.jsonl").write_text(
        "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n", encoding="utf-8"
    )
    for name in ("rows.json", write_jsonl(ROWS), "raw.jsonl"):
        assert list(load_rows(name)) == ROWS


def test_parquet(folder: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), "rows.parquet")
    assert list(load_rows("rows.parquet")) == ROWS


def test_csv_is_text_as_the_file_has_it(folder: Path) -> None:
    """No value is taken for a number: 007 and 1e5 stay, and an answer is text as in JSON."""
    Path("rows.csv").write_text('\ufeffprompt,answer\n"What is\n1 + 1?",2\n\n"a, b",007\nc,\n')
    assert list(load_rows("rows.csv")) == [
        {"prompt": "What is\n1 + 1?", "answer": "2"},
        {"prompt": "a, b", "answer": "007"},
        {"prompt": "c", "answer": ""},
    ]
    rows = load_rows("rows.csv", columns={"n": "to_number(answer)"})
    assert [row["n"] for row in rows] == [2, 7, None]


def test_csv_fields_may_be_long(folder: Path) -> None:
    Path("rows.csv").write_text(f"prompt\n{'long ' * 50_000}\n")
    assert len(load_rows("rows.csv")[0]["prompt"]) == 250_000
    assert csv.field_size_limit() < 250_000, "whoever else reads CSV files keeps the limit"


def test_arrow_files_of_both_kinds(folder: Path) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    for name, writer in (("a.arrow", pyarrow.ipc.new_stream), ("b.arrow", pyarrow.ipc.new_file)):
        with pyarrow.OSFile(name, "wb") as file, writer(file, table.schema) as out:
            out.write_table(table)
        assert list(load_rows(name)) == ROWS


def test_a_saved_dataset_is_a_folder(folder: Path) -> None:
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk("alone")
    assert list(load_rows("alone")) == ROWS
    assert list(load_rows("alone", split="whatever")) == ROWS
    assert list(load_rows(str(next(Path("alone").glob("*.arrow"))))) == ROWS
    datasets.DatasetDict(train=saved, exam=saved.select([1])).save_to_disk("several")
    assert list(load_rows("several")) == ROWS
    assert list(load_rows("several", split="exam", columns={"n": "answer"})) == [
        {**ROWS[1], "n": 6}
    ]
    assert refused("several", split="test") == (
        "several: has no split 'test'; name one of train, exam in data.split, or in "
        "data.evaluation_split for data.evaluation"
    )


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none()), min_size=1))
def test_what_was_written_as_json_lines_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    assert list(load_rows(write_jsonl(rows, str(path)))) == rows


# Columns


def conversation(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """A question after a call that was answered, and its answer."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return [
        {"role": "user", "content": "Begin."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "4"},
    ]


class Chat(Environment):
    """Begins with what its row says."""

    def tools_for(self, row: Any) -> Any:
        return row["tools"]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        return 4

    def reward(self, episode: Any) -> float:
        return float(episode.answer == self.row["answer"])


def saved_as(kind: str, rows: list[dict[str, Any]]) -> str:
    match kind:
        case "jsonl":
            return write_jsonl(rows)
        case "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "rows.parquet")
            return "rows.parquet"
        case _:
            datasets.Dataset.from_list(rows).save_to_disk("saved")
            return "saved"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_conversations_are_played_without_their_answers(kind: str, folder: Path) -> None:
    """Whatever a table adds to calls and schemas, an episode is that of the rows written."""
    given: list[dict[str, Any]] = [
        {"city": "Paris", "at": {"x": 1}},
        {"a": 1, "b": [{"c": 2}, {"d": 3}]},
        {"a": 2},
    ]
    schemas = [
        {"name": "add", "parameters": {"type": "object", "properties": {name: {"type": "integer"}}}}
        for name in ("a", "b", "c")
    ]
    rows = [
        {"messages": conversation(arguments), "tools": [{"type": "function", "function": schema}]}
        for arguments, schema in zip(given, schemas, strict=True)
    ]
    columns = {"prompt": "messages[:-1]", "answer": "messages[-1].content"}
    loaded = load_rows(saved_as(kind, rows), columns=columns)
    for row, written, schema in zip(loaded, rows, schemas, strict=True):
        env = Chat()
        env.reset(options={"row": row})
        shown = [in_openai_shape(message) for message in env.messages]
        assert shown == [in_openai_shape(message) for message in written["messages"][:-1]]
        assert env.tools == [{"type": "function", "function": {"description": "", **schema}}]
        assert row["answer"] == "4"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_a_prompt_column_that_holds_the_answer_is_refused(kind: str, folder: Path) -> None:
    rows = [{"talk": conversation({"a": 1})[3:]}, {"talk": conversation({"a": 1})}]
    name = saved_as(kind, rows)
    for columns in ({"prompt": "talk"}, {"prompt": "talk[*]"}):
        with pytest.raises(DataError) as caught:
            check_rows(load_rows(name, columns=columns), Environment(), name)
        place = "rows.jsonl, line 1: " if kind == "jsonl" else f"{name}, row 0: "
        assert str(caught.value).startswith(place)
        assert "'assistant'" in str(caught.value)
        assert f'prompt: "{columns["prompt"].replace("[*]", "[*] | ")}[:-1]"' in str(caught.value)
    with pytest.raises(DataError) as caught:
        check_rows(load_rows(name), Environment(), name)
    assert '{prompt: "talk[:-1]", answer: "talk[-1].content"}' in str(caught.value)


def test_columns_are_jmespath_over_the_rows(folder: Path) -> None:
    columns = {"prompt": "question.text", "answer": "to_string(answer)", "n": "answer"}
    rows = load_rows(write_jsonl(ROWS), columns=columns, keep_columns=False)
    assert rows[0] == {"prompt": "What is 1 + 1?", "answer": "2", "n": 2}
    assert len(rows) == 2 and rows[-1]["n"] == 6 and [row["n"] for row in rows[0:2]] == [2, 6]


def test_columns_are_added_to_those_that_there_are(folder: Path) -> None:
    """A reward that looks for `answer` finds it, though `columns` names the prompt alone."""
    name = write_jsonl([{"question": "1 + 1?", "answer": 2, "prompt": "an older one"}])
    rows = load_rows(name, columns={"prompt": "question"})
    assert list(rows) == [{"question": "1 + 1?", "answer": 2, "prompt": "1 + 1?"}]


def test_a_column_may_be_empty_in_some_rows(folder: Path) -> None:
    name = write_jsonl([{"q": "a"}, {"q": "b", "tools": ["add"]}])
    rows = load_rows(name, columns={"prompt": "q", "tools": "tools"})
    assert [row["tools"] for row in rows] == [None, ["add"]]


def test_a_column_that_is_in_no_row(folder: Path) -> None:
    name = write_jsonl(ROWS)
    assert refused(name, columns={"prompt": "question.txt"}) == (
        "rows.jsonl: data.columns.prompt: no row has anything at 'question.txt'; where 'txt' is "
        "looked for there are text; did you mean text?"
    )
    assert refused(name, columns={"prompt": "lenght(question.text)"}).startswith(
        "rows.jsonl, line 1: data.columns.prompt: 'lenght(question.text)' cannot be read: "
        "Unknown function: lenght(); the row is {"
    )
    assert "invalid type for value" in refused(name, columns={"prompt": "sum(question.text)"})
    assert refused(name, columns={"answer": "anser"}).endswith(
        "where 'anser' is looked for there are question, answer; did you mean answer?"
    )


def test_a_row_without_a_prompt_is_named(folder: Path) -> None:
    name = write_jsonl([{"q": "a"}, {"p": "b"}])
    assert refused(name, columns={"prompt": "q"}).startswith(
        "rows.jsonl, line 2: has nothing at 'q' (data.columns.prompt), but every row needs a prompt"
    )


# What the user can get wrong


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.jsonl",
            '{"a": 1}\n{"a": }\n',
            "a.jsonl, line 2, column 7: is not JSON: ",
        ),
        ("a.jsonl", "[1]\n", "a.jsonl, line 1: must be an object ({...}), got [1]"),
        ("a.jsonl", "\n", "a.jsonl: has no rows"),
        ("a.json", '[{"a": 1},\n 2]', "a.json, row 1: must be an object ({...}), got 2"),
        ("a.json", '{"a": 1}', "a.json: must hold a list of objects, it holds {'a': 1}"),
        ("a.json", "[\n\n", "a.json, line 3, column 1: is not JSON"),
        ("a.jsonl", "\n" + "[" * 99_999, "a.jsonl, line 2: is nested too deeply to be read"),
        ("a.csv", "a,b\n1\n", "a.csv, line 2: must have 2 values, one a column (a, b), got 1"),
        (
            "a.csv",
            'a\n"x\ny"\n\n1,2\n',
            "a.csv, line 5: must have 1 values, one a column",
        ),
        ("a.csv", 'a\n\n"1\n2', "a.csv, line 3: is not CSV: unexpected end of data"),
        ("a.csv", "a,b,a\n1,2,3\n", "a.csv, line 1: two columns are called 'a'; rename one"),
        ("a.csv", "", "a.csv: has no rows"),
        ("a.arrow", "no", "a.arrow: cannot be read: "),
        ("a.parquet", "no", "a.parquet: cannot be read: "),
        ("a.txt", "hello", "a.txt: files of rows end in .jsonl, .json, .csv, .parquet, "),
    ],
)
def test_a_file_that_cannot_be_read(folder: Path, name: str, text: str, message: str) -> None:
    Path(name).write_text(text)
    assert refused(name).startswith(message)


def test_a_file_of_another_encoding(folder: Path) -> None:
    Path("a.jsonl").write_bytes(b'{"a": "\xff"}')
    assert refused("a.jsonl") == "a.jsonl: is not UTF-8 text (byte 8); save it as UTF-8"


def test_a_file_that_is_not_there(folder: Path) -> None:
    write_jsonl(ROWS, "train.jsonl")
    assert refused("trian.jsonl") == (
        f"trian.jsonl: there is no such file (looked in {os.getcwd()}); did you mean train.jsonl?"
    )
    assert "there is no such file" in refused("./nowhere/rows")
    assert refused(".") == (
        ".: is a folder that datasets.save_to_disk did not write; name a file of rows, such as "
        "train.jsonl"
    )


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    code = "from gymnast.trainers.data.row_files import load_rows; load_rows('an-org/rows')"
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "DataError: an-org/rows: there is no such file here" in done.stderr
    assert "no dataset of this name could be loaded from the hub (split 'train'" in done.stderr
