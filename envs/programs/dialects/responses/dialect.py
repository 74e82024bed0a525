"""OpenAI's responses: POST /v1/responses. What is written of an answer is in `events.py`."""

import time
from collections.abc import Mapping
from typing import Any

from gymnast.envs.programs.dialects.chat import NO_LOGPROBS
from gymnast.envs.programs.dialects.dialect import Asked, Dialect, Parameters, dumped, new_id
from gymnast.envs.programs.dialects.errors import openai_error
from gymnast.envs.programs.dialects.requests import Answer, Refused, Request
from gymnast.envs.programs.dialects.responses.events import output_items, written_events
from gymnast.envs.programs.dialects.responses.items import read_input
from gymnast.envs.programs.dialects.telling import told
from gymnast.envs.programs.dialects.tools import check_names, check_parallel, offered, schema
from gymnast.envs.programs.dialects.values import (
    flag,
    mapping,
    optional_count,
    optional_mapping,
    optional_sequence,
    optional_text,
    shown,
)

_WHOLE = "the server keeps no conversations; send the whole of it as `input`"

PARAMETERS = Parameters(
    used=(
        "input", "instructions", "model", "tools", "tool_choice", "parallel_tool_calls", "text",
        "include", "max_output_tokens", "stream",
    ),
    unused=(
        "temperature", "top_p", "user", "metadata", "store", "reasoning", "service_tier",
        "truncation", "max_tool_calls", "safety_identifier", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "stream_options", "seed",
    ),
    only={
        "previous_response_id": ((), _WHOLE),
        "conversation": ((), _WHOLE),
        "context_management": (([],), "the server does not change a conversation"),
        "prompt": ((), "the server has no prompts of its own"),
        "background": ((False,), "a request is answered while its client waits"),
        "top_logprobs": ((0,), NO_LOGPROBS),
    },
)  # fmt: skip


def read(body: Mapping[str, Any]) -> Asked:
    """Read the body of a request.

    Raises:
        Refused: It is no request, or asks for what cannot be given.
    """
    unused = PARAMETERS.read(body)
    _check_text(body)
    for index, each in enumerate(optional_sequence(body.get("include"), "include")):
        if each == "message.output_text.logprobs":
            raise Refused(f"include: {NO_LOGPROBS}.", param=f"include[{index}]")
    tools = _tools(body)
    check_parallel(body.get("parallel_tool_calls"), tools, "parallel_tool_calls")
    if body.get("include"):
        unused = (*unused, "include")
    if any(tool.get("strict") for tool in body.get("tools") or ()):
        unused = (*unused, "strict")
    instructions = optional_text(body.get("instructions"), "instructions")
    request = Request(
        messages=read_input(instructions, body.get("input")),
        tools=tools,
        max_tokens=optional_count(body.get("max_output_tokens"), "max_output_tokens"),
        unused=unused,
    )
    return Asked(
        request,
        optional_text(body.get("model"), "model") or "policy",
        flag(body.get("stream"), "stream"),
        {name: body.get(name) for name in ("instructions", "tools", "max_output_tokens")},
    )


def write(asked: Asked, answer: Answer) -> bytes:
    """Write an answer: the JSON of one response, or its events."""
    seen = told(answer)
    cut = seen.finish == "length"
    response: dict[str, Any] = {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": asked.details["instructions"],
        "max_output_tokens": asked.details["max_output_tokens"],
        "metadata": {},
        "model": asked.model,
        "output": output_items(seen),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": asked.details["tools"] or [],
        "truncation": "disabled",
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        },
    }
    return written_events(response) if asked.stream else dumped(response)


def _check_text(body: Mapping[str, Any]) -> None:
    written = optional_mapping(body.get("text"), "text")
    form = optional_mapping(written.get("format"), "text.format")
    if form.get("type", "text") != "text":
        raise Refused(
            "text.format: a format cannot be forced without changing the distribution that is "
            f"sampled from; ask for it in the input; got {shown(form.get('type'))}.",
            param="text.format",
        )


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = []
    for index, tool in enumerate(optional_sequence(body.get("tools"), "tools")):
        here = f"tools[{index}]"
        kind = mapping(tool, here).get("type")
        if kind != "function":
            raise Refused(
                f'{here}.type must be "function", got {shown(kind)}: other tools are run by the '
                "server, which has none, or need a grammar.",
                param=f"{here}.type",
            )
        tools.append(schema(tool, here))
    check_names(tools, "tools")
    return offered(tools, body.get("tool_choice"), "tool_choice")


RESPONSES = Dialect("responses", PARAMETERS, read, write, openai_error)
