"""What a program sees of an answer, whatever its dialect.

Calls that could not be read cannot be sent as calls: what was written is text. A stop string of the
request ends the text, and with it the answer. What was sampled stays as it is.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from gymnast.envs.programs.dialects.requests import Answer, Finish
from gymnast.types import ToolCall


@dataclass(frozen=True)
class Told:
    """An assistant message as a program sees it.

    Attributes:
        content: Its text, "" for none.
        reasoning: Its thought, "" for none.
        calls: Its calls, each of which could be read.
        finish: Why it ends.
        stopped_by: The stop string that ended it, if one did.
    """

    content: str
    reasoning: str
    calls: Sequence[ToolCall]
    finish: Finish
    stopped_by: str | None = None


def told(answer: Answer, stop: Sequence[str] = ()) -> Told:
    """What a program sees of an answer.

    Args:
        answer: The answer; its message has `ToolCall`s.
        stop: The stop strings of the request.
    """
    message = answer.message
    content = message.get("content") or ""
    calls = [call for call in message.get("tool_calls") or () if call.error is None]
    if len(calls) < len(message.get("tool_calls") or ()):
        content = str(message.get("raw") or "") if not calls else ""
        content = content or _with_unreadable(message.get("content") or "", answer)
    thought = message.get("reasoning_content") or ""
    found = [(at, text) for text in stop if text and (at := content.find(text)) >= 0]
    if found:
        at, text = min(found, key=lambda each: (each[0], -len(each[1])))
        return Told(content[:at], thought, (), "stop", text)
    finish: Finish = answer.finish
    if finish != "length":
        finish = "tool_calls" if calls else "stop"
    return Told(content, thought, calls, finish)


def written_arguments(call: ToolCall) -> str:
    """The arguments of a call as the text of a JSON object."""
    return json.dumps(call.arguments, ensure_ascii=False)


def _with_unreadable(content: str, answer: Answer) -> str:
    """A text, and below it the calls that could not be read, as far as they are known."""
    unreadable = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        for call in answer.message.get("tool_calls") or ()
        if call.error is not None
    ]
    return "\n".join(filter(None, [content, *unreadable]))
