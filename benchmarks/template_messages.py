"""The marked messages that chat templates are tried on: questions, calls, results, schemas.

No template contains the words used here, and the renderer uses others to find out how a template
writes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

MessageDict = dict[str, Any]
Messages = Sequence[MessageDict]

USER, SAID, THOUGHT, RESULT = "Wquser", "Wqsaid", "Wqthought", "Wqresult"
SYSTEM: MessageDict = {"role": "system", "content": "Wqsystem"}
QUESTION: MessageDict = {"role": "user", "content": USER}
ANSWER: MessageDict = {"role": "assistant", "content": SAID}
THINKING: MessageDict = {"reasoning_content": THOUGHT}
NEXT: MessageDict = {"role": "user", "content": "Wqnext"}


def call(name: str, arguments: Mapping[str, Any], number: int = 1) -> MessageDict:
    """A call in OpenAI's shape; its id is of the strictest kind, nine letters and digits."""
    function = {"name": name, "arguments": dict(arguments)}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


def calling(*calls: MessageDict, content: str = "", reasoning: str = "") -> MessageDict:
    """An assistant's turn with calls."""
    turn = {"role": "assistant", "content": content, "tool_calls": list(calls)}
    return turn | {"reasoning_content": reasoning} if reasoning else turn


def result(of: MessageDict, content: str = RESULT) -> MessageDict:
    """The answer to a call."""
    name = of["function"]["name"]
    return {"role": "tool", "content": content, "tool_call_id": of["id"], "name": name}


def schemas(*calls: MessageDict) -> list[MessageDict]:
    """Tools that the calls are right for."""
    merged: dict[str, dict[str, Any]] = {}
    for one in calls:
        function = one["function"]
        properties = {key: _schema(value) for key, value in function["arguments"].items()}
        merged.setdefault(function["name"], {}).update(properties)
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Wqtool.",
                "parameters": {"type": "object", "properties": properties, "required": []},
            },
        }
        for name, properties in merged.items()
    ]


def _schema(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        properties = {key: _schema(item) for key, item in value.items()}
        return {"type": "object", "description": "Wqobject.", "properties": properties}
    if isinstance(value, list):
        return {"type": "array", "description": "Wqarray.", "items": _items(value)}
    kind: Any = ["integer", "null"] if value is None else _KINDS[type(value)]
    return {"type": kind, "description": "Wqparameter."}


def _items(values: list[Any]) -> dict[str, Any]:
    """One schema for all items of a list."""
    nested = [value for value in values if isinstance(value, list | dict)]
    if nested and all(isinstance(value, list) for value in values):
        return _schema([item for value in values for item in value])
    if nested and all(isinstance(value, dict) for value in values):
        return _schema({key: item for value in values for key, item in value.items()})
    kinds = sorted({_KINDS[type(value)] for value in values}) or ["string"]
    return {"type": kinds[0] if len(kinds) == 1 else kinds}


_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


MARKED = (
    call("wqfirst", {"wqa": "Wqone", "wqb": 7919}, 1),
    call("wqsecond", {"wqa": "Wqtwo", "wqb": 7907}, 2),
    call("wqthird", {"wqa": "Wqthree", "wqb": 7901}, 3),
)
