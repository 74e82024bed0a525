"""Messages in OpenAI's shape, brought into one form.

Rows, hooks, policies and users write messages with small variations: calls as `ToolCall`s or
dicts, arguments as objects or as strings of JSON, text in parts, empty keys. `parse_tool_calls`
returns the calls to run, `in_openai_shape` what a chat template gets, `read_messages` and
`json_message` what is recorded.
"""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gymnast.envs.records.arguments import BadArguments, decode_arguments
from gymnast.errors import DataError
from gymnast.types import Message, ToolCall

_DEEPEST = 100  # levels of lists and objects


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, whose content may be a string, a list of parts, or None."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def parse_tool_calls(message: Mapping[str, Any], *, turn: int) -> list[ToolCall]:
    """The calls of an assistant message, given as `ToolCall` or in OpenAI's shape.

    Args:
        message: The policy's message.
        turn: The turn's index, which is part of the ids that calls without one get.
    """
    written = message.get("tool_calls") or []
    calls = written if isinstance(written, list | tuple) else [written]
    read = [_read_call(call, f"call_{turn}_{i}") for i, call in enumerate(calls)]
    # Id, name and error are repeated in the answer, which a tokenizer must be able to encode.
    return [
        replace(call, **encodable({"id": call.id, "name": call.name, "error": call.error}))
        for call in read
    ]


def _read_call(call: Any, default_id: str) -> ToolCall:
    if isinstance(call, ToolCall):
        return call if call.id else replace(call, id=default_id)
    inner = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(inner, Mapping):
        return _unreadable(default_id, "", "it is not an object with a name and arguments")
    call_id = str(call.get("id") or default_id)
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        return _unreadable(call_id, "", "it names no tool")
    try:
        return ToolCall(call_id, name, decode_arguments(inner.get("arguments")))
    except BadArguments as error:
        return _unreadable(call_id, name, str(error))


def _unreadable(call_id: str, name: str, why: str) -> ToolCall:
    return ToolCall(call_id, name, {}, f"the call could not be read: {why}")


def in_openai_shape(message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a message without empty keys, with OpenAI's call objects and joined text parts."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(
            f"a message must be a mapping with a role, got {message!r:.200}; "
            "write {'role': 'user', 'content': '...'}"
        )
    shaped = {key: value for key, value in message.items() if value is not None}
    if "content" in shaped:
        shaped["content"] = _joined_text(shaped["content"])
    if "tool_calls" in shaped:
        shaped["tool_calls"] = [_call_in_shape(call) for call in shaped["tool_calls"]]
        if not shaped["tool_calls"]:
            del shaped["tool_calls"]
    if "tool_calls" not in shaped:
        shaped.setdefault("content", "")
    return shaped


def _joined_text(content: Any) -> Any:
    """Content whose parts are all text as one string, as most templates need it."""
    if not isinstance(content, list | tuple):
        return content
    if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def _call_in_shape(call: Any) -> dict[str, Any]:
    if isinstance(call, ToolCall):
        return call.to_dict()
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(
            f"a message's tool call must have a name, got {call!r:.200}; "
            "write {'function': {'name': '...', 'arguments': {...}}}"
        )
    arguments: Any = function.get("arguments") or {}
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    shaped = ToolCall(call.get("id") or "", function["name"], arguments).to_dict()
    return shaped if shaped["id"] else {key: shaped[key] for key in ("type", "function")}


def read_messages(value: Any) -> list[Message]:
    """JSON-serialisable copies of the messages that an episode begins with.

    Raises:
        ValueError: The value is not a list of messages; the error completes "it must be ...".
        DataError: A message's content is not text; the error names the message and the part.
    """
    listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if not listed or not all(
        isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in value
    ):
        raise ValueError("a list of messages, each with 'role' and 'content'")
    for number, message in enumerate(value):
        _check_content(message.get("content"), f"message {number} ({message['role']})")
    try:
        read: list[Message] = [
            {key: encodable(_plain(item)) for key, item in message.items()}  # type: ignore[misc]
            for message in without_filled_nulls(value)
        ]
    except (TypeError, ValueError) as error:
        raise ValueError(f"a list of messages that JSON can express ({error})") from error
    return read


def without_filled_nulls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages without the nulls that a table has put into the arguments of calls.

    A table (Arrow, Parquet, `datasets`) has one type for all arguments of a column, and gives each
    call the names that others use, with null. Messages out of a table are known by their keys:
    those of users and tools have `tool_calls` too, and all arguments have the same names. In any
    other messages, and in arguments that are strings of JSON, nulls were written by somebody.
    """
    plain = list(messages)
    filled = any(m.get("role") != "assistant" and not m.get("tool_calls", True) for m in plain)
    listed = [message.get("tool_calls") for message in plain]
    calls = [call for each in listed if isinstance(each, list | tuple) for call in each]
    names = {frozenset(given) for given in map(_arguments_of, calls) if given is not None}
    if not filled or len(names) != 1:
        return plain
    return [
        {**message, "tool_calls": [_without_nulls_in_call(call) for call in own]}
        if isinstance(own, list | tuple) and own
        else message
        for message, own in zip(plain, listed, strict=True)
    ]


def _arguments_of(call: Any) -> Mapping[str, Any] | None:
    """Return the arguments of a call, if they are an object."""
    function = (call.get("function") or call) if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    return arguments if isinstance(arguments, Mapping) else None


def _without_nulls_in_call(call: Any) -> Any:
    arguments = _arguments_of(call)
    if arguments is None:
        return call
    cleaned = {"arguments": _without_nulls(arguments)}
    if not call.get("function"):
        return {**call, **cleaned}
    return {**call, "function": {**call["function"], **cleaned}}


def _without_nulls(value: Any) -> Any:
    """Return a value without the keys of its objects that are null; items of lists may be null."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


def _check_content(content: Any, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    rule = "A message holds text alone: a string, or parts {'type': 'text', 'text': '...'}."
    if not isinstance(content, list | tuple):
        raise DataError(f"the content of {where} is {content!r:.100}. {rule}")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            what = f"of type {kind!r}" if kind not in (None, "text") else f"{part!r:.100}"
            raise DataError(f"part {number} in the content of {where} is {what}. {rule}")


def _plain(value: Any) -> Any:
    """The same value, with `ToolCall`s as dicts: those of a worked turn may be either."""
    if not isinstance(value, list | tuple):
        return value
    return [item.to_dict() if isinstance(item, ToolCall) else item for item in value]


def json_message(message: Mapping[str, Any], calls: Sequence[ToolCall]) -> Message:
    """An assistant message as it is recorded: in OpenAI's shape and JSON-serialisable.

    Args:
        message: The policy's message.
        calls: Its calls, as `parse_tool_calls` returned them.

    Returns:
        The message with its calls as dicts. A call that could not be read keeps what was written
        and has the reason in `error`.
    """
    written = message.get("tool_calls")
    plain: dict[str, Any] = {
        str(key): encodable(value) for key, value in message.items() if key != "tool_calls"
    }
    plain.setdefault("role", "assistant")
    if calls:
        written = written if isinstance(written, list | tuple) else [written]
        pairs = zip(calls, written, strict=True)
        plain["tool_calls"] = [_json_call(call, original) for call, original in pairs]
    return plain  # type: ignore[return-value]


def _json_call(call: ToolCall, original: Any) -> dict[str, Any]:
    arguments = encodable(call.arguments)
    plain: dict[str, Any] = encodable(replace(call, arguments={}).to_dict())
    plain["function"]["arguments"] = arguments
    if call.error is None:
        return plain
    if isinstance(original, Mapping) and isinstance(original.get("function"), Mapping):
        plain["function"]["arguments"] = encodable(original["function"].get("arguments"))
    return {**plain, "error": call.error}


def conversation(messages: Sequence[Message]) -> str:
    """Messages as text for people: role, text and calls, one call a line."""
    blocks = []
    for message in messages:
        calls = [_call_text(call) for call in message.get("tool_calls") or []]
        raw = message.get("raw")
        lines = [str(raw)] if raw else [text_of(message), *calls]
        name = f" {message['name']}" if message.get("name") else ""
        blocks.append("\n".join([f"[{message['role']}{name}]", *filter(None, lines)]))
    return "\n".join(blocks)


def _call_text(call: Any) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):
        pairs = (f"{key}={json.dumps(arguments[key], ensure_ascii=False)}" for key in arguments)
        arguments = ", ".join(pairs)
    return f"-> {function.get('name')}({arguments or ''})"


def encodable(value: Any) -> Any:
    """A JSON value without lone surrogates, which JSON can hold but no tokenizer or file can.

    A value that is nested too deeply becomes a note, so that it can be written to JSON from any
    depth of the stack; and so does one with an int of more digits than Python writes.
    """
    if _is_deeper(value, _DEEPEST):
        return "(nested too deeply to record)"
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return clean if isinstance(value, str) else json.loads(clean)
    except ValueError:  # of more than 4,300 digits
        return "(a number too long to record)"
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether the lists and objects of a JSON value are nested more deeply."""
    inner = [value]
    for _ in range(levels + 1):
        parts = (part for outer in inner for part in _parts(outer))
        inner = list({id(part): part for part in parts if _parts(part)}.values())
        if not inner:
            return False
    return True


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
