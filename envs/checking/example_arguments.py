"""Arguments made from a tool's JSON schema, with which `check_env` calls each tool.

Values are plain (1, "text", [], the first of an enum) and stay within the schema's bounds. The
tool's own validator checks each, so an example is never a wrong argument. If no value passes, as
for most patterns, there is no example.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

from gymnast.envs.tools.definition import Parameter, Tool
from gymnast.envs.tools.schema import Schema, type_name

_MAX_ITEMS = 100
_FORMATS = {
    "date": "2024-05-17",
    "date-time": "2024-05-17T12:00:00Z",
    "time": "12:00:00",
    "duration": "PT1H",
    "uuid": "6f1c2b3a-4d5e-4f60-8a7b-9c0d1e2f3a4b",
    "email": "someone@example.org",
    "uri": "https://example.org/",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "path": "file.txt",
    "binary": "text",
}
# Patterns are not interpreted, but one of these may fit.
_TEXTS = (
    "text",
    "a",
    "A",
    "abc",
    "ABC",
    "1",
    "12",
    "123",
    "1234",
    "a1",
    "A1",
    "AB12",
    "a-b",
    "a_b",
)


class NoExample(Exception):
    """No value was found for a parameter, which the message names."""


def example_arguments(tool: Tool) -> dict[str, Any]:
    """One value for each parameter that a call must give.

    Raises:
        NoExample: No value was found for one of them.
    """
    return {p.name: _example(p) for p in tool.parameters if p.required}


def _example(parameter: Parameter) -> Any:
    for value in _values(parameter.schema):
        try:
            parameter.adapter.validate_python(value)
        except Exception:  # the type's own validator may raise anything
            continue
        return value
    schema = parameter.schema
    rule = f" with the pattern {schema['pattern']!r:.60}" if "pattern" in schema else ""
    raise NoExample(f"no value was found for {parameter.name}: {type_name(schema)}{rule}")


def _values(schema: Any) -> Iterator[Any]:
    """Candidates, the plainest first."""
    if not isinstance(schema, Mapping) or not schema:
        yield from ("text", 1, {}, [])
        return
    if "default" in schema:
        yield schema["default"]
    yield from schema.get("examples", ())
    if "enum" in schema:
        yield from schema["enum"]
        return
    if "allOf" in schema:
        merged: Schema = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            merged |= part
        yield from _values(merged)
        return
    for key in ("anyOf", "oneOf"):
        if key in schema:
            rest = {name: value for name, value in schema.items() if name != key}
            for option in schema[key]:
                yield from _values({**rest, **option})
            return
    yield from _OF_TYPE.get(str(schema.get("type")), _anything)(schema)
    if schema.get("nullable"):
        yield None


def _numbers(schema: Schema) -> Iterator[Any]:
    whole = schema["type"] == "integer"
    step = schema.get("multipleOf", 1)
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    yield from (1, 0, step)
    if low is not None:
        yield from (low, low + step, (math.floor(low / step) + 1) * step)
    if high is not None:
        yield from (high, high - step, (math.ceil(high / step) - 1) * step)
    if low is not None and high is not None:
        yield (low + high) // 2 if whole else (low + high) / 2


def _strings(schema: Schema) -> Iterator[str]:
    if schema.get("format") in _FORMATS:
        yield _FORMATS[schema["format"]]
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength")
    for text in _TEXTS:
        yield (text * (shortest // len(text) + 1) if len(text) < shortest else text)[:longest]


def _arrays(schema: Schema) -> Iterator[list[Any]]:
    first = [_first(item) for item in schema.get("prefixItems", ())]
    least = min(schema.get("minItems", 0), _MAX_ITEMS)
    if schema.get("uniqueItems"):
        unique: list[Any] = []
        for value in _values(schema.get("items")):
            unique += [] if value in unique else [value]
        yield unique[: max(1, least)]
    yield first + [_first(schema.get("items"))] * max(0, max(1, least) - len(first))
    yield first
    yield []


def _objects(schema: Schema) -> Iterator[dict[str, Any]]:
    properties = schema.get("properties", {})
    needed = {name: _first(properties.get(name)) for name in schema.get("required", ())}
    yield needed
    # A recursive type ends only with an empty list.
    yield {name: [] if isinstance(value, list) else value for name, value in needed.items()}
    yield {name: _first(sub) for name, sub in properties.items()}
    more = schema.get("additionalProperties")
    yield {**needed, "key": _first(more if isinstance(more, Mapping) else None)}


def _first(schema: Any) -> Any:
    """The first candidate that a part of a schema allows; None where there is none."""
    fits = Draft202012Validator(schema if isinstance(schema, Mapping) else True).is_valid
    return next(filter(fits, _values(schema)), None)


def _anything(schema: Schema) -> Iterator[Any]:
    yield from ("text", 1, {}, [])


_OF_TYPE: dict[str, Any] = {
    "integer": _numbers,
    "number": _numbers,
    "string": _strings,
    "boolean": lambda schema: iter((True, False)),
    "null": lambda schema: iter((None,)),
    "array": _arrays,
    "object": _objects,
}
