"""What a chat template leaves out of a prompt: tools, what is said of them, messages, thoughts.

Templates write schemas in many forms: JSON with escapes, declarations of functions, tables. So only
letters and digits are compared, after escapes are undone.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gymnast.trainers.reporting.message_lines import text_of

_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
_ESCAPES = re.compile(r"\\[nrt]")
_NO_WORD = re.compile(r"[\W_]+")
_SENTENCE = 3  # words: what is shorter may be a name


def lost_of_tools(text: str, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a text does not say of the tools that are offered, in words.

    Args:
        text: Where a template says which tools there are.
        tools: Their schemas, in OpenAI's shape.
    """
    found, without = _letters(text), _without_descriptions(text, tools)
    return [part for tool in tools for part in _lost_of_tool(tool, text, found, without)]


def lost_of_messages(text: str, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a prompt does not say of the messages that it is made of, in words.

    Args:
        text: The prompt's.
        messages: In OpenAI's shape.
    """
    found, lost = _letters(text), []
    for number, message in enumerate(messages, start=1):
        of = f"message {number} ({message['role']})"
        if _letters(text_of(message.get("content"))) not in found:
            lost.append(f"the text of {of}")
        if _letters(text_of(message.get("reasoning_content"))) not in found:
            lost.append(f"the thoughts of {of}")
        calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
        if any(not _names(text, str(call.get("name"))) for call in calls):
            lost.append(f"a call of {of}")
    return lost


def difference(text: str, other: str) -> str:
    """The lines of a text that another one lacks, from the first to the last of them."""
    start, most = 0, min(len(text), len(other))
    while start < most and text[start] == other[start]:
        start += 1
    end = len(text)
    while len(text) - end < most - start and text[end - 1] == other[end - len(text) - 1]:
        end -= 1
    if start == end:
        return ""
    # What both have before and behind it may as well belong to it, so that whole lines do.
    while start and text[start - 1] != "\n" and text[start - 1] == text[end - 1]:
        start, end = start - 1, end - 1
    if start and text[start - 1] != "\n" and text[start] == "\n":  # behind a line of both
        start += 1
    first = text.rfind("\n", 0, start) + 1
    last = end - 1 if text[end - 1] == "\n" else text.find("\n", end)
    return text[first : len(text) if last < 0 else last]


def _lost_of_tool(tool: Mapping[str, Any], text: str, found: str, without: str) -> Iterator[str]:
    """Of one tool: itself, or its description, parameters and what is said of these."""
    function = tool.get("function", tool)
    name = str(function.get("name"))
    if not _names(text, name):
        yield f"the tool {name}"
        return
    if _letters(function.get("description") or "") not in found:
        yield f"the description of the tool {name}"
    for parameter, schema in _parameters(function).items():
        if not _names(without, parameter):
            yield f"the parameter {parameter} of {name}"
        elif _letters(str(schema.get("description") or "")) not in found:
            yield f"the description of the parameter {parameter} of {name}"


def _parameters(function: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    properties = (function.get("parameters") or {}).get("properties") or {}
    return {name: each for name, each in properties.items() if isinstance(each, Mapping)}


def _without_descriptions(text: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """A text without the sentences of descriptions, whose words are not names of parameters."""
    described = []
    for tool in tools:
        function = tool.get("function", tool)
        described += [function.get("description"), *_descriptions(function)]
    text = _unescaped(text)
    for each in sorted(filter(None, described), key=len, reverse=True):
        words = [word for word in _NO_WORD.split(_unescaped(each)) if word]
        if len(words) >= _SENTENCE:
            text = re.sub(r"[\W_]+".join(map(re.escape, words)), " ", text)
    return text


def _descriptions(function: Mapping[str, Any]) -> list[str]:
    return [str(each.get("description") or "") for each in _parameters(function).values()]


def _names(text: str, name: str) -> bool:
    """Whether a name stands in a text as a word."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _letters(text: str) -> str:
    """Letters and digits of a text, in lower case, its escapes undone."""
    return _NO_WORD.sub("", _unescaped(text)).casefold()


def _unescaped(text: str) -> str:
    """A text without the escapes of JSON and HTML."""
    text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), html.unescape(text))
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins pairs
    return _ESCAPES.sub(" ", text)
