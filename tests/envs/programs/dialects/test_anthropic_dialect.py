"""What Anthropic's own client reads of answers, and what episodes read of its requests."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from asking_fixtures import (
    ASKS,
    HELLO,
    answered,
    asking,
    names,
    opened_line,
    post,
    running_endpoint,
    said,
)
from gymnast.envs.programs.serving.endpoint import Endpoint
from gymnast.envs.programs.serving.lines import Line
from gymnast.types import ToolCall

PATH = "/v1/messages"
ADD: Any = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
CALLS = (ToolCall("call_1", "add", {"a": 1, "b": "ü"}), ToolCall("call_2", "add", {}))
ANSWERS = [
    said("Hello."),
    said(""),
    said("Adding.", *CALLS),
    said("", *CALLS, reasoning="Two calls."),
    said("Cut o", finish="length"),
]
REASONS = ["end_turn", "end_turn", "tool_use", "tool_use", "max_tokens"]


@pytest.fixture(scope="module", name="endpoint")
def running() -> Iterator[Endpoint]:
    yield from running_endpoint()


@pytest.fixture(name="line")
def opened(endpoint: Endpoint) -> Iterator[Line]:
    yield from opened_line(endpoint)


def put_together(stream: str) -> dict[str, Any]:
    """The message that the events of a stream tell."""
    message: dict[str, Any] = {}
    for written in stream.strip().split("\n\n"):
        name, data = (part.split(": ", 1)[1] for part in written.split("\n"))
        event = json.loads(data)
        assert event["type"] == name
        match name:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                if delta["type"] == "input_json_delta":
                    block["input"] = json.loads(delta["partial_json"])
                else:
                    key = delta["type"].removesuffix("_delta")
                    block[key] += delta[key]
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert name == "message_stop"
    return message


@pytest.mark.parametrize(("answer", "reason"), list(zip(ANSWERS, REASONS, strict=True)))
def test_an_answer_is_told_alike_whole_and_streamed(
    endpoint: Endpoint, line: Line, answer: Any, reason: str
) -> None:
    with answered(line, answer):
        _, whole = post(endpoint, line.key, ASKS[PATH], PATH)
    with answered(line, answer):
        streamed = streamed_text(endpoint, line)
    assert put_together(streamed) | {"id": ""} == whole | {"id": ""}
    assert whole["stop_reason"] == reason and whole["usage"]["output_tokens"] == 2
    calls = [block for block in whole["content"] if block["type"] == "tool_use"]
    assert [(c["id"], c["name"], c["input"]) for c in calls] == [
        (call.id, call.name, call.arguments) for call in answer.message["tool_calls"]
    ]


def streamed_text(endpoint: Endpoint, line: Line) -> str:
    connection = asking(endpoint, line.key, ASKS[PATH] | {"stream": True}, PATH)
    response = connection.getresponse()
    assert response.headers["content-type"] == "text/event-stream"
    read = response.read().decode()
    connection.close()
    return read


def test_blocks_become_messages(endpoint: Endpoint, line: Line) -> None:
    asked = {
        "max_tokens": 10,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [ADD],
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["\n\nHuman:"],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Two.", "signature": ""},
                    {"type": "text", "text": "Adding."},
                    {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}},
                    {"type": "tool_use", "id": "call_2", "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "3"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_2",
                        "content": [{"type": "text", "text": "no"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "Go on."},
                ],
            },
        ],
    }
    with answered(line, said("Done.")) as pendings:
        assert post(endpoint, line.key, asked, PATH)[0] == 200
    request = pendings[0].request
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1\n2"},
        {
            "role": "assistant",
            "content": "Adding.",
            "reasoning_content": "Two.",
            "tool_calls": [
                {"id": i, "type": "function", "function": {"name": "add", "arguments": a}}
                for i, a in (("call_1", {"a": 1}), ("call_2", {}))
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "tool", "tool_call_id": "call_2", "content": "no"},
        {"role": "user", "content": "Go on."},
    ]
    assert names(request.tools) == ["add"] and request.unused == ("thinking",)
    assert request.max_tokens == 10 and request.stop == ("\n\nHuman:",)


def test_a_stop_sequence_is_told(endpoint: Endpoint, line: Line) -> None:
    with answered(line, said("One. Two. Three.")):
        _, body = post(endpoint, line.key, ASKS[PATH] | {"stop_sequences": ["Th", "Two"]}, PATH)
    assert body["content"] == [{"type": "text", "text": "One. "}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "Two")


@pytest.mark.parametrize(
    "given",
    [
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [ADD], "tool_choice": {"type": "any"}},
        {"tools": [ADD], "tool_choice": {"type": "tool", "name": "add"}},
        {"tools": [ADD], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"mcp_servers": [{"url": "http://example.com"}]},
        {"container": "c"},
        {"context_management": {"edits": []}},
        {"output_config": {"format": {"type": "json_schema"}}},
        {"messages": [*HELLO, {"role": "assistant", "content": "I begin"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": []},
        {"max_tokens": "many"},
    ],
)
def test_what_cannot_be_given_is_refused(endpoint: Endpoint, line: Line, given: Any) -> None:
    status, body = post(endpoint, line.key, ASKS[PATH] | given, PATH)
    assert status == 400 and body["error"]["type"] == "invalid_request_error"
    assert next(iter(given)) in body["error"]["message"] or "tool_choice" in given


@pytest.fixture
def client(endpoint: Endpoint, line: Line) -> Iterator[Any]:
    import anthropic

    with anthropic.Anthropic(base_url=endpoint.url, api_key=line.key) as made:
        yield made


@pytest.mark.adapters
@pytest.mark.parametrize("answer", ANSWERS)
def test_anthropics_client_reads_alike_whole_and_streamed(
    client: Any, line: Line, answer: Any
) -> None:
    asked: Any = {"model": "any", "max_tokens": 10, "messages": HELLO, "tools": [ADD]}
    with answered(line, answer, answer, answer):
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        assert list(client.messages.create(**asked, stream=True))[-1].type == "message_stop"
    left_out = {"id", "parsed_output"}
    assert streamed.model_dump(exclude=left_out) == whole.model_dump(exclude=left_out)


@pytest.mark.adapters
def test_anthropics_client_sends_back_what_was_said(client: Any, line: Line) -> None:
    with answered(line, said("Adding.", *CALLS, reasoning="Two."), said("Done.")) as pendings:
        first = client.messages.create(model="any", max_tokens=10, messages=HELLO, tools=[ADD])
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "3"} for call in CALLS
        ]
        messages = [
            *HELLO,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": results},
        ]
        client.messages.create(model="any", max_tokens=10, messages=messages, tools=[ADD])
    _, assistant, *told = pendings[1].request.messages
    assert (assistant["content"], assistant["reasoning_content"]) == ("Adding.", "Two.")
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [
        call.arguments for call in CALLS
    ]
    assert [message["tool_call_id"] for message in told] == ["call_1", "call_2"]


@pytest.mark.adapters
def test_anthropics_client_reads_errors(client: Any, line: Line) -> None:
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
        client.messages.create(
            model="any", max_tokens=10, messages=HELLO, extra_body={"mcp_servers": [1]}
        )
    line.close()
    with pytest.raises(anthropic.AuthenticationError):
        client.messages.create(model="any", max_tokens=10, messages=HELLO)
