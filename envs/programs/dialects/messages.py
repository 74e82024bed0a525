"""Anthropic's messages: POST /v1/messages."""

from collections.abc import Iterator, Mapping
from typing import Any

from gymnast.envs.programs.dialects.dialect import (
    Asked,
    Dialect,
    Parameters,
    dumped,
    event,
    new_id,
)
from gymnast.envs.programs.dialects.errors import anthropic_error
from gymnast.envs.programs.dialects.message_blocks import read_messages
from gymnast.envs.programs.dialects.requests import Answer, Refused, Request
from gymnast.envs.programs.dialects.telling import Told, told, written_arguments
from gymnast.envs.programs.dialects.tools import FORCED, ONE_BY_ONE, check_names, schema
from gymnast.envs.programs.dialects.values import (
    flag,
    mapping,
    optional_count,
    optional_mapping,
    optional_sequence,
    optional_text,
    refuse,
    shown,
)

_FORMAT = (
    "a format cannot be forced without changing the distribution that is sampled from; ask for it "
    "in the messages"
)
_OWN_TOOLS = "the server has no tools of its own"

PARAMETERS = Parameters(
    used=(
        "messages", "model", "system", "tools", "tool_choice", "max_tokens", "stop_sequences",
        "stream", "output_config",
    ),
    unused=(
        "temperature", "top_p", "top_k", "metadata", "service_tier", "thinking", "cache_control",
        "inference_geo", "speed", "diagnostics", "betas",
    ),
    only={
        "output_format": ((), _FORMAT),
        "mcp_servers": (([],), _OWN_TOOLS),
        "container": ((), _OWN_TOOLS),
        "context_management": ((), "the server does not change a conversation"),
    },
)  # fmt: skip

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def read(body: Mapping[str, Any]) -> Asked:
    """Read the body of a request.

    Raises:
        Refused: It is no request, or asks for what cannot be given.
    """
    unused = PARAMETERS.read(body)
    config = optional_mapping(body.get("output_config"), "output_config")
    if config.get("format") is not None:
        raise Refused(f"output_config.format: {_FORMAT}.", param="output_config.format")
    stop = optional_sequence(body.get("stop_sequences"), "stop_sequences")
    if not all(isinstance(each, str) and each for each in stop):
        refuse("stop_sequences", "a list of texts, none of them empty", stop)
    request = Request(
        messages=read_messages(body.get("system"), body.get("messages")),
        tools=_tools(body),
        max_tokens=optional_count(body.get("max_tokens"), "max_tokens"),
        stop=tuple(stop),
        unused=(*unused, "output_config") if config else unused,
    )
    return Asked(
        request,
        optional_text(body.get("model"), "model") or "policy",
        flag(body.get("stream"), "stream"),
    )


def write(asked: Asked, answer: Answer) -> bytes:
    """Write an answer: the JSON of one message, or the events of its blocks."""
    seen = told(answer, asked.request.stop)
    reason = "stop_sequence" if seen.stopped_by is not None else _STOP_REASONS[seen.finish]
    end = {"stop_reason": reason, "stop_sequence": seen.stopped_by}
    message: dict[str, Any] = {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": _blocks(seen),
        **end,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "output_tokens": answer.completion_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }
    if not asked.stream:
        return dumped(message)
    return b"".join(event(data, data["type"]) for data in _events(message, seen, end))


def _events(message: Mapping[str, Any], seen: Told, end: Any) -> Iterator[dict[str, Any]]:
    usage = message["usage"]
    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    begun = {**message, **empty, "usage": {**usage, "output_tokens": 0}}
    yield {"type": "message_start", "message": begun}
    arguments = (written_arguments(call) for call in seen.calls)
    for index, block in enumerate(message["content"]):
        match block["type"]:
            case "thinking":
                start: Any = {"thinking": ""}
                delta = {"type": "thinking_delta", "thinking": block["thinking"]}
            case "text":
                start = {"text": ""}
                delta = {"type": "text_delta", "text": block["text"]}
            case _:
                start = {"input": {}}
                delta = {"type": "input_json_delta", "partial_json": next(arguments)}
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **start}}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    written = {"output_tokens": usage["output_tokens"]}
    yield {"type": "message_delta", "delta": end, "usage": written}
    yield {"type": "message_stop"}


def _blocks(seen: Told) -> list[dict[str, Any]]:
    """The blocks of a message: at least one, since programs read the first."""
    blocks: list[dict[str, Any]] = []
    if seen.reasoning:
        blocks.append({"type": "thinking", "thinking": seen.reasoning, "signature": ""})
    if seen.content or not seen.calls:
        blocks.append({"type": "text", "text": seen.content})
    for call in seen.calls:
        blocks.append(
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        )
    return blocks


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = []
    for index, tool in enumerate(optional_sequence(body.get("tools"), "tools")):
        here = f"tools[{index}]"
        if (kind := mapping(tool, here).get("type")) not in (None, "custom"):
            raise Refused(f"{here}.type: {_OWN_TOOLS}; got {shown(kind)}.", param=f"{here}.type")
        tools.append(schema(tool, here, parameters="input_schema"))
    check_names(tools, "tools")
    choice = optional_mapping(body.get("tool_choice"), "tool_choice")
    kind = choice.get("type", "auto")
    if kind == "none":
        return []
    if kind != "auto":
        raise Refused(f"tool_choice: {FORCED}; got {shown(kind)}.", param="tool_choice")
    one = "tool_choice.disable_parallel_tool_use"
    if flag(choice.get("disable_parallel_tool_use"), one) and tools:
        raise Refused(f"{one}: {ONE_BY_ONE}.", param=one)
    return tools


MESSAGES = Dialect("messages", PARAMETERS, read, write, anthropic_error)
