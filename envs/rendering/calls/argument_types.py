"""The types of arguments that a template writes as bare text, from the tool's JSON schema.

A template that writes `<parameter=x>22</parameter>` or `x="22"` means a number where the schema
asks for one, and a string where it asks for that. No value is converted to fit: one of the wrong
type is passed on as it is, for the tool's validation (`tools/validation.py`) to answer.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gymnast.envs.rendering.calls.literals import read_literal
from gymnast.envs.rendering.calls.payloads import Malformed, read_json

_NAMES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_ALL = frozenset(_NAMES.values())


def typed(text: str, schema: Mapping[str, Any] | None) -> Any:
    """The value that a raw text stands for.

    Args:
        text: The argument as written, without quotes that the template adds.
        schema: The parameter's JSON schema, as far as it is known. Where it gives no type, or a
            `$ref`, any type is allowed.

    Returns:
        The text itself where only a string is allowed, whatever it looks like. Otherwise the JSON
        or Python literal that it spells, if its type is allowed or no string is. Otherwise the
        text, its own quotes included.
    """
    allowed = types(schema)
    if allowed == {"string"}:
        return text
    try:
        value = _literal(text)
    except Malformed:
        return text
    if "string" not in allowed:
        return value
    # A string has no quotes here: those that it has are its own.
    return text if isinstance(value, str) or not _fits(value, allowed) else value


def types(schema: Any) -> frozenset[str]:
    """The names of the JSON types that a schema allows; "number" without "integer" is a float."""
    if not isinstance(schema, Mapping) or "$ref" in schema:
        return _ALL
    allowed = _own_types(schema)
    for union in ("anyOf", "oneOf"):
        if options := _options(schema, union):
            allowed &= frozenset[str]().union(*map(types, options))
    for part in _options(schema, "allOf"):
        allowed &= types(part)
    return allowed | {"null"} if schema.get("nullable") is True else allowed


def property_schema(schema: Any, key: str) -> Mapping[str, Any] | None:
    """The schema of one key of an object, as far as it is known."""
    for part in _parts(schema):
        properties = part.get("properties")
        if isinstance(properties, Mapping) and isinstance(properties.get(key), Mapping):
            return dict(properties[key])
    for part in _parts(schema):
        if isinstance(part.get("additionalProperties"), Mapping):
            return dict(part["additionalProperties"])
    return None


def items_schema(schema: Any) -> Mapping[str, Any] | None:
    """The schema of a list's items, as far as it is known."""
    for part in _parts(schema):
        if isinstance(part.get("items"), Mapping) and "prefixItems" not in part:
            return dict(part["items"])
    return None


def _literal(text: str) -> Any:
    stripped = text.strip()
    try:
        value, end = read_json(stripped, 0)
    except Malformed:
        return read_literal(stripped)
    if end != len(stripped) or value in (float("inf"), float("-inf")):
        return read_literal(stripped)
    return value


def _fits(value: Any, allowed: frozenset[str]) -> bool:
    name = "object" if isinstance(value, dict) else _NAMES[type(value)]
    return name in allowed or (name == "integer" and "number" in allowed)


def _own_types(schema: Mapping[str, Any]) -> frozenset[str]:
    kind = schema.get("type")
    if isinstance(kind, str | list):
        names = [kind] if isinstance(kind, str) else kind
        return frozenset(str(name).lower() for name in names) & _ALL or _ALL
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return frozenset(_NAMES.get(type(value), "string") for value in values)
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else _ALL


def _options(schema: Mapping[str, Any], key: str) -> list[Any]:
    options = schema.get(key)
    return options if isinstance(options, list) else []


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema, and every schema that it is a union or an intersection of."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for key in ("anyOf", "oneOf", "allOf"):
        for option in _options(schema, key):
            yield from _parts(option)
