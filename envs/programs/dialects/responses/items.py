"""The input of OpenAI's responses, a list of items, read into messages.

What the assistant said in one turn is several items there: a thought, a text, calls. They become
one message, which ends where an item of somebody else follows, or a thought or a text follows what
comes after it in a message.
"""

from collections.abc import Mapping
from typing import Any

from gymnast.envs.programs.dialects.chat_messages import content_text
from gymnast.envs.programs.dialects.requests import Refused
from gymnast.envs.programs.dialects.values import (
    mapping,
    name,
    optional_sequence,
    refuse,
    sequence,
    shown,
    text,
)
from gymnast.types import Message

_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
_TEXTS = ("input_text", "output_text", "text", "refusal")


def read_input(instructions: str, value: Any) -> list[Message]:
    """Read the instructions and the input of a request.

    Raises:
        Refused: They are no texts, calls, results and thoughts.
    """
    messages: list[Message] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(value, str):
        return [*messages, {"role": "user", "content": value}]
    given = sequence(value, "input") if value is not None else ()
    if not given:
        refuse("input", "a string or a list of at least one item", value)
    for index, item in enumerate(given):
        here = f"input[{index}]"
        kind = mapping(item, here).get("type")
        if kind is None and "role" in item:
            kind = "message"
        match kind:
            case "message":
                _add_message(messages, item, here)
            case "reasoning":
                _add_reasoning(messages, item, here)
            case "function_call":
                _add_call(messages, item, here)
            case "function_call_output":
                messages.append(_result(item, here))
            case _:
                raise Refused(
                    f"{here}: items of the type {shown(kind)} are not known; there are message, "
                    "reasoning, function_call and function_call_output.",
                    param=here,
                )
    return messages


def _add_message(messages: list[Message], item: Mapping[str, Any], param: str) -> None:
    said = item.get("role")
    role = _ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        refuse(f"{param}.role", "one of " + ", ".join(_ROLES), said)
    content = content_text(item.get("content"), f"{param}.content", _TEXTS)
    last = messages[-1] if messages else None
    if role == "assistant" and last is not None and _is_thought(last):
        last["content"] = content
        return
    messages.append({"role": role, "content": content})


def _add_reasoning(messages: list[Message], item: Mapping[str, Any], param: str) -> None:
    """Begin a message with a thought, if there is one to read."""
    parts = []
    for key in ("content", "summary"):
        for index, part in enumerate(optional_sequence(item.get(key), f"{param}.{key}")):
            here = f"{param}.{key}[{index}]"
            parts.append(text(mapping(part, here).get("text"), f"{here}.text"))
        if parts:
            break
    if parts:
        thought = "".join(parts)
        messages.append({"role": "assistant", "content": "", "reasoning_content": thought})


def _add_call(messages: list[Message], item: Mapping[str, Any], param: str) -> None:
    function = {
        "name": name(item.get("name"), f"{param}.name"),
        "arguments": text(item.get("arguments"), f"{param}.arguments"),
    }
    call_id = name(item.get("call_id"), f"{param}.call_id")
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    call = {"id": call_id, "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _result(item: Mapping[str, Any], param: str) -> Message:
    return {
        "role": "tool",
        "tool_call_id": name(item.get("call_id"), f"{param}.call_id"),
        "content": content_text(item.get("output"), f"{param}.output", _TEXTS),
    }


def _is_thought(message: Message) -> bool:
    """Whether a message is a thought so far, without a text or calls."""
    return "reasoning_content" in message and not message["content"] and "tool_calls" not in message
