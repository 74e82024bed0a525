"""OpenAI's chat completions: POST /v1/chat/completions."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gymnast.envs.programs.dialects.chat_messages import read_messages
from gymnast.envs.programs.dialects.dialect import (
    Asked,
    Dialect,
    Parameters,
    dumped,
    event,
    new_id,
)
from gymnast.envs.programs.dialects.errors import openai_error
from gymnast.envs.programs.dialects.requests import Answer, Request
from gymnast.envs.programs.dialects.telling import Told, told, written_arguments
from gymnast.envs.programs.dialects.tools import (
    check_names,
    check_parallel,
    functions,
    offered,
    schema,
)
from gymnast.envs.programs.dialects.values import (
    flag,
    optional_count,
    optional_mapping,
    optional_sequence,
    optional_text,
    refuse,
)
from gymnast.types import ToolCall

ONE_ANSWER = "one request gets one answer"
NO_LOGPROBS = "log-probabilities are not given to programs"

PARAMETERS = Parameters(
    used=(
        "messages", "model", "tools", "functions", "tool_choice", "function_call",
        "parallel_tool_calls", "max_tokens", "max_completion_tokens", "stop", "stream",
        "stream_options",
    ),
    unused=(
        "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "logit_bias", "user", "metadata", "store", "reasoning_effort",
        "service_tier", "verbosity", "safety_identifier", "prompt_cache_key", "prediction",
    ),
    only={
        "n": ((1,), ONE_ANSWER),
        "best_of": ((1,), ONE_ANSWER),
        "logprobs": ((False,), NO_LOGPROBS),
        "top_logprobs": ((0,), NO_LOGPROBS),
        "response_format": (
            ({"type": "text"},),
            "a format cannot be forced without changing the distribution that is sampled from; "
            "ask for it in the messages",
        ),
        "modalities": ((["text"],), "answers are texts"),
        "audio": ((), "answers are texts"),
        "web_search_options": ((), "the server has no tools of its own"),
    },
)  # fmt: skip


def read(body: Mapping[str, Any]) -> Asked:
    """Read the body of a request.

    Raises:
        Refused: It is no request, or asks for what cannot be given.
    """
    unused = PARAMETERS.read(body)
    old = bool(body.get("functions"))
    tools = _tools(body)
    check_parallel(body.get("parallel_tool_calls"), tools, "parallel_tool_calls")
    if any(tool.get("strict") for tool in _functions_of(body)):
        unused = (*unused, "strict")
    limits = [
        optional_count(body.get(name), name) for name in ("max_tokens", "max_completion_tokens")
    ]
    options = optional_mapping(body.get("stream_options"), "stream_options")
    request = Request(
        messages=read_messages(body.get("messages")),
        tools=tools,
        max_tokens=min((limit for limit in limits if limit is not None), default=None),
        stop=read_stop(body.get("stop")),
        unused=unused,
    )
    return Asked(
        request,
        optional_text(body.get("model"), "model") or "policy",
        flag(body.get("stream"), "stream"),
        {
            "usage": flag(options.get("include_usage"), "stream_options.include_usage"),
            "old": old,
        },
    )


def read_stop(value: Any, most: int = 4) -> tuple[str, ...]:
    """The stop strings of a request: one, a list of them, or none.

    Raises:
        Refused: They are something else, empty, or too many.
    """
    texts = [value] if isinstance(value, str) else optional_sequence(value, "stop")
    if len(texts) > most or not all(isinstance(each, str) and each for each in texts):
        refuse("stop", f"a text or up to {most} texts, none of them empty", value)
    return tuple(texts)


def write(asked: Asked, answer: Answer) -> bytes:
    """Write an answer: the JSON of one completion, or the events of its chunks."""
    seen = told(answer, asked.request.stop)
    usage = usage_of(answer)
    frame: dict[str, Any] = {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion.chunk" if asked.stream else "chat.completion",
        "created": int(time.time()),
        "model": asked.model,
    }
    old = asked.details["old"]
    finish = "function_call" if old and seen.finish == "tool_calls" else seen.finish
    if asked.stream:
        chunks = _chunks(seen, finish, old)
        return _events(frame, chunks, usage if asked.details["usage"] else None)
    message: dict[str, Any] = {"role": "assistant", "content": _content(seen), "refusal": None}
    if seen.reasoning:
        message["reasoning_content"] = seen.reasoning
    message |= _calls(seen.calls, old)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return dumped({**frame, "choices": [choice], "usage": usage})


def usage_of(answer: Answer) -> dict[str, int]:
    """The tokens of an answer."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def _events(
    frame: Mapping[str, Any], choices: Iterator[Mapping[str, Any]], usage: Any | None
) -> bytes:
    parts = [event({**frame, "choices": [choice]}) for choice in choices]
    if usage is not None:
        parts.append(event({**frame, "choices": [], "usage": usage}))
    return b"".join([*parts, b"data: [DONE]\n\n"])


def _chunks(seen: Told, finish: str, old: bool) -> Iterator[Mapping[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if seen.reasoning:
        deltas.append({"reasoning_content": seen.reasoning})
    if seen.content:
        deltas.append({"content": seen.content})
    if old:
        deltas += [_calls(seen.calls, old)] if seen.calls else []
    else:
        deltas += [
            {"tool_calls": [{"index": index, **_call(call)}]}
            for index, call in enumerate(seen.calls)
        ]
    for delta in deltas:
        yield {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    yield {"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish}


def _content(seen: Told) -> str | None:
    return seen.content if seen.content or not seen.calls else None


def _calls(calls: Sequence[ToolCall], old: bool) -> dict[str, Any]:
    """The calls of a message; programs that offer `functions` know one call a message."""
    if not calls:
        return {}
    written = [_call(call) for call in calls]
    return {"function_call": written[0]["function"]} if old else {"tool_calls": written}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": written_arguments(call)}
    return {"id": call.id, "type": "function", "function": function}


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that a request offers, by `tools` or by `functions`, which came before it."""
    tools = functions(body["tools"]) if body.get("tools") is not None else []
    for index, function in enumerate(optional_sequence(body.get("functions"), "functions")):
        tools.append(schema(function, f"functions[{index}]"))
    check_names(tools, "tools" if body.get("tools") else "functions")
    tools = offered(tools, body.get("tool_choice"), "tool_choice")
    return offered(tools, body.get("function_call"), "function_call")


def _functions_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [
        *(tool["function"] for tool in body.get("tools") or ()),
        *(body.get("functions") or ()),
    ]


CHAT = Dialect("chat completions", PARAMETERS, read, write, openai_error)
