"""Making environments: checks of their settings, and a class made of plain functions."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.solution import require_solve
from gymnast.envs.tools.definition import Tool, function_name, with_stop_tools
from gymnast.envs.tools.json_schema import tool_of_library
from gymnast.envs.tools.marks import ToolOptions, mark_of, marked
from gymnast.errors import ConfigError, ToolDefinitionError, UsageError

E = TypeVar("E", bound=type)

CONSTRUCTOR = (
    "Write: def __init__(self, renderer=None, *, size=3, **settings): "
    "super().__init__(renderer, **settings); self.size = size."
)


_ANSWERING = ("tools_for", "call_tool", "respond")  # hooks that a program takes the place of


class RemembersConstruction:
    """Keeps the arguments that an object is made with, so that another like it can be made."""

    _construction: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Make the object; `__init__` gets the same arguments."""
        made = super().__new__(cls)
        made._construction = (arguments, settings)
        return made


def require_construction(environment: Any) -> None:
    """Check that the subclass's constructor called `Environment.__init__`.

    Raises:
        UsageError: It did not.
    """
    if "_episode_runner" not in vars(environment):
        raise UsageError(
            f"{type(environment).__name__}.__init__ does not call super().__init__. {CONSTRUCTOR}"
        )


def has_requests(cls: type[Hooks]) -> bool:
    """Whether the episodes of a class are the requests of a program, which has the loop."""
    return cls.next_request is not Hooks.next_request


def has_reward(cls: type[Hooks]) -> bool:
    """Whether a class scores its episodes, as a whole or turn by turn."""
    own = ("reward", "turn_reward", "text_rewards")
    return any(getattr(cls, name) is not getattr(Hooks, name) for name in own)


def check_hooks(cls: type[Hooks]) -> None:
    """Check that a class whose episodes are a program's requests has nothing that is never asked.

    Raises:
        ToolDefinitionError: It has tools itself, or a hook that answers the policy.
    """
    if not has_requests(cls):
        return
    if cls._class_tools:
        raise ToolDefinitionError(
            f"{cls.__name__} has the tools {', '.join(cls._class_tools)} and the hook "
            "`next_request`. In such a class the program offers the tools and runs their calls: "
            "give them to the program, or leave out next_request."
        )
    for name in _ANSWERING:
        if getattr(cls, name) is not getattr(Hooks, name):
            raise ToolDefinitionError(
                f"{cls.__name__} has the hooks `{name}` and `next_request`. In such a class the "
                f"program answers the policy, and {name} is never asked: give what it does to the "
                "program, or leave out next_request."
            )


def check_settings(environment: Any) -> None:
    """Check the settings that every environment has.

    Raises:
        ConfigError: One is out of range or has the wrong type.
    """
    owner = type(environment).__name__
    for name in ("max_turns", "max_tokens", "context_length"):
        value = getattr(environment, name)
        if value is None and name != "max_turns":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{owner}: {name} must be a whole number >= 1, got {value!r}.")
    timeout_s = environment.episode_timeout_s
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigError(f"{owner}: episode_timeout_s must be > 0 or None, got {timeout_s!r}.")
    prompt = environment.system_prompt
    if prompt is not None and not isinstance(prompt, str):
        raise ConfigError(f"{owner}: system_prompt must be a string or None, got {prompt!r:.100}.")
    if environment.render_mode not in (None, "ansi"):
        raise ConfigError(
            f'{owner}: render_mode must be "ansi" or None, got {environment.render_mode!r:.100}.'
        )
    _check_worked_turns(environment, owner)
    renderer = environment.renderer
    if renderer is not None and not all(
        hasattr(renderer, name) for name in ("prompt", "parse", "observe", "stop_ids")
    ):
        raise ConfigError(
            f"{owner}: renderer has type {type(renderer).__name__}; wrap a tokenizer: "
            "Renderer(tokenizer), or use gymnast.envs.make, which does."
        )
    rows = environment.rows
    if rows is not None and not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise ConfigError(
            f"{owner}: rows has type {type(rows).__name__}; use a list of dicts or a dataset."
        )


def _check_worked_turns(environment: Any, owner: str) -> None:
    count, rows = environment.worked_turns, environment.worked_rows
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ConfigError(f"{owner}: worked_turns must be a whole number >= 0, got {count!r}.")
    if rows is not None and (isinstance(rows, str) or not isinstance(rows, Sequence)):
        raise ConfigError(f"{owner}: worked_rows must be a list of rows, got {rows!r:.100}.")
    if rows is not None and count > len(rows):
        raise ConfigError(
            f"{owner}: worked_turns must be <= {len(rows)}, the number of worked_rows, got {count}."
        )
    if count and has_requests(type(environment)):
        raise ConfigError(
            f"{owner}: worked_turns={count} would show turns before a prompt that the program "
            "says; leave it out."
        )
    if count:
        require_solve(environment, f"worked_turns={count}")


def environment_class(
    base: E,
    functions: Iterable[Callable[..., Any]],
    reward: Callable[[Any], float | Mapping[str, float]] | None,
    stop_tools: Iterable[str],
) -> E:
    """Make a subclass whose tools are plain functions; see `Environment.from_tools`."""
    if callable(functions):
        raise ToolDefinitionError(f"from_tools takes a list of functions: [{functions!r}].")
    members: dict[str, Any] = {"__doc__": f"Made of plain functions by {base.__name__}.from_tools."}
    others: dict[str, Tool] = {}  # of other libraries
    for function in functions:
        other = tool_of_library(function)
        tool_name = function_name(function, "from_tools was given") if other is None else other.name
        if tool_name in {**members, **others} or hasattr(base, tool_name):
            raise ToolDefinitionError(
                f"from_tools: the name of tool {tool_name!r} is taken, by another tool or by "
                f"{base.__name__}.{tool_name}. Rename the function."
            )
        if other is None:
            members[tool_name] = _as_tool(function)
        else:
            others[tool_name] = other
    if reward is not None:
        members["reward"] = reward if hasattr(reward, "of_environment") else _as_method(reward)
    made: Any = type(base)("ToolsEnvironment", (base,), members)
    tools = with_stop_tools({**made._class_tools, **others}, stop_tools)
    for tool_name in members.keys() & tools.keys():  # marked, so that subclasses see it too
        marked(members[tool_name], tools[tool_name].options)
    made._class_tools = {name: tool for name, tool in tools.items() if name not in others}
    if others:
        made.tools_for = _with_tools(base, [tools[name] for name in others])
        check_hooks(made)
    return made


def _with_tools(base: Any, others: list[Tool]) -> Callable[..., Any]:
    """The hook `tools_for` of a class that offers further tools."""

    def tools_for(self: Any, row: Mapping[str, Any]) -> list[Any]:
        return [*base.tools_for(self, row), *others]

    return tools_for


def _as_tool(function: Callable[..., Any]) -> "staticmethod[..., Any]":
    return marked(staticmethod(function), mark_of(function) or ToolOptions())


def _as_method(reward: Callable[[Any], Any]) -> Callable[..., Any]:
    def call_reward(self: Any, episode: Any) -> Any:
        return reward(episode)

    async def await_reward(self: Any, episode: Any) -> Any:
        return await reward(episode)

    return await_reward if inspect.iscoroutinefunction(reward) else call_reward
