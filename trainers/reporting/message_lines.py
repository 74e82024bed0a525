"""A message of an episode as lines of text, as the policy wrote it.

Whoever prints them makes them `visible` first.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gymnast.trainers.reporting.shown_episodes import shown_call
from gymnast.types import Message


def message_lines(message: Message) -> Iterator[str]:
    """A message as lines: who speaks, thoughts, text, and calls as one writes them in Python."""
    name = f" {message['name']}" if message.get("name") else ""
    yield f"[{message['role']}{name}]"
    if thoughts := message.get("reasoning_content"):
        yield f"(thinks) {thoughts}"
    calls = message.get("tool_calls") or []
    raw: Any = message.get("raw")
    if raw and any(call.get("error") for call in calls):  # as it was written
        yield str(raw).strip()
    else:
        if text := text_of(message.get("content")).strip():
            yield text
        yield from (f"-> {shown_call(call)}" for call in calls)
    yield from (f"   {call['error']}" for call in calls if call.get("error"))


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)
