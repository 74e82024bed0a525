"""The tools of an environment's episodes: which are offered, and what runs their calls."""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import partial
from typing import Any

from gymnast.envs.tools.definition import Tool, no_such_tool, with_stop_tools
from gymnast.envs.tools.json_schema import tools_by_name
from gymnast.envs.tools.running import CallRunner, call_user_code
from gymnast.errors import DataError, ToolDefinitionError
from gymnast.threads import EpisodeThread


def offered_tools(row: Mapping[str, Any], tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """Return the tools that a row's `tools` names, in the environment's order; by default, all.

    The `tools` of chat datasets are descriptions, perhaps in a string of JSON; their names count.

    Raises:
        DataError: It is not a list of names or descriptions, or names an unknown tool.
    """
    given = _decoded(row.get("tools"))
    if given is None:
        return dict(tools)
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    names = [_name(one) for one in given] if listed else []
    if not listed or None in names:
        raise DataError(
            f"the row's 'tools' is {given!r:.200}; it must be a list of tool names, or of "
            "descriptions with names."
        )
    for name in names:
        if name not in tools:
            raise DataError(
                f"the row's 'tools' names {name!r}. {no_such_tool(str(name), tools)} Tools that a "
                "row describes are offered if tools_for(row) returns them."
            )
    return {name: tool for name, tool in tools.items() if name in names}


def _decoded(given: Any) -> Any:
    """Return a row's `tools`, which many datasets have as a string of JSON."""
    if isinstance(given, str):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(given)
    return given


def _name(given: Any) -> str | None:
    """Return the name of a tool that a row names or describes; None if it does neither."""
    function = given.get("function") or given if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else given
    return name if isinstance(name, str) else None


class EpisodeTools:
    """The tools of the episodes of one environment, one after another.

    Attributes:
        of_class: The tools that the class has, by name, before an episode chooses.
        chosen: Whether the class chooses the tools of each episode by its own `tools_for`.

    Args:
        environment: Its methods run the calls of the tools of its class.
        methods: These tools, by name.
        stop_tools: Names of the tools that end an episode.
        chosen: As above.
        own_call_tool: Returns the `call_tool` by which the environment runs calls itself, or None.
        thread: Runs what is not `async`.
    """

    def __init__(
        self,
        environment: Any,
        methods: Mapping[str, Tool],
        stop_tools: Iterable[str],
        *,
        chosen: bool,
        own_call_tool: Callable[[], Callable[..., Any] | None],
        thread: EpisodeThread,
    ) -> None:
        self.chosen = chosen
        self._stop_tools = stop_tools if isinstance(stop_tools, str) else tuple(stop_tools)
        self.of_class = methods if chosen else with_stop_tools(methods, self._stop_tools)
        self._environment = environment
        self._owner = type(environment).__name__
        self._methods = methods
        self._own_call_tool = own_call_tool
        self._thread = thread

    def at_first(self, row: Mapping[str, Any]) -> Mapping[str, Tool]:
        """The tools with which an episode begins, before `tools_for` has chosen any.

        Raises:
            DataError: The row names an unknown tool.
            ToolDefinitionError: An attribute of the environment hides a tool, which is looked up
                by name.
        """
        offered = self.of_class if self.chosen else offered_tools(row, self.of_class)
        hidden = [name for name in self._methods if name in vars(self._environment)]
        if hidden:
            raise ToolDefinitionError(
                f"{self._owner}: tool {hidden[0]!r} is hidden by the attribute "
                f"self.{hidden[0]}. Rename one of them."
            )
        return offered

    def choose(self, given: Any, row: Mapping[str, Any]) -> dict[str, Tool]:
        """The tools of an episode whose class has its own `tools_for`.

        Args:
            given: What `tools_for` returned.
            row: The episode's row, whose `tools` may select some.

        Raises:
            ToolDefinitionError: An entry cannot be a tool, or nothing runs its calls.
            ConfigError: A name of the stop tools is that of no tool.
            DataError: The row names an unknown tool.
        """
        tools = self._runnable(given, "tools_for")
        return offered_tools(row, with_stop_tools(tools, self._stop_tools))

    def changed(self, given: Any) -> dict[str, Tool]:
        """The tools of the rest of an episode, as `respond` offers them.

        Args:
            given: Functions, descriptions and tools.

        Raises:
            ToolDefinitionError: An entry cannot be a tool, or nothing runs its calls.
        """
        tools = self._runnable(given, "respond")
        return with_stop_tools(tools, [name for name in self._stop_tools if name in tools])

    def _runnable(self, given: Any, hook: str) -> dict[str, Tool]:
        tools = tools_by_name(given, f"{self._owner}.{hook}")
        for name, tool in tools.items():
            described = tool.function is None and name not in self._methods
            if described and self._own_call_tool() is None:
                raise ToolDefinitionError(
                    f"{self._owner}.{hook} returned a description of {name!r}, but nothing runs "
                    "its calls. Override call_tool(name, arguments), or return a function."
                )
        return tools

    async def call(self, name: str, arguments: dict[str, Any], offered: Mapping[str, Tool]) -> Any:
        """Run a call by the function or method of its tool.

        Args:
            name: The tool's.
            arguments: The call's.
            offered: The tools of the episode, by name.
        """
        function = self._function(name, offered)
        if function is None:
            raise NotImplementedError(f"tool {name!r} has no function; override call_tool")
        return await call_user_code(self._thread, partial(function, **arguments))

    def runner(
        self,
        offered: Mapping[str, Tool],
        deadline: float | None,
        encode: Callable[[str], Sized],
    ) -> CallRunner:
        """What runs the calls of an action.

        Args:
            offered: The tools of the episode, by name.
            deadline: When the episode's time is up, on `time.monotonic`; None: never.
            encode: Tokenizes a text, to measure results.
        """
        return CallRunner(
            tools=offered,
            call_tool=self._own_call_tool() or partial(self.call, offered=offered),
            thread=self._thread,
            code_of=partial(self._code_of, offered=offered),
            deadline=deadline,
            encode=encode,
        )

    def _function(self, name: str, offered: Mapping[str, Tool]) -> Callable[..., Any] | None:
        """The function or method behind a tool; None where it is only described."""
        tool = offered.get(name)
        if tool is not None and tool.function is not None:
            return tool.function
        return getattr(self._environment, name) if name in self._methods else None

    def _code_of(self, name: str, offered: Mapping[str, Tool]) -> list[Callable[..., Any]]:
        """The author's functions that run a tool's calls."""
        functions = (self._own_call_tool(), self._function(name, offered))
        return [function for function in functions if function is not None]
