"""An environment class made of plain functions: what `Environment.from_tools` returns."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from gymnast.envs.tools.definition import function_name, with_stop_tools
from gymnast.envs.tools.marks import ToolOptions, mark_of, marked
from gymnast.errors import ToolDefinitionError

E = TypeVar("E", bound=type)


def environment_class(
    base: E,
    functions: Iterable[Callable[..., Any]],
    reward: Callable[[Any], float | Mapping[str, float]] | None,
    stop_tools: Iterable[str],
) -> E:
    """Make a subclass whose tools are functions; see `Environment.from_tools`."""
    if callable(functions):
        raise ToolDefinitionError(f"from_tools takes a list of functions: [{functions!r}].")
    members: dict[str, Any] = {"__doc__": f"Made of plain functions by {base.__name__}.from_tools."}
    for function in functions:
        tool_name = function_name(function, "from_tools was given")
        if tool_name in members or hasattr(base, tool_name):
            raise ToolDefinitionError(
                f"from_tools: the name of tool {tool_name!r} is taken, by another tool or by "
                f"{base.__name__}.{tool_name}. Rename the function."
            )
        members[tool_name] = _as_tool(function)
    if reward is not None:
        members["reward"] = _as_method(reward)
    made: Any = type(base)("ToolsEnvironment", (base,), members)
    tools = with_stop_tools(made._class_tools, stop_tools)
    for tool_name in members.keys() & tools.keys():  # marked, so that subclasses see it too
        marked(members[tool_name], tools[tool_name].options)
    made._class_tools = tools
    return made


def _as_tool(function: Callable[..., Any]) -> "staticmethod[..., Any]":
    return marked(staticmethod(function), mark_of(function) or ToolOptions())


def _as_method(reward: Callable[[Any], Any]) -> Callable[..., Any]:
    def call_reward(self: Any, episode: Any) -> Any:
        return reward(episode)

    async def await_reward(self: Any, episode: Any) -> Any:
        return await reward(episode)

    return await_reward if inspect.iscoroutinefunction(reward) else call_reward
