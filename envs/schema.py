"""JSON schemas of tool parameters, in the shape that chat templates take.

Pydantic derives the schema of a type hint. Chat templates walk schemas by hand, so what they
cannot follow is rewritten here: `$ref` is replaced by what it refers to, `Optional[X]` becomes X
with `nullable` (the convention of `transformers.utils.get_json_schema`), a one-value `const`
becomes an `enum`, and titles are dropped.
"""

import json
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

Schema = dict[str, Any]

_SIMPLE = {
    "integer": "int",
    "number": "float",
    "string": "str",
    "boolean": "bool",
    "null": "null",
    "array": "list",
    "object": "dict",
}


class _Quiet(GenerateJsonSchema):
    """Without warnings about defaults that JSON cannot hold: these are left out."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


def json_schema(adapter: TypeAdapter[Any]) -> Schema:
    """The schema of one parameter's type.

    Raises:
        pydantic.errors.PydanticInvalidForJsonSchema: JSON has no such type.
    """
    raw = adapter.json_schema(schema_generator=_Quiet)
    return _simplify(raw, raw.get("$defs", {}), ())


def _simplify(schema: Any, definitions: Schema, inside: tuple[str, ...]) -> Any:
    """Rewrite one (sub)schema; `inside` names the references being replaced around it."""
    if not isinstance(schema, dict):  # `additionalProperties: true`
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        if name in inside:  # a recursive type has no finite expansion
            return {"type": "object"}
        target = _simplify(definitions[name], definitions, (*inside, name))
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return target | _simplify(own, definitions, inside)
    out: Schema = {}
    for key, value in schema.items():
        if key in ("title", "$defs", "discriminator") or (key == "default" and value is None):
            continue
        if key in ("properties", "patternProperties"):
            out[key] = {name: _simplify(sub, definitions, inside) for name, sub in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            out[key] = [_simplify(sub, definitions, inside) for sub in value]
        elif key in ("items", "additionalProperties"):
            out[key] = _simplify(value, definitions, inside)
        elif key == "const":
            out["enum"] = [value]
        else:
            out[key] = value
    return _without_null(out)


def _without_null(schema: Schema) -> Schema:
    """Write `anyOf: [X, null]` as X with `nullable`."""
    options = schema.get("anyOf")
    if options is None or {"type": "null"} not in options:
        return schema
    rest = [option for option in options if option != {"type": "null"}]
    outer = {key: value for key, value in schema.items() if key != "anyOf"}
    inner = rest[0] if len(rest) == 1 else {"anyOf": rest}
    return {**inner, **outer, "nullable": True}


def type_name(schema: Schema) -> str:
    """A schema in a few characters, for messages to the policy: `int`, `list[str]`, `"a" | "b"`."""
    name = _bare_type_name(schema)
    return f"{name} | null" if schema.get("nullable") else name


def _bare_type_name(schema: Schema) -> str:
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(type_name(option) for option in schema[key]))
    kind = schema.get("type")
    if kind == "array" and isinstance(schema.get("items"), dict) and schema["items"]:
        return f"list[{type_name(schema['items'])}]"
    if kind == "array" and "prefixItems" in schema:
        return "[" + ", ".join(type_name(item) for item in schema["prefixItems"]) + "]"
    if kind == "object" and schema.get("properties"):
        required = schema.get("required", [])
        fields = (
            f'"{name}"{"" if name in required else "?"}: {type_name(sub)}'
            for name, sub in schema["properties"].items()
        )
        return "{" + ", ".join(fields) + "}"
    return _SIMPLE.get(str(kind), "any")
