"""Tools of LangChain, smolagents and the OpenAI Agents SDK, known by their attributes.

None of these packages is imported here, but by whom a tool was made. A tool keeps its name, its
description and its parameters. What it returns and JSON cannot hold is told as `str` makes it, as
these libraries do.
"""

import asyncio
import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from gymnast.errors import ToolDefinitionError

_NO_TEXT = ("audio", "image")  # types of smolagents' parameters

Read = tuple[Mapping[str, Any], Callable[..., Any]]  # a JSON schema, and what runs calls


def of_library(given: Any) -> tuple[dict[str, Any], Callable[..., Any]] | None:
    """The description of a tool of one of the libraries, and what runs its calls; else None.

    Raises:
        ToolDefinitionError: It has a parameter that JSON cannot express.
    """
    if isinstance(given, type):
        return None
    for attributes, read in _LIBRARIES.items():
        if all(hasattr(given, name) for name in attributes):
            parameters, function = read(given)
            described = {"name": given.name, "description": given.description}
            return {**described, "parameters": parameters}, function
    return None


def _of_langchain(given: Any) -> Read:
    shown = given.tool_call_schema  # without the arguments that LangChain injects

    def invoke(**arguments: Any) -> Any:
        return _told(given.invoke(arguments))

    async def ainvoke(**arguments: Any) -> Any:
        return _told(await given.ainvoke(arguments))

    is_async = getattr(given, "coroutine", None) is not None
    schema = shown if isinstance(shown, Mapping) else shown.model_json_schema()
    return schema, ainvoke if is_async else invoke


def _of_smolagents(given: Any) -> Read:
    properties, required = {}, []
    for name, parameter in given.inputs.items():
        shown = {key: value for key, value in parameter.items() if key != "nullable"}
        if shown.get("type") in _NO_TEXT:
            raise ToolDefinitionError(
                f"tool {given.name!r}: parameter {name!r} has type {shown['type']!r}, which JSON "
                "cannot express. Wrap the tool in a function that takes a text."
            )
        if shown.get("type") == "any":
            del shown["type"]
        properties[name] = shown
        required += [] if parameter.get("nullable") else [name]
    schema = {"type": "object", "properties": properties, "required": required}
    return schema, lambda **arguments: _told(given(**arguments))


def _of_agents(given: Any) -> Read:
    (base,) = (c for c in type(given).__mro__ if c.__name__ == "FunctionTool")
    context_of = importlib.import_module(f"{base.__module__}_context").ToolContext

    async def invoke(**arguments: Any) -> Any:
        written = json.dumps(arguments)
        context = context_of(None, tool_name=given.name, tool_call_id="", tool_arguments=written)
        return _told(await given.on_invoke_tool(context, written))

    def invoke_sync(**arguments: Any) -> Any:
        return asyncio.run(invoke(**arguments))

    # A sync function runs in the loop's pool of few threads, which calls that hang would fill: so
    # it has a loop of its own, on the episode's thread.
    is_sync = getattr(given.on_invoke_tool, "__agents_sync_function_tool__", False)
    return given.params_json_schema, invoke_sync if is_sync else invoke


def _told(result: Any) -> Any:
    """A result, as a text if JSON cannot hold it."""
    try:
        json.dumps(result)
    except (TypeError, ValueError, RecursionError):
        return str(result)
    return result


# The attributes by which a library's tools are known, and what reads their parameters and function.
_LIBRARIES: dict[tuple[str, ...], Callable[[Any], Read]] = {
    ("name", "description", "tool_call_schema", "invoke", "ainvoke"): _of_langchain,
    ("name", "description", "inputs", "output_type", "forward"): _of_smolagents,
    ("name", "description", "params_json_schema", "on_invoke_tool"): _of_agents,
}
