"""A user's own parser: a function that reads a completion's calls instead of a dialect."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnast.envs.rendering.calls.payloads import Malformed, read_arguments
from gymnast.errors import UserCodeError
from gymnast.lookup import Names
from gymnast.types import ToolCall

Parser = Callable[[str], Any]
PARSERS: Names[Parser] = Names("parser", "gymnast.parsers")


def load_parser(parser: Parser | str) -> Parser:
    """Return the parser of a name; a function is returned as it is.

    Raises:
        ConfigError: There is none of this name.
        UserCodeError: Importing its module raised.
    """
    return PARSERS.find(parser, "parser")


def run_parser(parser: Parser, text: str) -> tuple[str, list[ToolCall]]:
    """Read a completion with a user's parser.

    Args:
        parser: Gets the completion's text, added tokens included, without its stop token; returns a
            list of calls, or a message: a mapping with `content` and `tool_calls`. A call is a
            `ToolCall`, an OpenAI call, or a mapping with `name`, `arguments` and perhaps `id`; the
            arguments are a mapping or a JSON string. A `ValueError` says that the text holds a call
            that cannot be read.
        text: The completion.

    Returns:
        The content (the whole text, where the parser returns none) and the calls.

    Raises:
        UserCodeError: If the parser raises or returns anything else.
    """
    try:
        parsed = parser(text)
    except ValueError as error:
        return text, [ToolCall("", "", {}, f"the call could not be read: {error}")]
    except Exception as error:
        raise UserCodeError("parser", None, f"the parser raised {error!r} on {text!r}") from error
    content, calls = text, parsed
    if isinstance(parsed, Mapping):
        content, calls = parsed.get("content", text), parsed.get("tool_calls")
    calls = calls or []
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise UserCodeError(
            "parser", None, f"the parser returned {parsed!r}; return a list of calls"
        )
    return content or "", [_as_call(call) for call in calls]


def _as_call(call: Any) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "name" not in function:
        raise UserCodeError(
            "parser",
            None,
            f"the parser returned the call {call!r}; it needs 'name' and 'arguments'",
        )
    name, call_id = str(function["name"]), str(call.get("id") or "")
    try:
        return ToolCall(call_id, name, read_arguments(function.get("arguments"), 0, name))
    except Malformed as error:
        return ToolCall(call_id, name, {}, f"the call could not be read: {error}")
