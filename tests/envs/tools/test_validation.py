"""The arguments of a call: coerced where their meaning is plain, explained where it is not."""

import json
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gymnast.envs import Environment, Outcome


class Point(BaseModel):
    x: int
    y: int


def take(
    number: int = 0,
    text: str = "",
    many: list[int] = [],  # noqa: B006
    table: dict[str, int] = {},  # noqa: B006
    point: Point | None = None,
    mode: Literal["a", "b"] = "a",
    flag: bool = False,
) -> Any:
    """Give back what was given."""
    return [number, text, many, table, point, mode, flag]


def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


Echo = Environment.from_tools([take, multiply])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"number": "3"}, [3, "", [], {}, None, "a", False]),
        ({"number": 3.0}, [3, "", [], {}, None, "a", False]),
        ({"text": 5}, [0, "5", [], {}, None, "a", False]),
        ({"many": "[1, 2]"}, [0, "", [1, 2], {}, None, "a", False]),
        ({"table": '{"k": "1"}'}, [0, "", [], {"k": 1}, None, "a", False]),
        ({"point": '{"x": 1, "y": 2}'}, [0, "", [], {}, {"x": 1, "y": 2}, "a", False]),
        ({"point": "null"}, [0, "", [], {}, None, "a", False]),
        ({"flag": "true", "mode": "b"}, [0, "", [], {}, None, "b", True]),
        ('{"number": 7}', [7, "", [], {}, None, "a", False]),
        ('"{\\"number\\": 7}"', [7, "", [], {}, None, "a", False]),
        ("", [0, "", [], {}, None, "a", False]),
        (None, [0, "", [], {}, None, "a", False]),
    ],
)
def test_json_strings_and_near_misses_are_accepted(
    arguments: Any, expected: list[Any], calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    outcome: Outcome = play(Echo(), calls(("take", arguments)))[0]
    assert outcome.info["errors"] == []
    assert json.loads(outcome.messages[0]["content"]) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"a": 1}, ["multiply(a: int, b: int)", 'argument "b" is missing']),
        ({"a": 1, "b": "x"}, ['argument "b"', "integer", '(got "x")']),
        ({"a": 1, "b": 2.5}, ['argument "b"', "2.5"]),
        ({"a": 1, "b": '{"k": 1, "k": 2}'}, ['argument "b"', "'k' is given twice"]),
        ({"a": 1, "b": 2, "c": 3}, ['unexpected argument "c"']),
        ([1, 2], ["must be a JSON object", "[1, 2]"]),
    ],
)
def test_wrong_arguments_are_told_what_is_right(
    arguments: Any, words: list[str], calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    outcome: Outcome = play(Echo(), calls(("multiply", arguments)))[0]
    for word in words:
        assert word in outcome.messages[0]["content"]
    assert len(outcome.info["errors"]) == 1
    assert outcome.info["errors"][0].tool == "multiply"


def test_arguments_that_are_no_json_are_a_malformed_call(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    env = Echo()
    outcome: Outcome = play(env, calls(("multiply", '{"a": 1,')))[0]
    assert [error.kind for error in outcome.info["errors"]] == ["malformed"]
    assert "multiply(a: int, b: int)" in outcome.messages[0]["content"]
    # What the policy wrote is not lost.
    assert env.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1,'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["number", "many", "table", "point", "x"]), JSON) | JSON)
def test_no_arguments_raise(arguments: Any) -> None:
    from gymnast.envs.records.arguments import BadArguments
    from gymnast.envs.tools.validation import bind_arguments

    try:
        bound = bind_arguments(Echo().tool_definitions["take"], arguments)
    except BadArguments as error:
        assert str(error).startswith("take(")
    else:
        assert set(bound) <= {"number", "many", "table", "point"}
