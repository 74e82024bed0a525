"""The tools that a request offers, and how it wants them chosen, in OpenAI's shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymnast.envs.programs.dialects.requests import Refused
from gymnast.envs.programs.dialects.values import (
    flag,
    mapping,
    name,
    optional_mapping,
    optional_text,
    sequence,
    shown,
)

FORCED = (
    "a call cannot be forced without changing the distribution that is sampled from; "
    'leave it out, or write "auto" or "none"'
)
ONE_BY_ONE = (
    "that only one call is made at a time cannot be promised without changing the distribution "
    "that is sampled from; leave it out"
)


def schema(function: Any, param: str, parameters: str = "parameters") -> dict[str, Any]:
    """A tool's schema in OpenAI's shape.

    Args:
        function: An object with the tool's name, its description and its parameters.
        param: Where it stands in the request.
        parameters: The key of its parameters.

    Raises:
        Refused: It is no such object.
    """
    given = mapping(function, param)
    made: dict[str, Any] = {"name": name(given.get("name"), f"{param}.name")}
    if description := optional_text(given.get("description"), f"{param}.description"):
        made["description"] = description
    read = optional_mapping(given.get(parameters), f"{param}.{parameters}")
    made["parameters"] = dict(read) or {"type": "object", "properties": {}}
    return {"type": "function", "function": made}


def check_names(tools: Sequence[Mapping[str, Any]], param: str) -> None:
    """Refuse two tools of one name.

    Raises:
        Refused: There are two.
    """
    names = [tool["function"]["name"] for tool in tools]
    for each in names:
        if names.count(each) > 1:
            raise Refused(f"{param}: two tools are called {shown(each)}.", param=param)


def functions(value: Any, param: str = "tools") -> list[dict[str, Any]]:
    """The tools of a request, each an object {"type": "function", "function": {...}}.

    Raises:
        Refused: They are something else.
    """
    read = []
    for index, tool in enumerate(sequence(value, param)):
        here = f"{param}[{index}]"
        kind = mapping(tool, here).get("type")
        if kind != "function":
            raise Refused(
                f'{here}.type must be "function", got {shown(kind)}: other tools are run by the '
                "server, which has none, or need a grammar.",
                param=f"{here}.type",
            )
        read.append(schema(tool.get("function"), f"{here}.function"))
    check_names(read, param)
    return read


def check_parallel(value: Any, tools: Sequence[Any], param: str) -> None:
    """Refuse that calls are made one at a time, unless there are no tools.

    Raises:
        Refused: It asks for that, or is no boolean.
    """
    if value is not None and not flag(value, param) and tools:
        raise Refused(f"{param}: {ONE_BY_ONE}.", param=param)


def offered(tools: list[dict[str, Any]], choice: Any, param: str) -> list[dict[str, Any]]:
    """The tools that may be called: all for "auto", none for "none".

    Raises:
        Refused: The request forces a call.
    """
    if choice is None or choice == "auto":
        return tools
    if choice == "none":
        return []
    raise Refused(f"{param}: {FORCED}; got {shown(choice)}.", param=param)
