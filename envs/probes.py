"""Marked conversations: what is rendered to find out how a chat template writes things.

Every word here is one that no template contains, so where it turns up in a rendering is where the
template puts it. The values are harmless to templates that check names and ids.
"""

import json
from typing import Any

USER, TEXT, SYSTEM = "Zquser", "Zqtext", "Zqsystem"
NAMES = ("zqfirst", "zqsecond")
IDS = ("zqcallid1", "zqcallid2")  # nine letters and digits: the strictest template's rule
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"zqa": "Zqone", "zqb": 7919},
    {"zqa": "Zqtwo", "zqb": 7907},
)


def user(content: str = USER) -> dict[str, Any]:
    """A user's turn."""
    return {"role": "user", "content": content}


def assistant(content: str | None = TEXT) -> dict[str, Any]:
    """An assistant's turn without calls."""
    return {"role": "assistant", "content": content}


def openai_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call in OpenAI's shape."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def calling(count: int, *, content: str | None, as_text: bool) -> dict[str, Any]:
    """An assistant's turn with marked calls.

    Args:
        count: How many calls, at most two.
        content: The text before them; None leaves the key out.
        as_text: Whether the arguments are given as a JSON string.
    """
    calls = [
        openai_call(call_id, name, json.dumps(arguments) if as_text else arguments)
        for call_id, name, arguments in zip(IDS, NAMES, ARGUMENTS, strict=True)
    ]
    message: dict[str, Any] = {"role": "assistant", "tool_calls": calls[:count]}
    return message if content is None else message | {"content": content}


def result(number: int = 0) -> dict[str, Any]:
    """The result of the call of that number."""
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
                "description": "Zqtool.",
                "parameters": {
                    "type": "object",
                    "properties": {"zqa": text, "zqb": number},
                    "required": ["zqa"],
                },
            },
        }
        for name in NAMES
    ]
