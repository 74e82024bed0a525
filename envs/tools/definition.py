"""Tools: the functions a policy may call, with the schema it is shown.

`@tool` only marks a method (`marks.py`). A `Tool` is made of it once, when the class is defined, so
that a tool that cannot be described fails before any run. `validation.py` checks the arguments of a
call, `running.py` runs it.
"""

import copy
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from gymnast.envs.tools.marks import ToolOptions, mark_of, plain_function
from gymnast.envs.tools.schema import Schema, json_schema, parse_docstring, type_name
from gymnast.errors import ConfigError, ToolDefinitionError
from gymnast.lookup import did_you_mean


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool.

    Attributes:
        name: As the policy writes it.
        required: Whether a call must give it.
        schema: Its JSON schema, with its description.
        adapter: Pydantic's validator for its type hint.
        default: Its default if it is not required.
    """

    name: str
    required: bool
    schema: Schema
    adapter: TypeAdapter[Any]
    default: Any = None


@dataclass(frozen=True)
class Tool:
    """One tool: its description, and how its calls are run.

    Attributes:
        name: As the policy writes it.
        description: What it does, for the policy.
        parameters: In the order of the signature.
        options: Whether it ends the episode, its limits.
        function: Runs its calls; None if the environment's method of that name or its `call_tool`
            does.
    """

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    options: ToolOptions = field(default_factory=ToolOptions)
    function: Callable[..., Any] | None = field(default=None, compare=False)

    @property
    def schema(self) -> Schema:
        """The tool in OpenAI's shape, as chat templates take it; a new object each time."""
        required = [p.name for p in self.parameters if p.required]
        parameters: Schema = {
            "type": "object",
            "properties": {p.name: copy.deepcopy(p.schema) for p in self.parameters},
        }
        if required:
            parameters["required"] = required
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    @property
    def signature(self) -> str:
        """How to call it, in one line: `multiply(a: int, b: int)`."""
        parts = []
        for parameter in self.parameters:
            text = f"{parameter.name}: {type_name(parameter.schema)}"
            if not parameter.required:
                text += f" = {_default_text(parameter)}"
            parts.append(text)
        return f"{self.name}({', '.join(parts)})"


def _default_text(parameter: Parameter) -> str:
    if parameter.default is None:
        return "null"
    known = "default" in parameter.schema
    return json.dumps(parameter.schema["default"], ensure_ascii=False) if known else "..."


def define_tool(function: Any, *, name: str, options: ToolOptions, method: bool = False) -> Tool:
    """Read a function's signature and docstring.

    Args:
        function: A plain function, sync or `async def`.
        name: Its name for the policy.
        options: From `@tool(...)`.
        method: Whether its first parameter is `self` or `cls`, which no call gives.

    Raises:
        ToolDefinitionError: It lacks a docstring or a type hint, or has a parameter that a call
            written in JSON cannot fill. It says in which file and line the function stands.
    """
    with _line_named(function):
        return _defined(function, name, options, method=method)


def _defined(function: Any, name: str, options: ToolOptions, *, method: bool) -> Tool:
    docstring = parse_docstring(getattr(function, "__doc__", None))
    if not docstring.description:
        raise ToolDefinitionError(
            f"tool {name!r} has no docstring: its text is what the policy is told about the tool. "
            f'Add one, such as """Multiply two integers.""", with an Args: section.'
        )
    if options.concurrent and not inspect.iscoroutinefunction(function):
        raise ToolDefinitionError(
            f"tool {name!r} is concurrent but not `async def`: the sync tools of an episode share "
            "one thread. Write it as `async def`, or drop concurrent=True."
        )
    signature, hints = _signature(function, name)
    inputs = list(signature.parameters.values())
    if method:
        _check_self(name, inputs)
        inputs = inputs[1:]
    parameters = tuple(_parameter(name, p, hints, docstring.arguments.get(p.name)) for p in inputs)
    unknown = sorted(set(docstring.arguments) - {p.name for p in inputs})
    if unknown:
        raise ToolDefinitionError(
            f"tool {name!r}: its docstring describes {unknown[0]!r}, which is no parameter of "
            f"{name}({', '.join(p.name for p in inputs)}). Rename or remove that entry of Args:."
        )
    return Tool(name, docstring.description, parameters, options)


def function_name(function: Any, giver: str) -> str:
    """The name of a function that becomes a tool.

    Args:
        function: A function, or a method of an instance.
        giver: The beginning of the message, such as "from_tools was given".

    Raises:
        ToolDefinitionError: It is not a function, or has no name.
    """
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str) or name == "<lambda>":
        raise ToolDefinitionError(
            f"{giver} {function!r:.200}, which is not a function with a name. Pass functions made "
            "with `def`, or subclass Environment."
        )
    return name


@contextmanager
def _line_named(function: Any) -> Iterator[None]:
    """Within the block, an error about a function also says where it stands, if a file has it."""
    try:
        yield
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{error}{_stands_in(function)}") from error


def _stands_in(function: Any) -> str:
    """A sentence, to follow one; "" where no file has the function."""
    try:
        code = getattr(inspect.unwrap(function), "__code__", None)
    except ValueError:  # it wraps itself
        return ""
    if not isinstance(code, CodeType) or not os.path.isfile(code.co_filename):
        return ""
    file, here = Path(code.co_filename), Path.cwd()
    shown = file.relative_to(here) if file.is_relative_to(here) else file
    return f" It stands in {shown}, line {code.co_firstlineno}."


def _check_self(name: str, parameters: list[inspect.Parameter]) -> None:
    first = parameters[0].name if parameters else None
    if first not in ("self", "cls"):
        shown = ", ".join(["self", *map(str, parameters)])
        raise ToolDefinitionError(
            f"tool {name!r} is a method whose first parameter is {first or 'missing'}, not self. "
            f"Write `def {name}({shown})`, or put @staticmethod above it."
        )


def _signature(function: Any, name: str) -> tuple[inspect.Signature, dict[str, Any]]:
    try:
        target = function if inspect.isroutine(function) else type(function).__call__
        return inspect.signature(function), get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(
            f"tool {name!r}: its type hints name {error.name!r}, which is not defined at the top "
            "of its module. Define or import it there."
        ) from error
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(
            f"tool {name!r} ({function!r}) has no signature that can be read: {error}. "
            "Wrap it in a function with type hints and a docstring."
        ) from error


def _parameter(
    tool_name: str, parameter: inspect.Parameter, hints: dict[str, Any], text: str | None
) -> Parameter:
    name = parameter.name
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ToolDefinitionError(
            f"tool {tool_name!r}: parameter {str(parameter)!r} is {parameter.kind.description}, "
            "but a call gives arguments by name. Give each parameter a name of its own."
        )
    if name not in hints:
        raise ToolDefinitionError(
            f"tool {tool_name!r}: parameter {name!r} has no type hint, and the schema shown to the "
            f"policy is made of them. Write, for example, `{name}: int`."
        )
    required = parameter.default is parameter.empty
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hints[name])
        schema = json_schema(adapter)
    except (PydanticUserError, PydanticInvalidForJsonSchema) as error:
        raise ToolDefinitionError(
            f"tool {tool_name!r}: parameter {name!r} has type {hints[name]!r}, which JSON cannot "
            "express. Use int, float, str, bool, list, dict, Literal, an Enum, a dataclass, a "
            "TypedDict or a pydantic model."
        ) from error
    if text:
        schema["description"] = text
    if required:
        return Parameter(name, True, schema, adapter)
    default = parameter.default
    if default is not None and "default" not in schema:
        with suppress(Exception):  # a default that JSON cannot hold is not shown
            schema["default"] = adapter.dump_python(default, mode="json", warnings=False)
    return Parameter(name, False, schema, adapter, default)


def tools_of_class(cls: type) -> dict[str, Tool]:
    """The marked methods of a class, base classes first, in the order of their definition.

    Raises:
        ToolDefinitionError: One of them cannot be a tool.
    """
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    try:
        tools = {name: _tool_of_attribute(cls, name) for name in names}
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{cls.__name__}: {error}") from error
    return {name: tool for name, tool in tools.items() if tool is not None}


def _tool_of_attribute(cls: type, name: str) -> Tool | None:
    attribute = inspect.getattr_static(cls, name)
    options = mark_of(attribute)
    if options is None:
        return None
    with _line_named(plain_function(attribute)):
        _check_name(cls, name)
    method = not isinstance(attribute, staticmethod)
    return define_tool(plain_function(attribute), name=name, options=options, method=method)


def _check_name(cls: type, name: str) -> None:
    """Check that a tool does not replace a method that the environment itself needs."""
    for base in cls.__mro__:
        needed = base.__module__.startswith(("gymnast.", "gymnasium."))
        if needed and name in vars(base) and mark_of(vars(base)[name]) is None:
            raise ToolDefinitionError(
                f"tool {name!r} would replace {base.__name__}.{name}. Rename it."
            )


def with_stop_tools(tools: Mapping[str, Tool], names: Iterable[str]) -> dict[str, Tool]:
    """The same tools, of which those named are made stop tools.

    Raises:
        ConfigError: There is no such tool.
    """
    if isinstance(names, str):
        raise ConfigError(f"stop_tools is the string {names!r}; give a list, [{names!r}].")
    tools = dict(tools)
    for name in names:
        if name not in tools:
            raise ConfigError(f"stop_tools names {name!r}. {no_such_tool(name, tools)}")
        tools[name] = replace(tools[name], options=replace(tools[name].options, stop=True))
    return tools


def no_such_tool(name: str, tools: Iterable[str]) -> str:
    """A message: the name is unknown, which tool it may mean, and which tools there are."""
    known = list(tools)
    hint = did_you_mean(name, known)
    return f"There is no such tool.{hint} The tools are: {', '.join(known) or '(none)'}."
