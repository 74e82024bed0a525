"""Marked conversations, rendered to find out how a chat template writes things.

No template contains the words used here, so where one turns up in a rendering, the template put it
there. The values pass the checks of templates that check names and ids.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

USER, TEXT, SYSTEM, THOUGHT, TOOL = "Zquser", "Zqtext", "Zqsystem", "Zqthought", "Zqtool"
NAMES = ("zqfirst", "zqsecond")
IDS = ("zqcallid1", "zqcallid2")  # nine letters and digits: the strictest template's rule
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"zqa": "Zqone", "zqb": 7919},
    {"zqa": "Zqtwo", "zqb": 7907},
)


def user(content: str = USER) -> dict[str, Any]:
    """A user's turn."""
    return {"role": "user", "content": content}


def system(content: str = SYSTEM) -> dict[str, Any]:
    """A system message."""
    return {"role": "system", "content": content}


def assistant(content: str | None = TEXT) -> dict[str, Any]:
    """An assistant's turn without calls."""
    return {"role": "assistant", "content": content}


def openai_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call in OpenAI's shape."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def calling(
    count: int,
    *,
    content: str | None,
    as_text: bool,
    arguments: Sequence[Mapping[str, Any]] = ARGUMENTS,
) -> dict[str, Any]:
    """An assistant's turn with marked calls.

    Args:
        count: How many calls, at most two.
        content: The text before them.
        as_text: Whether arguments are given as a JSON string.
        arguments: The arguments of each call.
    """
    calls = [
        openai_call(call_id, name, json.dumps(given) if as_text else given)
        for call_id, name, given in zip(IDS[:count], NAMES[:count], arguments[:count], strict=True)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(number: int = 0) -> dict[str, Any]:
    """The result of the call with this number, from 0."""
    return {
        "role": "tool",
        "content": "Zqresult",
        "tool_call_id": IDS[number],
        "name": NAMES[number],
    }


def tools() -> list[dict[str, Any]]:
    """The schemas of the called functions."""
    text = {"type": "string", "description": "Zqtext."}
    number = {"type": "integer", "description": "Zqnumber."}
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"{TOOL}.",
                "parameters": {
                    "type": "object",
                    "properties": {"zqa": text, "zqb": number},
                    "required": ["zqa"],
                },
            },
        }
        for name in NAMES
    ]
