"""The messages of a chat completion, read into Gymnast's shape."""

from collections.abc import Mapping
from typing import Any

from gymnast.envs.programs.dialects.requests import Refused
from gymnast.envs.programs.dialects.values import (
    mapping,
    name,
    optional_sequence,
    optional_text,
    refuse,
    sequence,
    shown,
    text,
)
from gymnast.types import Message

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXTS = ("text", "refusal")


def read_messages(value: Any) -> list[Message]:
    """Read the messages of a request.

    Raises:
        Refused: They are no list of messages whose contents are texts.
    """
    messages = [
        _message(each, f"messages[{index}]")
        for index, each in enumerate(sequence(value, "messages"))
    ]
    return messages or refuse("messages", "a list of at least one message", value)


def content_text(value: Any, param: str, kinds: tuple[str, ...] = _TEXTS) -> str:
    """The text of a content: a string, or a list of parts, which are joined.

    Args:
        value: The content.
        param: Where it stands.
        kinds: The types of parts that are texts.

    Raises:
        Refused: It is something else, or has parts that are no texts.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        refuse(param, "a string or a list of text parts", value)
    texts = []
    for index, part in enumerate(value):
        here = f"{param}[{index}]"
        kind = mapping(part, here).get("type")
        if kind not in kinds:
            raise Refused(
                f"{here}: the model reads texts alone, and this is a part of the type "
                f"{shown(kind)}. Leave it out, or put it into words.",
                param=here,
            )
        key = "refusal" if kind == "refusal" else "text"
        texts.append(text(part.get(key), f"{here}.{key}"))
    return "".join(texts)


def _message(value: Any, param: str) -> Message:
    given = mapping(value, param)
    said = given.get("role")
    role = _ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        refuse(f"{param}.role", "one of " + ", ".join(_ROLES), said)
    content = given.get("content")
    if content is None and role == "assistant":
        content = ""
    message: Message = {"role": role, "content": content_text(content, f"{param}.content")}
    if role == "assistant":
        _add_assistant_parts(message, given, param)
    elif said == "tool":
        message["tool_call_id"] = text(given.get("tool_call_id"), f"{param}.tool_call_id")
    if called := optional_text(given.get("name"), f"{param}.name"):
        message["name"] = called
    return message


def _add_assistant_parts(message: Message, given: Mapping[str, Any], param: str) -> None:
    """Add what only assistant messages have: a thought, calls, a refusal."""
    for key in ("reasoning_content", "reasoning"):
        if thought := optional_text(given.get(key), f"{param}.{key}"):
            message["reasoning_content"] = thought
            break
    message["content"] += optional_text(given.get("refusal"), f"{param}.refusal")
    if given.get("audio") is not None:
        raise Refused(f"{param}.audio: the model reads texts alone.", param=f"{param}.audio")
    calls = [
        _call(call, f"{param}.tool_calls[{index}]")
        for index, call in enumerate(
            optional_sequence(given.get("tool_calls"), f"{param}.tool_calls")
        )
    ]
    if given.get("function_call") is not None:
        function = _function(given["function_call"], f"{param}.function_call")
        calls.append({"id": "", "type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls


def _call(value: Any, param: str) -> dict[str, Any]:
    given = mapping(value, param)
    if given.get("type", "function") != "function":
        refuse(f"{param}.type", '"function"', given["type"])
    return {
        "id": text(given.get("id"), f"{param}.id"),
        "type": "function",
        "function": _function(given.get("function"), f"{param}.function"),
    }


def _function(value: Any, param: str) -> dict[str, Any]:
    given = mapping(value, param)
    return {
        "name": name(given.get("name"), f"{param}.name"),
        "arguments": text(given.get("arguments"), f"{param}.arguments"),
    }
