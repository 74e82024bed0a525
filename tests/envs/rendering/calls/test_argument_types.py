"""A raw text becomes a value of the type that the tool's schema asks for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.rendering.calls.argument_types import items_schema, property_schema, typed, types

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner | st.text()) | st.dictionaries(st.text(), inner | st.text()),
)


@given(st.text() | st.integers().map(str) | VALUES.map(json.dumps))
def test_a_string_stays_a_string_whatever_it_looks_like(text: str) -> None:
    assert typed(text, STRING) == text
    assert typed(text, {"enum": ["a", "b"]}) == text
    assert typed(text, {"anyOf": [STRING, {"const": "x"}]}) == text


@given(VALUES)
def test_other_values_are_read_as_json_and_as_python(value: Any) -> None:
    assert typed(json.dumps(value), None) == value
    assert typed(f" {value!r}\n", {}) == value


@given(st.text())
def test_no_text_raises_and_what_is_no_literal_is_itself(text: str) -> None:
    for schema in (None, {}, INTEGER, {"type": ["string", "integer"]}, {"type": "array"}):
        value = typed(text, schema)
        assert value == text or not isinstance(value, str) or text.strip()[0] in "'\""


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("22", INTEGER, 22),
        (" 22\n", INTEGER, 22),
        ("two", INTEGER, "two"),
        ("3.5", INTEGER, 3.5),
        ("True", {"type": "boolean"}, True),
        ("false", {"type": "boolean"}, False),
        ("[1, 'x', None]", {"type": "array"}, [1, "x", None]),
        ('{"a": null}', {"type": "object"}, {"a": None}),
        ("{'a': True}", {"properties": {}}, {"a": True}),
        ("null", {"type": "string", "nullable": True}, None),
        ("22", {"type": "string", "nullable": True}, "22"),
        ("None", {"anyOf": [STRING, {"type": "null"}]}, None),
        ("22", {"type": ["string", "integer"]}, 22),
        ('"22"', {"type": ["string", "integer"]}, '"22"'),
        ("2.5", {"type": ["string", "integer"]}, "2.5"),
        ("22", {"type": ["string", "number"]}, 22),
        ("true", {"oneOf": [STRING, {"type": "boolean"}]}, True),
        ("22", {"enum": [22, 23]}, 22),
        ("22", {"enum": ["22", "23"]}, "22"),
        ("22", {"const": "22"}, "22"),
        ("22", {"$ref": "#/$defs/Anything"}, 22),
        ("22", {"allOf": [{"$ref": "#/$defs/Text"}, STRING]}, "22"),
        ("'22'", {}, "'22'"),
        ("007", {}, "007"),
        ("NaN", {}, "NaN"),
        ("1e999", {"type": "number"}, "1e999"),
        ("9" * 5000, {}, "9" * 5000),
        ("[1, 2] and more", {}, "[1, 2] and more"),
        ("__import__('os')", {}, "__import__('os')"),
        ("", INTEGER, ""),
    ],
)
def test_types(text: str, schema: Any, value: Any) -> None:
    assert typed(text, schema) == value
    assert type(typed(text, schema)) is type(value)


@pytest.mark.parametrize("text", ["[" * 10_000, "{'a':" * 10_000, '"' * 9_999, "\\" * 10_000])
def test_hostile_text_is_itself(text: str) -> None:
    assert typed(text, {}) == text


def test_the_schema_of_a_part_is_found_in_unions_too() -> None:
    point = {"type": "object", "properties": {"x": INTEGER}, "additionalProperties": STRING}
    assert property_schema(point, "x") == INTEGER
    assert property_schema({"anyOf": [{"type": "null"}, point]}, "x") == INTEGER
    assert property_schema(point, "y") == STRING
    assert property_schema({"type": "object"}, "x") is None
    assert (
        items_schema({"anyOf": [{"type": "array", "items": INTEGER}, {"type": "null"}]}) == INTEGER
    )
    assert items_schema({"type": "array"}) is None


def test_a_schema_that_says_nothing_allows_everything() -> None:
    strange: list[Any] = [None, True, {}, {"type": "weird"}, {"type": [{}]}, {"enum": []}]
    for schema in strange:
        assert "string" in types(schema)
        assert "object" in types(schema)
