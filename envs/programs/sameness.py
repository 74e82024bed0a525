"""When two messages are the same: how programs change harmlessly what they were told.

What a program sends back of an answer is seldom what it was sent, byte by byte. These rules say
what is no change of substance. Each is counted in the metrics of an episode by its name; none
changes what was sampled, which stays in its context.

    arguments   of a call: their order, white space, an object in place of its text
    content     null, "" or none; text parts; white space around what an assistant said
    fields      of an assistant's message: others than those below, or empty ones
    ids         of calls, if those of their results change with them
    reasoning   of an assistant: left out

Which context a request extends is decided in `conversations.py`.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from gymnast.types import Message

RULES = ("arguments", "content", "fields", "ids", "reasoning")
_ASSISTANT = ("role", "content", "reasoning_content", "tool_calls")
_EMPTY: tuple[Any, ...] = (None, "", [], {})


def fingerprint(message: Mapping[str, Any], call_ids: Sequence[str] = ()) -> bytes:
    """A digest that messages share which are the same but for what the rules allow.

    An assistant's reasoning is no part of it: `changes` compares that.

    Args:
        message: In OpenAI's shape.
        call_ids: The ids of the calls of the assistant's message before it, by which the results of
            calls are told apart.
    """
    role = message.get("role")
    parts: Any
    if role == "assistant":
        calls = [
            (_function(call).get("name"), canonical(_arguments(call)))
            for call in message.get("tool_calls") or ()
        ]
        parts = [role, _text(message.get("content")).strip(), calls]
    else:
        others = {
            key: value
            for key, value in message.items()
            if key not in ("role", "content", "tool_call_id") and value not in _EMPTY
        }
        parts = [role, _text(message.get("content")), _named(message, call_ids), others]
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=repr)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def changes(kept: Mapping[str, Any], sent: Mapping[str, Any]) -> frozenset[str] | None:
    """The rules by which two messages of one fingerprint are the same.

    Args:
        kept: As it stands in the context.
        sent: As a program sends it.

    Returns:
        Names of `RULES`; or None if they are not the same: their thoughts differ.
    """
    found = set()
    if sent.get("content") != kept.get("content"):
        found.add("content")
    if kept.get("role") == "assistant":
        thought, given = kept.get("reasoning_content") or "", sent.get("reasoning_content") or ""
        if given.strip() != thought.strip():
            if given:
                return None
            found.add("reasoning")
        calls, others = sent.get("tool_calls") or (), kept.get("tool_calls") or ()
        for call, other in zip(calls, others, strict=True):
            if _written(call) != _written(other):
                found.add("arguments")
        if ids_of(sent) != ids_of(kept):
            found.add("ids")
        if any(key not in _ASSISTANT for key in sent.keys() - kept.keys()):
            found.add("fields")
    elif sent.get("tool_call_id") != kept.get("tool_call_id"):
        found.add("ids")
    return frozenset(found)


def ids_of(message: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of an assistant's calls, in order; "" for one without."""
    return tuple(str(call.get("id") or "") for call in message.get("tool_calls") or ())


def with_ids(message: Message, ids: Mapping[str, str]) -> Message:
    """A result of a call, named by the id that the call has in its context.

    Args:
        message: A message; any other than a result of a call with a known id stays as it is.
        ids: Of calls, as the program names them, and as they are.
    """
    named = ids.get(message.get("tool_call_id") or "")
    return message if named is None else {**message, "tool_call_id": named}


def canonical(arguments: Any) -> str:
    """The text that arguments of equal value share, given as an object or as the text of one."""
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return arguments
    return json.dumps(_plain_numbers(value), sort_keys=True, ensure_ascii=False, default=repr)


def _plain_numbers(value: Any) -> Any:
    """A JSON value in which 1.0 is 1, as JSON knows one kind of number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _plain_numbers(each) for key, each in value.items()}
    return [_plain_numbers(each) for each in value] if isinstance(value, list | tuple) else value


def _named(message: Mapping[str, Any], call_ids: Sequence[str]) -> Any:
    """What a result names its call by: the place of the call, where its id is known."""
    given = message.get("tool_call_id") or ""
    return call_ids.index(given) if given and given in call_ids else given


def _text(content: Any) -> str:
    """The text of a content, which may be a string, a list of parts, or None."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = call.get("function") or {}
    return function


def _arguments(call: Mapping[str, Any]) -> Any:
    return _function(call).get("arguments") or {}


def _written(call: Mapping[str, Any]) -> str:
    """The arguments of a call as they are written, or as they would be."""
    arguments = _function(call).get("arguments")
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
