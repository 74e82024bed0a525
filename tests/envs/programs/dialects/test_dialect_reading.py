"""Whatever JSON a program sends is read, or refused with a sentence: nothing else happens."""

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asking_fixtures import ASKS, CHAT
from gymnast.envs.programs.dialects.requests import Refused, Request
from gymnast.envs.programs.dialects.values import DEEPEST, read_json
from gymnast.envs.programs.serving.application import DIALECTS

FUNCTION = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
PARTS = [{"type": "text", "text": "a"}]
FULL: dict[str, dict[str, Any]] = {
    CHAT: {
        "model": "m",
        "messages": [
            {"role": "developer", "content": PARTS, "name": "x"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": PARTS},
            {"role": "assistant", "function_call": CALL["function"], "refusal": "no"},
            {"role": "function", "name": "add", "content": "3"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "functions": [FUNCTION | {"name": "old"}],
        "tool_choice": "auto",
        "function_call": "auto",
        "parallel_tool_calls": True,
        "max_tokens": 3,
        "max_completion_tokens": 3,
        "stop": ["a"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 1,
        "response_format": {"type": "text"},
        "temperature": 0.5,
    },
    "/v1/completions": {
        "model": "m",
        "prompt": ["a"],
        "max_tokens": 3,
        "stop": "a",
        "stream": True,
        "stream_options": {"include_usage": True},
        "echo": False,
    },
    "/v1/responses": {
        "model": "m",
        "instructions": "i",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a"}],
            },
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "3"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "text": {"format": {"type": "text"}},
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 3,
        "stream": True,
        "background": False,
        "store": True,
    },
    "/v1/messages": {
        "model": "m",
        "system": PARTS,
        "messages": [
            {"role": "user", "content": PARTS},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": ""},
                    {"type": "redacted_thinking", "data": ""},
                    *PARTS,
                    {"type": "tool_use", "id": "c", "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": PARTS}, *PARTS],
            },
        ],
        "tools": [{"name": "add", "input_schema": {}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "max_tokens": 3,
        "stop_sequences": ["a"],
        "stream": True,
        "output_config": {"effort": "low"},
        "mcp_servers": [],
    },
}
"""A request of each dialect that has all that can be read."""

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["text", "tool", "user", "function", "auto", "assistant", "message"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "function", "id", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a value."""
    keys = range(len(value)) if isinstance(value, list) else list(value)
    inner = [value[key] for key in keys if isinstance(value[key], list | dict)]
    return [(value, key) for key in keys] + [place for each in inner for place in places(each)]


@pytest.mark.parametrize("path", FULL)
def test_all_that_can_be_read_is_read(path: str) -> None:
    asked = DIALECTS[path].read(FULL[path])
    assert asked.stream and asked.model == "m" and asked.request.max_tokens == 3


@pytest.mark.parametrize("path", FULL)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(path: str, data: st.DataObject) -> None:
    body = copy.deepcopy(FULL[path])
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(places(body)))
        container[key] = data.draw(VALUES)
    try:
        request = DIALECTS[path].read(read_json(json.dumps(body).encode())).request
    except Refused as refused:
        assert refused.status == 400 and refused.message.endswith(".")
        return
    assert isinstance(request, Request) and request.messages
    for message in request.messages:
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)
        for call in message.get("tool_calls", ()):
            assert isinstance(call["function"]["arguments"], str | dict)
    json.dumps(request.tools)


@pytest.mark.parametrize("path", FULL)
@given(body=st.dictionaries(st.sampled_from(sorted({k for b in FULL.values() for k in b})), VALUES))
def test_any_object_is_read_or_refused(path: str, body: dict[str, Any]) -> None:
    try:
        assert DIALECTS[path].read(body).request.messages
    except Refused as refused:
        assert refused.message.endswith(".")


@given(st.binary(max_size=50) | st.text(max_size=50).map(lambda text: text.encode()))
@example(b'{"a": 1, "a": 2}')
@example(b"\xef\xbb\xbf{}")
@example(b'{"a": "\\ud83d\\ude00"}')
def test_any_bytes_are_json_or_refused(body: bytes) -> None:
    try:
        assert isinstance(read_json(body), dict)
    except Refused as refused:
        assert refused.message.endswith(".")


@given(VALUES)
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert read_json(json.dumps({"a": value}).encode()) == {"a": value}


def test_levels_have_a_limit_that_texts_do_not_count_in() -> None:
    for levels, fits in ((DEEPEST - 1, True), (DEEPEST + 1, False), (100_000, False)):
        body = b'{"a":' + b"[" * levels + b"]" * levels + b"}"
        if fits:
            read_json(body)
        else:
            with pytest.raises(Refused, match="levels"):
                read_json(body)
    read_json(json.dumps({"a": "[" * 10_000}).encode())


@pytest.mark.parametrize("path", ASKS)
def test_each_parameter_has_one_effect(path: str) -> None:
    parameters = DIALECTS[path].parameters
    listed = [*parameters.used, *parameters.unused, *parameters.only]
    assert len(listed) == len(set(listed)) and set(FULL[path]) <= set(listed)
