"""Tools that are made at run time: of functions, descriptions with a JSON schema, other libraries.

A description has OpenAI's shape: `{"name": ..., "description": ..., "parameters": {"type":
"object", ...}}`, bare or as the `function` of `{"type": "function", "function": {...}}`; or
Anthropic's or MCP's, which call the parameters `input_schema` or `inputSchema`. It may also have
the fields of `ToolOptions` except `concurrent`. Fields that other libraries add and that change
nothing here (`strict`, `return`, ...) are left out, as are fields and keywords that are null.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic import AfterValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from gymnast.envs.tools.definition import Parameter, Tool, define_tool, function_name
from gymnast.envs.tools.marks import ToolOptions, mark_of
from gymnast.envs.tools.other_libraries import of_library
from gymnast.envs.tools.schema import Schema, simplified, without_null_keywords
from gymnast.envs.tools.schema_checks import bounded_validator, lost_reference, schema_problem
from gymnast.errors import ToolDefinitionError
from gymnast.lookup import did_you_mean

_OPTIONS = ("stop", "timeout_s", "max_output_tokens")
_FIELDS = ("name", "description", "parameters", *_OPTIONS)
_PARAMETERS = ("parameters", "input_schema", "inputSchema")
_KINDS = ("function", "custom")  # of OpenAI and Anthropic; others are run by their servers
# What a call returns, how a server samples or caches, what a person is shown.
_IGNORED = (
    *("type", "strict", "return", "returns", "title", "annotations", "icons", "execution"),
    *("outputSchema", "output_schema", "cache_control", "_meta", "meta"),
)
_UNIONS = ("$ref", "$dynamicRef", "anyOf", "oneOf", "allOf")
_MAX_SHOWN = 200
_PATTERN_TIMEOUT_S = 0.5  # of processor time, while no other episode goes on


def tools_by_name(given: Any, giver: str) -> dict[str, Tool]:
    """Tools by name, from a list of functions, descriptions and tools; see `Hooks.tools_for`.

    Args:
        given: The list.
        giver: The hook that returned it, for messages: "Safe.tools_for".

    Raises:
        ToolDefinitionError: It is not a list, an entry cannot be a tool, or two share a name.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ToolDefinitionError(
            f"{giver} returned {given!r:.200}; it must return a list of functions and of "
            "descriptions."
        )
    tools: dict[str, Tool] = {}
    for one in given:
        tool = _tool(one, giver)
        if tool.name in tools:
            raise ToolDefinitionError(f"{giver} returned two tools {tool.name!r}. Rename one.")
        tools[tool.name] = tool
    return tools


def _tool(given: Any, giver: str) -> Tool:
    if isinstance(given, Tool):
        return given
    try:
        if isinstance(given, Mapping):
            return tool_of_schema(given)
        if (other := tool_of_library(given)) is not None:
            return other
        name = function_name(given, "it was given")
        options = mark_of(given) or ToolOptions()
        return replace(define_tool(given, name=name, options=options), function=given)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{giver}: {error}") from error


def tool_of_library(given: Any) -> Tool | None:
    """Read a tool of LangChain, smolagents or the OpenAI Agents SDK; None for anything else.

    Raises:
        ToolDefinitionError: It lacks a description, or has a parameter that JSON cannot express.
    """
    read = of_library(given)
    return None if read is None else replace(tool_of_schema(read[0]), function=read[1])


def tool_of_schema(given: Any) -> Tool:
    """Read one tool.

    Args:
        given: A description; see the top of this file.

    Raises:
        ToolDefinitionError: A field is missing, unknown or breaks its rule.
    """
    if not isinstance(given, Mapping):
        raise ToolDefinitionError(f"a tool is {given!r:.200}; it must be a JSON object.")
    function = given if (inner := given.get("function")) is None else inner
    if not isinstance(function, Mapping):
        raise ToolDefinitionError(f"a tool is {given!r:.200}; its function must be a JSON object.")
    function = {field: value for field, value in function.items() if value is not None}
    name, description = function.get("name"), function.get("description", "")
    if not isinstance(name, str) or not name:
        raise ToolDefinitionError(f"the tool {function!r:.200} has no name.")
    for field in function:
        if field not in (*_FIELDS, *_PARAMETERS, *_IGNORED):
            raise ToolDefinitionError(
                f"tool {name!r} has the field {field!r}; a tool has {', '.join(_FIELDS)}."
                f"{did_you_mean(field, _FIELDS)}"
            )
    kind = given.get("type")
    if kind is not None and kind not in _KINDS:
        raise ToolDefinitionError(
            f"tool {name!r} is of the type {kind!r:.100}; it must be 'function', which is what a "
            "policy can call."
        )
    if not isinstance(description, str):
        raise ToolDefinitionError(
            f"tool {name!r}: description is {description!r:.200}; it must be a string."
        )
    return Tool(name, description, _parameters(name, function), _options(name, function))


def _options(name: str, function: Mapping[str, Any]) -> ToolOptions:
    given = {field: function[field] for field in _OPTIONS if function.get(field) is not None}
    kinds = {"stop": bool, "timeout_s": int | float, "max_output_tokens": int}
    for field, value in given.items():
        kind = kinds[field]
        if not isinstance(value, kind) or (field != "stop" and isinstance(value, bool)):
            what = {"stop": "true or false", "timeout_s": "a number of seconds"}
            raise ToolDefinitionError(
                f"tool {name!r}: {field} is {value!r}; it must be "
                f"{what.get(field, 'a whole number')}."
            )
    return ToolOptions(**given)


def _parameters(name: str, function: Mapping[str, Any]) -> tuple[Parameter, ...]:
    given = [function[field] for field in _PARAMETERS if field in function]
    if any(schema != given[0] for schema in given):
        raise ToolDefinitionError(
            f"tool {name!r} has two different schemas of its parameters, in "
            f"{' and '.join(field for field in _PARAMETERS if field in function)}; leave one."
        )
    schema = given[0] if given else {}
    rule = (
        "it must be the JSON schema of an object: "
        '{"type": "object", "properties": {...}, "required": [...]}.'
    )
    try:
        schema = without_null_keywords(schema) if isinstance(schema, Mapping) else None
    except RecursionError:
        raise ToolDefinitionError(f"tool {name!r}: parameters is nested too deeply.") from None
    kind = None if schema is None else schema.get("type", "object")
    if schema is None or not (kind == "object" or (isinstance(kind, list) and "object" in kind)):
        raise ToolDefinitionError(f"tool {name!r}: parameters is {given[0]!r:.200}; {rule}")
    if problem := schema_problem(schema):
        raise ToolDefinitionError(f"tool {name!r}: parameters {problem}")
    if "properties" not in schema and (odd := _not_in_properties(schema)):
        raise ToolDefinitionError(
            f"tool {name!r}: parameters has {odd!r} and no properties; {rule}"
        )
    properties, required = schema.get("properties", {}), schema.get("required", [])
    for wanted in required:
        if wanted not in properties:
            raise ToolDefinitionError(
                f"tool {name!r}: required names {wanted!r}, which is none of its properties "
                f"({', '.join(properties) or 'none'})."
            )
    definitions: Schema = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return tuple(
        _parameter(name, key, sub, definitions, key in required) for key, sub in properties.items()
    )


def _not_in_properties(schema: Schema) -> str | None:
    """Return the first key of a schema that may describe parameters outside of `properties`."""
    known = (*Draft202012Validator.VALIDATORS, "$defs", "definitions", "default", "const", "title")
    return next(
        (
            key
            for key, value in schema.items()
            if key in _UNIONS or (isinstance(value, Mapping) and key not in known)
        ),
        None,
    )


def _parameter(
    tool_name: str, name: str, schema: Any, definitions: Schema, required: bool
) -> Parameter:
    if not isinstance(schema, Mapping):  # `true`: anything
        schema = {}
    whole = {**schema, **definitions}
    lost = lost_reference(whole)
    try:
        shown = {} if lost else simplified(whole)
    except KeyError as error:  # it leads to a place that has no name
        lost = str(error)
    if lost:
        raise ToolDefinitionError(
            f"tool {tool_name!r}: parameter {name!r} refers to {lost:.200}, which is not in $defs."
        )
    validator = bounded_validator(whole, _PATTERN_TIMEOUT_S)

    def fits(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):  # no bound excludes NaN
            wrong = f"{value} is not a JSON number"
        else:
            wrong = _mismatch(validator, value)
        if wrong:
            raise PydanticCustomError("schema", "{text}", {"text": wrong[:_MAX_SHOWN]})
        return value

    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[Any, AfterValidator(fits)])
    return Parameter(name, required, shown, adapter, schema.get("default"))


def _mismatch(validator: Any, value: Any) -> str:
    """How a value does not fit a schema; "" if it does."""
    try:
        wrong = best_match(validator.iter_errors(value))
    except TimeoutError:
        return "a pattern of the schema takes too long on it; give something simpler"
    except RecursionError:
        return "it is nested too deeply"
    if wrong is None:
        return ""
    where = wrong.json_path.removeprefix("$")
    return f"{where}: {wrong.message}" if where else wrong.message
