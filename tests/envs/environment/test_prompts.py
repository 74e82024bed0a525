"""Prompts that are messages: how they may end, and what tables add to them is left out."""

import json
from collections.abc import Mapping
from typing import Any

import jmespath
import pyarrow
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs import Environment
from gymnast.envs.environment.rows import prompt_of
from gymnast.envs.records.messages import in_openai_shape
from gymnast.errors import DataError, UserCodeError

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is 2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "c1"}


def call(arguments: Any, name: str = "add") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    written = [{"id": "c1", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": written}


class Chat(Environment):
    """Begins with what its row says, if it says so."""

    def setup(self, row: Any) -> Any:
        return row.get("said")


def begun(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    env = Environment()
    env.reset(options={"row": dict(row)})
    return [in_openai_shape(message) for message in env.messages]


def refused(row: Mapping[str, Any]) -> str:
    with pytest.raises(DataError) as caught:
        begun(row)
    return str(caught.value)


# Prompts that hold their answer


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER,
        {"role": "Assistant", "content": "4"},
        {"role": "model", "content": "4"},
        {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
        {"role": "assistant", "content": "4", "tool_calls": None, "name": None},
        {"role": "assistant", "content": ""},
        call({"a": 2}),
    ],
)
def test_a_prompt_with_its_answer_is_refused(answer: dict[str, Any]) -> None:
    message = refused({"prompt": [USER, answer]})
    assert f"the role {answer['role']!r}" in message
    assert 'prompt: "prompt[:-1]"' in message and 'answer: "' in message
    assert "row['prompt'][:-1]" in message


@pytest.mark.parametrize(
    "prompt",
    [
        "What is 2 + 2?",
        [USER],
        [SYSTEM, USER, ANSWER, USER],
        [USER, call({"a": 2}), RESULT],
        [USER, ANSWER, SYSTEM],
    ],
)
def test_a_prompt_may_end_with_any_other_message(prompt: Any) -> None:
    """A result of a tool is what the policy answers next."""
    assert begun({"prompt": prompt})


def test_a_setup_that_returns_the_answer_is_refused() -> None:
    env = Chat()
    env.reset(options={"row": {"said": [USER]}})
    with pytest.raises(UserCodeError) as caught:
        env.reset(options={"row": {"said": [USER, ANSWER]}})
    assert caught.value.hook == "setup" and "'assistant'" in str(caught.value)


def test_rows_of_an_environment_are_refused_as_well() -> None:
    class Drawn(Environment):
        def sample_row(self, rng: Any) -> Any:
            return {"prompt": [USER, ANSWER]}

    for env in (Drawn(), Environment(rows=[{"prompt": [USER, ANSWER]}])):
        with pytest.raises(DataError, match="'assistant'"):
            env.reset(seed=0)


CONVERSATION = [SYSTEM, USER, call({"a": 2}), RESULT, ANSWER, USER, ANSWER]
SHAREGPT = [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]


@pytest.mark.parametrize(
    ("row", "expression"),
    [
        ({"messages": [USER, ANSWER]}, None),
        ({"conversation": CONVERSATION}, None),
        ({"my messages": [USER, ANSWER], "id": 3}, None),
        ({"conversation": CONVERSATION, "prompt": CONVERSATION}, None),
        ({"prompt": [USER, ANSWER, ANSWER]}, None),
        ({"prompt": [USER, call({"a": 2})]}, None),
        ({"messages": [USER]}, None),
        ({"x": {"turns": [USER, ANSWER]}, "prompt": [USER, ANSWER]}, "x.turns"),
        ({"x": [USER, ANSWER], "prompt": [USER, ANSWER]}, "y || x"),
        ({"x": [[USER, ANSWER]], "prompt": [USER, ANSWER]}, "x[0]"),
        ({"x": [USER, ANSWER, ANSWER], "prompt": [USER, ANSWER]}, "x[:-1]"),
        ({"conversations": SHAREGPT}, None),
        ({"conversations": SHAREGPT[:1]}, None),
        ({"conversations": SHAREGPT, "prompt": SHAREGPT}, "conversations"),
    ],
)
def test_the_columns_that_the_error_names_work(row: dict[str, Any], expression: str | None) -> None:
    with pytest.raises(DataError) as caught:
        prompt_of(row, expression)
    written = str(caught.value).split("data.columns: ")[1]
    columns = yaml.safe_load(written[: written.rindex("}") + 1])
    mapped = {name: jmespath.search(text, row) for name, text in columns.items()}
    conversation = row if expression is None else {"it": jmespath.search(expression, row)}
    [given] = [v for k, v in conversation.items() if isinstance(v, list) and k != "prompt"] or [
        row["prompt"]
    ]
    texts = [message.get("content", message.get("value")) for message in given]
    kept = prompt_of(mapped)
    assert [message["content"] for message in kept] == texts[: len(kept)]
    assert kept[-1]["role"] in ("user", "tool")
    if len(kept) < len(given):
        assert mapped["answer"] == (texts[-1] or given[-1].get("tool_calls"))


def test_an_answer_that_a_row_has_is_not_mapped() -> None:
    assert "prompt[-1]" not in refused({"prompt": [USER, ANSWER], "answer": 4})


def test_nothing_is_suggested_where_no_prompt_is_left() -> None:
    for prompt in ([ANSWER], [SYSTEM, ANSWER]):
        assert "data.columns" not in refused({"prompt": prompt})


# Nulls that tables add


LEAVES = st.integers(0, 9)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": st.sampled_from(["Paris", "Rome"]),
        "where": st.fixed_dictionaries(
            {}, optional={"x": LEAVES, "y": st.dictionaries(st.sampled_from("ab"), LEAVES)}
        ),
        "many": st.lists(LEAVES | st.none(), max_size=3),
        "parts": st.lists(st.dictionaries(st.sampled_from("kv"), LEAVES), max_size=3),
    },
)


@given(st.lists(st.lists(ARGUMENTS, max_size=3), min_size=1, max_size=4))
def test_prompts_out_of_a_table_are_those_put_into_it(rows: list[list[dict[str, Any]]]) -> None:
    prompts = [
        [SYSTEM, *(m for arguments in row for m in (call(arguments), RESULT)), USER] for row in rows
    ]
    table = pyarrow.Table.from_pylist([{"prompt": prompt} for prompt in prompts])
    for row, prompt in zip(table.to_pylist(), prompts, strict=True):
        assert begun(row) == begun({"prompt": prompt})


@pytest.mark.parametrize("arguments", [{"city": "Paris", "unit": None}, {"a": {"b": [None, {}]}}])
def test_nulls_that_somebody_wrote_stay(arguments: dict[str, Any]) -> None:
    """In messages that have only keys of their own, and in strings of JSON from anywhere."""
    (_, said, *_) = begun({"prompt": [USER, call(arguments), RESULT]})
    assert said["tool_calls"][0]["function"]["arguments"] == arguments
    prompt = [USER, call(json.dumps(arguments)), RESULT]
    table = pyarrow.Table.from_pylist([{"prompt": prompt}])
    (_, said, *_) = begun(table.to_pylist()[0])
    assert said["tool_calls"][0]["function"]["arguments"] == arguments


def test_keys_of_messages_may_be_null() -> None:
    empty = {"tool_calls": None, "name": None, "tool_call_id": None}
    prompt = [
        {**empty, **SYSTEM},
        {**empty, "role": "assistant", "content": None},
        {**empty, **USER},
    ]
    assert begun({"prompt": prompt}) == [SYSTEM, {"role": "assistant", "content": ""}, USER]
