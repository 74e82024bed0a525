"""What a policy is told of a function: its docstring, and the JSON schemas of its parameters.

Of a docstring the description and the parameters are read, in Google, NumPy or Sphinx style; the
policy does not need the rest, since it sees what a call returns once it has made it.

Pydantic derives the schema of a type hint. Chat templates walk schemas by hand, so what they
cannot follow is rewritten here: `$ref` is replaced by what it refers to, `Optional[X]` becomes X
with `nullable` (the convention of `transformers.utils.get_json_schema`), a one-value `const`
becomes an `enum`, and titles are dropped.
"""

import contextlib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import docstring_parser
from docstring_parser import DocstringMeta, DocstringStyle, ParseError, numpydoc, rest
from docstring_parser.google import GoogleParser, Section, SectionType
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

_NAMED = (  # keywords with schemas by name
    *("properties", "patternProperties", "$defs", "definitions"),
    *("dependentSchemas", "dependentRequired"),
)
_VALUES = ("enum", "const", "default", "examples", "example")  # keywords with values
_NOT_SHOWN = ("title", "$defs", "definitions", "$schema", "discriminator")


class _Quiet(GenerateJsonSchema):
    """Without warnings about defaults that JSON cannot hold: these are left out."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


def json_schema(adapter: TypeAdapter[Any]) -> Schema:
    """The schema of one parameter's type.

    Raises:
        pydantic.errors.PydanticInvalidForJsonSchema: JSON has no such type.
    """
    return simplified(adapter.json_schema(schema_generator=_Quiet))


def simplified(schema: Schema) -> Schema:
    """A schema as chat templates can follow it; see the top of this file.

    Raises:
        KeyError: It refers to what it does not define.
    """
    definitions = schema.get("definitions", {}) | schema.get("$defs", {})
    result: Schema = _simplify(schema, definitions, ())
    return result


def without_null_keywords(schema: Mapping[str, Any]) -> Schema:
    """Return a copy of a schema without keywords and properties that are null.

    No keyword of JSON Schema may be null, but tables (Arrow, Parquet, `datasets`) have one type for
    all schemas of a column, and give each the keys of all others, with null. Values that a schema
    allows may be null, and stay: those in `enum` and `examples`, a `default`, and a `const` unless
    the type excludes null or other keywords were null.
    """
    copy: Schema = {}
    for key, value in schema.items():
        if value is None and key not in ("const", "default"):
            continue
        if key in _NAMED and isinstance(value, Mapping):
            copy[key] = {
                name: _without_null_keywords(part)
                for name, part in value.items()
                if part is not None
            }
        else:
            copy[key] = value if key in _VALUES else _without_null_keywords(value)
    if "const" in copy and copy["const"] is None:
        kind = copy.get("type", "null")
        filled = any(
            value is None and key not in ("const", "default") for key, value in schema.items()
        )
        if filled or not (kind == "null" or (isinstance(kind, list) and "null" in kind)):
            del copy["const"]
    return copy


def _without_null_keywords(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_null_keywords(value)
    return [_without_null_keywords(part) for part in value] if isinstance(value, list) else value


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
        if key in _NOT_SHOWN or (key == "default" and value is None):
            continue
        if key in ("properties", "patternProperties"):
            out[key] = {name: _simplify(sub, definitions, inside) for name, sub in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            out[key] = [_simplify(sub, definitions, inside) for sub in value]
        elif key in ("items", "additionalProperties"):
            out[key] = _simplify(value, definitions, inside)
        elif key == "const":
            out["enum"] = [value]
        elif key == "type" and isinstance(value, list) and len(value) == 1:
            out["type"] = value[0]
        elif key == "type" and isinstance(value, list):
            out["anyOf"] = [{"type": kind} for kind in value]
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


# Google style. Only the entries of parameters are read; the other sections end a description.
_READ = ("Args", "Arguments", "Parameters", "Params")
_SKIPPED = (
    *("Return", "Returns", "Yield", "Yields", "Raises", "Attributes"),
    *("Example", "Examples", "Note", "Notes", "See Also"),
)
_GOOGLE = GoogleParser(
    [Section(title, "param", SectionType.MULTIPLE) for title in _READ]
    + [Section(title, title, SectionType.SINGULAR) for title in _SKIPPED]
)
_WITHOUT_COLON = re.compile(r"^( +)(?=[^\s:][^:\n]*$)", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """What a docstring says of a function.

    Attributes:
        description: The text before the first section or field.
        arguments: The description of each parameter, by name.
    """

    description: str
    arguments: dict[str, str]


def parse_docstring(text: str | None) -> Docstring:
    """Read a docstring in Google, NumPy or Sphinx style; an absent one reads as empty."""
    text = "\n" + inspect.cleandoc(text or "")  # parsers clean again: this keeps indentation
    readings = [_parse_google(text), numpydoc.parse(text)]
    with contextlib.suppress(ParseError, IndexError):  # the latter for a field without a name
        readings.append(rest.parse(text))
    # The style in which most is found is the one it is written in, Google's where nothing is.
    best = max(readings, key=lambda read: (len(read.params), len(_sections(read))))
    arguments = {
        name.strip().lstrip("*"): " ".join((parameter.description or "").split())
        for parameter in best.params
        if parameter.args[0] != "attribute"
        for name in parameter.arg_name.split(",")
    }
    return Docstring((best.description or "").strip(), arguments)


def _parse_google(text: str) -> docstring_parser.Docstring:
    """Read Google style; where a section breaks its rules, without some of it."""
    # A line of an entry may stand where entries do, if it has no colon.
    for source in (text, _WITHOUT_COLON.sub(r"\1    ", text)):
        with contextlib.suppress(ParseError):
            return _GOOGLE.parse(source)
    return _GOOGLE.parse(_GOOGLE.titles_re.split(text, maxsplit=1)[0])


def _sections(read: docstring_parser.Docstring) -> list[DocstringMeta]:
    """The sections or fields; of Sphinx' only those with a known name: `:x:` may be text."""
    sphinx = read.style is DocstringStyle.REST
    return [meta for meta in read.meta if not sphinx or type(meta) is not DocstringMeta]
