"""What a server of OpenEnv's says, what a policy is told of it, and what its calls mean."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from jsonschema import Draft202012Validator

from gymnast.errors import ToolDefinitionError, shown
from gymnast.numbers import is_finite

Action = dict[str, Any]
_CALLS = "call_tool"  # the type of actions that call a tool of the server's


class ToolFailed(Exception):
    """A tool of the server's failed, or there is no such tool."""


def calls_tools(schema: Mapping[str, Any]) -> bool:
    """Whether a server's actions are calls of tools, by the schema of an action."""
    properties = schema.get("properties", {})
    kind = properties.get("type", {})
    return (kind.get("const") == _CALLS and "tool_name" in properties) or (
        set(properties) <= {"metadata"} and schema.get("type") == "object"
    )


def act(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], Callable[[Action], Any]]:
    """The tool `act` of a server, and what makes an action of a call's arguments.

    Raises:
        ToolDefinitionError: The schema is none.
    """
    told = schema.get("description")
    description = f"Take an action. {told if isinstance(told, str) else ''}".strip()
    named = {"name": "act", "description": description}
    if schema.get("type") != "object" or "properties" not in schema:
        definitions = {key: schema[key] for key in ("$defs",) if key in schema}
        action = {key: value for key, value in schema.items() if key != "$defs"}
        parameters = {"type": "object", "properties": {"action": action}, "required": ["action"]}
        return {**named, "parameters": parameters | definitions}, lambda given: given["action"]
    required = schema.get("required", [])
    shown = {
        name: part
        for name, part in schema["properties"].items()
        if name != "metadata" or name in required  # which every action of OpenEnv's has
    }
    return {**named, "parameters": {**schema, "properties": shown}}, dict


def tools(observation: Any) -> list[tuple[Mapping[str, Any], Callable[[Action], Any]]]:
    """The tools that a server lists, each with what makes an action of a call's arguments.

    Raises:
        ToolDefinitionError: It is no list of tools.
    """
    listed = observation.get("tools") if isinstance(observation, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(tool, Mapping) for tool in listed):
        raise ToolDefinitionError(f"it lists {listed!r:.200}, which are no tools")
    return [(_tool(tool), _caller(str(tool.get("name")))) for tool in listed]


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    name = tool.get("name")
    return {
        "name": name,
        "description": tool.get("description") or f"{name}.",
        "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
    }


def _caller(name: str) -> Callable[[Action], Any]:
    return lambda given: {"type": _CALLS, "tool_name": name, "arguments": given}


def schema_of(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an action, from what a server says of its schemas.

    Raises:
        ValueError: There is none.
    """
    schema = said.get("action")
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ValueError(f"its schema of an action is {schema!r:.200}, not that of an object")
    Draft202012Validator.check_schema(schema)
    return schema


def description_of(said: Mapping[str, Any]) -> str:
    """What a server says of its environment; "" where it says no more than its name."""
    description = said.get("description")
    default = f"{said.get('name')} environment"
    return description if isinstance(description, str) and description != default else ""


def outcome(answer: Mapping[str, Any]) -> tuple[Mapping[str, Any], float, bool]:
    """The observation, the reward and whether the episode is over, of an answer to an action.

    Raises:
        ValueError: It has none of these.
    """
    observation, reward, over = (answer.get(key) for key in ("observation", "reward", "done"))
    if not isinstance(observation, Mapping):
        raise ValueError(f"its observation is {observation!r:.200}, which is no JSON object")
    reward = 0.0 if reward is None else reward
    if not isinstance(reward, int | float) or not is_finite(reward):
        raise ValueError(f"its reward is {shown(reward)}, which is no finite number")
    if not isinstance(over, bool):
        raise ValueError(f"it says {over!r:.200} where it says whether the episode is over")
    return observation, float(reward), over


def text_of(observation: Mapping[str, Any]) -> str:
    """An observation as text: its only field where that is a text, else JSON without metadata.

    Raises:
        ToolFailed: It is the failure of a tool.
    """
    if "tool_name" in observation and "result" in observation:
        return _result(observation)
    shown = {key: part for key, part in observation.items() if key != "metadata"}
    if not shown:
        return ""
    values = list(shown.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(shown, ensure_ascii=False)


def _result(observation: Mapping[str, Any]) -> str:
    """The result of a call of a tool, whose content may be in the parts of a protocol."""
    result, error = observation["result"], observation.get("error")
    if error:
        raise ToolFailed(error.get("message") if isinstance(error, Mapping) else str(error))
    parts = result.get("content") if isinstance(result, Mapping) else None
    if not isinstance(parts, list):
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    text = "\n".join(map(_part, parts))
    if result.get("is_error"):
        raise ToolFailed(text)
    return text


def _part(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    return f"[{kind}]"  # of a picture, say


def problem(said: Mapping[str, Any]) -> str:
    """What was wrong with a request, as the server says."""
    errors = said.get("errors")
    if not isinstance(errors, list):
        return str(said.get("message"))
    lines = [
        f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg')}".removeprefix(": ")
        for error in errors
        if isinstance(error, Mapping)
    ]
    return "; ".join(lines) or str(said.get("message"))
