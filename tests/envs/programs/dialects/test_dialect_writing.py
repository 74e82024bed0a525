"""Whatever an answer says, each dialect tells the same text and calls, whole and streamed."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from gymnast.envs.programs.dialects.chat import CHAT
from gymnast.envs.programs.dialects.dialect import Dialect
from gymnast.envs.programs.dialects.messages import MESSAGES
from gymnast.envs.programs.dialects.requests import Answer, Finish
from gymnast.envs.programs.dialects.responses.dialect import RESPONSES
from gymnast.envs.programs.dialects.telling import told
from gymnast.types import Message, ToolCall

HELLO = [{"role": "user", "content": "hello"}]
ARGUMENTS = st.dictionaries(
    st.text(max_size=5), st.none() | st.integers() | st.text(max_size=9) | st.lists(st.text())
)
FINISHES: list[Finish] = ["stop", "length"]
CALLS = st.builds(ToolCall, st.text(min_size=1), st.text(min_size=1), ARGUMENTS)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    message: Message = {
        "role": "assistant",
        "content": draw(st.text(max_size=30)),
        "tool_calls": draw(st.lists(CALLS, max_size=3)),
        "reasoning_content": draw(st.text(max_size=9)),
    }
    finish: Finish = draw(st.sampled_from(FINISHES))
    return Answer(message, finish, draw(st.integers(0)), draw(st.integers(0)))


def written(dialect: Dialect, answer: Answer, body: dict[str, Any]) -> tuple[Any, list[Any]]:
    """An answer as JSON, and the data of its events."""
    whole = json.loads(dialect.write(dialect.read(body), answer))
    stream = dialect.write(dialect.read(body | {"stream": True}), answer).decode()
    lines = [line for event in stream.split("\n\n") for line in event.split("\n")]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return whole, [json.loads(each) for each in data if each != "[DONE]"]


@given(answers())
def test_chat(answer: Answer) -> None:
    whole, events = written(CHAT, answer, {"messages": HELLO})
    seen = told(answer)
    choice = ChatCompletion.model_validate(whole).choices[0]
    calls = [
        (call.id, call.function.name, json.loads(call.function.arguments))
        for call in choice.message.tool_calls or ()
        if call.type == "function"
    ]
    assert (choice.message.content or "", choice.finish_reason) == (seen.content, seen.finish)
    assert calls == [(call.id, call.name, call.arguments) for call in seen.calls]
    deltas = [ChatCompletionChunk.model_validate(event).choices[0].delta for event in events]
    assert "".join(delta.content or "" for delta in deltas) == seen.content
    streamed = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.index for call in streamed] == list(range(len(calls)))
    assert [call.model_dump(exclude={"index"}) for call in streamed] == [
        call.model_dump() for call in choice.message.tool_calls or ()
    ]


@given(answers())
def test_responses(answer: Answer) -> None:
    whole, events = written(RESPONSES, answer, {"input": "hello"})
    seen = told(answer)
    response = Response.model_validate(whole)
    assert response.output_text == seen.content
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(c.call_id, c.name, json.loads(c.arguments)) for c in calls] == [
        (call.id, call.name, call.arguments) for call in seen.calls
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert [item | {"id": ""} for item in done] == [item | {"id": ""} for item in whole["output"]]


@given(answers())
def test_messages(answer: Answer) -> None:
    whole, events = written(MESSAGES, answer, {"messages": HELLO})
    seen = told(answer)
    texts = [block["text"] for block in whole["content"] if block["type"] == "text"]
    assert "".join(texts) == seen.content
    calls = [block for block in whole["content"] if block["type"] == "tool_use"]
    assert [(c["id"], c["name"], c["input"]) for c in calls] == [
        (call.id, call.name, call.arguments) for call in seen.calls
    ]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == seen.content
    arguments = [json.loads(d["partial_json"]) for d in deltas if "partial_json" in d]
    assert arguments == [call.arguments for call in seen.calls]


@given(answers(), st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_a_stop_string_is_never_seen(answer: Answer, stop: list[str]) -> None:
    seen = told(answer, stop)
    assert answer.message["content"].startswith(seen.content)
    assert not any(text in seen.content for text in stop)
    assert (seen.stopped_by is None) == (seen.content == answer.message["content"])
    assert seen.stopped_by is None or (seen.finish == "stop" and not seen.calls)
