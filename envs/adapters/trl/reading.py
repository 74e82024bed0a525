"""What a name of TRL's kinds means, and which methods of a class are tools.

TRL is not imported: a class is known by its method `reset`, a reward function by its parameter
`completions`.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gymnast.envs.tools.definition import Tool, define_tool
from gymnast.envs.tools.json_schema import tools_by_name
from gymnast.envs.tools.marks import ToolOptions, mark_of
from gymnast.errors import ConfigError
from gymnast.lookup import file_in, imported

_NO_TOOLS = ("reset", "get_reward")
_KINDS = (
    "a class with a method reset, a function that makes an object of one, a dict of these by name, "
    "a list of tools, or a reward function, def reward(completions, **columns)"
)


@dataclass(frozen=True)
class Named:
    """What a name means.

    Attributes:
        factories: What makes TRL's environments, by the value of a row's column `environment`; by
            None, where all rows have the same.
        tools: Functions.
        reward_funcs: Reward functions.
    """

    factories: Mapping[str | None, Callable[[], Any]]
    tools: tuple[Callable[..., Any], ...] = ()
    reward_funcs: tuple[Callable[..., Any], ...] = ()


@cache
def named(name: str) -> Named:
    """What "module:name" or "file.py:name" means.

    Raises:
        ConfigError: There is no such thing, or it is of no kind of TRL's.
        ToolDefinitionError: A method that is a tool cannot be described.
        UserCodeError: Importing the module raised.
    """
    given = imported(name)
    if isinstance(given, list | tuple):
        return Named({}, tools=tuple(given))
    if callable(given) and "completions" in _parameters(given):
        return Named({}, reward_funcs=(given,))
    factories = dict(given) if isinstance(given, Mapping) else {None: given}
    for factory in factories.values():
        if not callable(factory) or (isinstance(factory, type) and not _has_reset(factory)):
            raise ConfigError(f"trl:{name} is {factory!r:.200}, not {_KINDS}.")
        if isinstance(factory, type):
            methods_of(factory)
    return Named(factories)


def functions(given: Any, beside: str) -> list[Callable[..., Any]]:
    """The functions that a setting gives: a list of them or of their names, or one name of a list.

    Args:
        given: As above; a single function or name stands for a list.
        beside: The name of the environment. A name without a colon is that of something in the same
            module, and a file lies beside the environment's.

    Raises:
        ConfigError: There is no such thing, or it is no function.
    """
    entries = given if isinstance(given, list | tuple) else [given]
    found: list[Any] = []
    for entry in entries:
        value = imported(_beside(entry, beside)) if isinstance(entry, str) else entry
        found += value if isinstance(value, list | tuple) else [value]
    for value in found:
        if not callable(value):
            raise ConfigError(f"trl:{beside}: {value!r:.200} is no function.")
    return found


@cache
def methods_of(cls: type) -> Mapping[str, Tool]:
    """The tools of a class by name: its public methods, but for `reset` and `get_reward`.

    Raises:
        ToolDefinitionError: One lacks a docstring or a type hint.
    """
    tools = {}
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_") and name not in _NO_TOOLS:
            bound = not isinstance(inspect.getattr_static(cls, name), staticmethod)
            options = mark_of(function) or ToolOptions()
            tool = define_tool(function, name=name, options=options, method=bound)
            tools[name] = replace(tool, function=function)  # whose file errors are looked up in
    return tools


def standalone(tools: Iterable[Callable[..., Any]], owner: str) -> dict[str, Tool]:
    """Tools that are functions, by name.

    Raises:
        ToolDefinitionError: One cannot be described, or two have one name.
    """
    return tools_by_name(tools, owner)


def limited(tool: Tool, timeout_s: float | None) -> Tool:
    """A tool whose calls may take so many seconds, unless it says how many itself."""
    options = tool.options
    if options.timeout_s is None:
        options = replace(options, timeout_s=timeout_s)
    return replace(tool, options=options)


def is_environment(made: Any) -> bool:
    """Whether an object has the method that TRL's environments have."""
    return _has_reset(type(made))


def _has_reset(cls: type) -> bool:
    return inspect.isfunction(getattr(cls, "reset", None))


def _beside(name: str, environment: str) -> str:
    """A name of a setting, as `imported` takes it."""
    _, path, defined = file_in(name)
    home = file_in(environment)[1]
    if path:
        folder = os.path.dirname(home)
        return f"{os.path.join(folder, os.path.expanduser(path))}{defined}"
    return name if ":" in name else f"{environment.rpartition(':')[0]}:{name}"


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some that are written in C
        return {}
