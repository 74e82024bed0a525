"""What OpenAI's own client reads of answers, and what episodes read of its requests."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from asking_fixtures import HELLO, answered, opened_line, running_endpoint, said
from gymnast.envs.programs.dialects.requests import Refused
from gymnast.envs.programs.serving.endpoint import Endpoint
from gymnast.envs.programs.serving.lines import Line
from gymnast.types import ToolCall

ADD: Any = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}
CALLS = (ToolCall("call_1", "add", {"a": 1, "b": "ü"}), ToolCall("call_2", "add", {}))


@pytest.fixture(scope="module", name="endpoint")
def running() -> Iterator[Endpoint]:
    yield from running_endpoint()


@pytest.fixture(name="line")
def opened(endpoint: Endpoint) -> Iterator[Line]:
    yield from opened_line(endpoint)


@pytest.fixture
def client(endpoint: Endpoint, line: Line) -> Iterator[Any]:
    with openai.OpenAI(base_url=endpoint.url + "/v1", api_key=line.key) as made:
        yield made


def read_stream(chunks: Any) -> tuple[str, str, list[tuple[str, str, str]], str]:
    """The text, the thought, the calls and the end of a streamed completion."""
    text, thought, finish = "", "", ""
    calls: list[tuple[str, str, str]] = []
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or ():
                calls.append((call.id, call.function.name, call.function.arguments))
            finish = choice.finish_reason or finish
    return text, thought, calls, finish


ANSWERS = [
    said("Hello."),
    said(""),
    said("Adding.", *CALLS),
    said("", *CALLS, reasoning="Two calls."),
    said("Cut o", finish="length"),
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_chat_is_read_alike_whole_and_streamed(client: Any, line: Line, answer: Any) -> None:
    asked: Any = {"model": "any", "messages": HELLO, "tools": [ADD]}
    with answered(line, answer, answer):
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))
    choice = whole.choices[0]
    calls = [
        (call.id, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls or ()
    ]
    thought = getattr(choice.message, "reasoning_content", "")
    read = (choice.message.content or "", thought, calls, choice.finish_reason)
    assert read_stream(chunks) == read
    assert read[:2] == (answer.message["content"], answer.message.get("reasoning_content", ""))
    said_calls = answer.message["tool_calls"]
    assert [(i, n, json.loads(a)) for i, n, a in calls] == [
        (call.id, call.name, call.arguments) for call in said_calls
    ]
    assert choice.finish_reason == answer.finish
    assert whole.usage.total_tokens == 7 and whole.model == "any"
    assert {chunk.id for chunk in chunks} != {whole.id} and len({c.id for c in chunks}) == 1


def test_a_stream_tells_its_tokens_when_asked(client: Any, line: Line) -> None:
    with answered(line, said("Hello.")):
        *_, last = client.chat.completions.create(
            model="any", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    assert last.choices == [] and last.usage.completion_tokens == 2


def test_the_clients_own_stream_helper_puts_an_answer_together(client: Any, line: Line) -> None:
    with (
        answered(line, said("Adding.", *CALLS)),
        client.chat.completions.stream(model="any", messages=HELLO, tools=[ADD]) as stream,
    ):
        message = stream.get_final_completion().choices[0].message
    assert message.content == "Adding."
    assert [
        call.function.parsed_arguments or call.function.arguments for call in message.tool_calls
    ]


def test_a_message_of_the_client_comes_back_as_it_was_said(client: Any, line: Line) -> None:
    with answered(line, said("Adding.", *CALLS, reasoning="Two."), said("Done.")) as pendings:
        message = client.chat.completions.create(model="any", messages=HELLO).choices[0].message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "3"}]}
            for call in message.tool_calls
        ]
        client.chat.completions.create(model="any", messages=[*HELLO, message, *results])
    _, assistant, *told = pendings[1].request.messages
    assert assistant["content"] == "Adding." and assistant["reasoning_content"] == "Two."
    assert assistant["tool_calls"][0] == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1, "b": "ü"}'},
    }
    assert told == [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in CALLS]


def test_functions_of_old_programs_are_called_one_by_one(client: Any, line: Line) -> None:
    function = ADD["function"]
    with answered(line, said("", *CALLS), said("3")) as pendings:
        choice = client.chat.completions.create(
            model="any", messages=HELLO, functions=[function]
        ).choices[0]
        assert choice.finish_reason == "function_call"
        assert choice.message.function_call.name == "add" and not choice.message.tool_calls
        result = {"role": "function", "name": "add", "content": "3"}
        client.chat.completions.create(
            model="any", messages=[*HELLO, choice.message, result], functions=[function]
        )
    assert pendings[0].request.tools == [ADD]
    _, assistant, told = pendings[1].request.messages
    assert assistant["tool_calls"][0]["function"]["name"] == "add"
    assert told == {"role": "tool", "name": "add", "content": "3"}


def test_a_stop_string_ends_what_the_program_sees(client: Any, line: Line) -> None:
    with answered(line, said("One.\nTwo.", *CALLS)):
        choice = client.chat.completions.create(
            model="any", messages=HELLO, stop=["Two", "\n"]
        ).choices[0]
    assert choice.message.content == "One." and choice.finish_reason == "stop"
    assert not choice.message.tool_calls


def test_a_call_that_cannot_be_read_is_text(client: Any, line: Line) -> None:
    broken = ToolCall("call_1", "add", {}, "its arguments are no JSON")
    with answered(line, said("", broken, raw="<call>add{</call>")):
        choice = client.chat.completions.create(model="any", messages=HELLO).choices[0]
    assert choice.message.content == "<call>add{</call>" and choice.finish_reason == "stop"


def test_limits_and_unused_parameters_reach_the_episode(client: Any, line: Line) -> None:
    with answered(line, said("Hello.")) as pendings:
        client.chat.completions.create(
            model="any",
            messages=HELLO,
            max_tokens=30,
            max_completion_tokens=20,
            temperature=0,
            seed=1,
            stop="x",
            extra_body={"brand_new": [1]},
        )
    request = pendings[0].request
    assert request.max_tokens == 20 and request.stop == ("x",)
    assert set(request.unused) == {"temperature", "seed", "brand_new"}
    assert not request.plain


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 2}),
    ("logprobs", {"logprobs": True}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("tool_choice", {"tools": [ADD], "tool_choice": "required"}),
    (
        "tool_choice",
        {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "add"}}},
    ),
    ("parallel_tool_calls", {"tools": [ADD], "parallel_tool_calls": False}),
    ("modalities", {"modalities": ["text", "audio"]}),
    ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
    ("tools", {"tools": [ADD, ADD]}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": True}),
    ("stop", {"stop": ["a", "b", "c", "d", "e"]}),
    ("stop", {"stop": [""]}),
    ("messages", {"messages": []}),
    ("messages[0].role", {"messages": [{"role": "poet", "content": ""}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": None}]}),
    (
        "messages[0].content[0]",
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ]
        },
    ),
]


@pytest.mark.parametrize(("param", "given"), REFUSED)
def test_what_cannot_be_given_is_refused(client: Any, line: Line, param: str, given: Any) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": "any", "messages": HELLO, **given})
    assert error.value.param == param and param in error.value.message
    assert line.counts["program/refused"] == 1


def test_tools_are_not_offered_where_none_may_be_called(client: Any, line: Line) -> None:
    with answered(line, said("Hello.")) as pendings:
        client.chat.completions.create(
            model="any", messages=HELLO, tools=[ADD], tool_choice="none", parallel_tool_calls=False
        )
    assert pendings[0].request.tools == []


def test_a_refusal_of_the_episode_is_an_error_of_the_api(client: Any, line: Line) -> None:
    refused = Refused("The prompt is too long.", kind="context_length_exceeded", param="messages")
    with answered(line, refused), pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="any", messages=HELLO)
    assert error.value.code == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_is_gone_on_with(client: Any, line: Line, stream: bool) -> None:
    with answered(line, said(" upon a time. The end", finish="length")) as pendings:
        read = client.completions.create(model="any", prompt="Once", stop=".", stream=stream)
        choices = [each.choices[0] for each in (read if stream else [read])]
    assert "".join(choice.text for choice in choices) == " upon a time"
    assert choices[-1].finish_reason == "stop"
    request = pendings[0].request
    assert request.plain and request.messages == [{"role": "user", "content": "Once"}]


@pytest.mark.parametrize(
    "given", [{"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"echo": True}, {"suffix": "x"}, {"n": 2}]
)
def test_a_completion_that_cannot_be_given_is_refused(client: Any, given: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(**{"model": "any", "prompt": "Once", **given})


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_response_is_read_alike_whole_and_streamed(client: Any, line: Line, answer: Any) -> None:
    asked: Any = {
        "model": "any",
        "input": "hello",
        "tools": [{"type": "function", **ADD["function"]}],
    }
    with answered(line, answer, answer):
        whole = client.responses.create(**asked)
        events = list(client.responses.create(**asked, stream=True))
    last = events[-1].response
    assert last.status == ("incomplete" if answer.finish == "length" else "completed")
    assert [event.sequence_number for event in events] == list(range(len(events)))

    def items(response: Any) -> list[Any]:
        return [item.model_dump(exclude={"id"}) for item in response.output]

    assert items(last) == items(whole) == items_of_events(events)
    assert whole.output_text == answer.message["content"]
    calls = [item for item in whole.output if item.type == "function_call"]
    assert [(c.call_id, c.name, json.loads(c.arguments)) for c in calls] == [
        (call.id, call.name, call.arguments) for call in answer.message["tool_calls"]
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.message["content"]


def items_of_events(events: list[Any]) -> list[Any]:
    return [
        event.item.model_dump(exclude={"id"})
        for event in events
        if event.type == "response.output_item.done"
    ]


def test_items_of_a_response_come_back_as_one_message(client: Any, line: Line) -> None:
    with answered(line, said("Adding.", *CALLS, reasoning="Two."), said("Done.")) as pendings:
        first = client.responses.create(model="any", input=HELLO, instructions="Be brief.")
        results = [
            {"type": "function_call_output", "call_id": call.id, "output": "3"} for call in CALLS
        ]
        client.responses.create(
            model="any", input=[*HELLO, *first.output, *results], instructions="Be brief."
        )
    system, user, assistant, *told = pendings[1].request.messages
    assert (system["role"], user["content"]) == ("system", "hello")
    assert assistant["content"] == "Adding." and assistant["reasoning_content"] == "Two."
    assert [call["id"] for call in assistant["tool_calls"]] == ["call_1", "call_2"]
    assert told == [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in CALLS]


@pytest.mark.parametrize(
    "given",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"prompt": {"id": "p"}},
        {"background": True},
        {"tools": [{"type": "web_search"}]},
        {"tool_choice": "required"},
        {"text": {"format": {"type": "json_object"}}},
        {"include": ["message.output_text.logprobs"]},
        {"input": []},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    ],
)
def test_a_response_that_cannot_be_given_is_refused(client: Any, given: Any) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**{"model": "any", "input": "hello", **given})
    assert error.value.param
