"""The text of an episode in which one searches: all that was said, called and answered."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gymnast.trainers.records.json_text import from_json

# What a search reads of a file; versions before there were branches have none.
COLUMNS = (
    *("messages", "text"),
    *("branches.list.element.messages", "branches.list.element.text"),
)


def texts_of(record: Mapping[str, Any]) -> list[str]:
    """The messages of each context of a record, as JSON text.

    Where there are none, as in an environment of token ids alone, what the tokens are decoded to is
    a message.
    """
    contexts = [record, *(record.get("branches") or ())]
    return [_messages_or_text(context) for context in contexts]


def _messages_or_text(context: Mapping[str, Any]) -> str:
    messages, text = str(context["messages"]), context.get("text")
    return json.dumps([{"content": text}]) if messages == "[]" and text else messages


class Search:
    """Finds a text in messages, without regard to upper and lower case.

    Args:
        text: What to find.
    """

    def __init__(self, text: str) -> None:
        self._text = text.casefold()
        escaped = json.dumps(text, ensure_ascii=False)[1:-1].casefold()
        self._in_json = {escaped, self._text}

    def finds(self, contexts: Iterable[str]) -> bool:
        """Whether the text is in the messages of a context, each given as JSON text."""
        return any(self._may_be_in(text) and self._is_in(text) for text in contexts)

    def _may_be_in(self, text: str) -> bool:
        """Whether parsing it is worth while: most episodes are passed over by this alone."""
        folded = text.casefold()
        return "\\ud" in folded or any(each in folded for each in self._in_json)

    def _is_in(self, text: str) -> bool:
        said = (part for message in from_json(text) for part in texts_of_message(message))
        return any(self._text in part.casefold() for part in said)


def texts_of_message(message: Mapping[str, Any]) -> Iterator[str]:
    """Each text of a message: its content, its thoughts, its calls' names and arguments."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    for name in ("reasoning_content", "raw", "name"):
        if isinstance(message.get(name), str):
            yield message[name]
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = function.get("arguments")
        yield str(function.get("name"))
        yield arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        yield from _strings(arguments)


def _strings(value: Any) -> Iterator[str]:
    """The strings in a JSON value as they are, without JSON's escapes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(part)
