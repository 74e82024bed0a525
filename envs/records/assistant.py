"""Assistant messages, written in short: `call("price", fruit="plum")`, a text, or several of these.

This is what an author writes in `solve` (`environment/hooks.py`); `messages.py` reads what policies
and datasets write.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gymnast.envs.records.messages import text_of
from gymnast.types import Message, ToolCall


def call(name: str, /, **arguments: Any) -> Message:
    """An assistant message that calls one tool.

        call("price", fruit="plum")

    Several calls in one message are a list, in which a string is the message's text:

        ["Both prices, please.", call("price", fruit="plum"), call("price", fruit="fig")]

    Args:
        name: The tool's name.
        **arguments: Its arguments by name, as JSON can hold them.
    """
    function = {"name": name, "arguments": arguments}
    called: list[Any] = [{"type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": called}


def assistant_message(said: Any) -> Message:
    """One assistant message, of any of the forms in which it may be said.

    Args:
        said: A text; a message, whose role may be left out; a `ToolCall`; or a list of these, which
            is one message with all their calls and text.

    Raises:
        ValueError: It is none of these; the error completes "it must be ...".
    """
    if isinstance(said, str):
        return {"role": "assistant", "content": said}
    if isinstance(said, ToolCall):
        return {"role": "assistant", "content": "", "tool_calls": [said]}
    if isinstance(said, Mapping) and said.get("role", "assistant") == "assistant":
        return {**said, "role": "assistant"}  # type: ignore[typeddict-item]
    if isinstance(said, list | tuple) and said:
        return _joined([assistant_message(part) for part in said])
    raise ValueError(
        'an assistant message: a text, call("tool", argument=...), a dict with "content" and '
        '"tool_calls", or a list of these'
    )


def with_call_ids(message: Message, ids: Iterator[str]) -> Message:
    """The same message, whose calls all have ids.

    Args:
        message: An assistant message.
        ids: What calls without an id get, in turn.
    """
    if not message.get("tool_calls"):
        return message
    written: Any = message["tool_calls"]
    calls = written if isinstance(written, list | tuple) else [written]
    return {**message, "tool_calls": [_with_id(call, ids) for call in calls]}


def _with_id(call: Any, ids: Iterator[str]) -> Any:
    if isinstance(call, ToolCall):
        return call if call.id else replace(call, id=next(ids))
    if isinstance(call, Mapping) and not call.get("id"):
        return {**call, "id": next(ids)}
    return call


def _joined(parts: list[Message]) -> Message:
    """Several messages as one; a key that several have is the last one's."""
    joined: Message = {"role": "assistant"}
    for part in parts:
        joined |= part
    joined["content"] = "\n".join(filter(None, map(text_of, parts)))
    if calls := [call for part in parts for call in part.get("tool_calls") or []]:
        joined["tool_calls"] = calls
    return joined
