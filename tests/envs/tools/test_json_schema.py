"""Tools from JSON schemas: what is shown to the policy, and what its arguments must be."""

from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.records.arguments import BadArguments
from gymnast.envs.tools.json_schema import tool_of_schema
from gymnast.envs.tools.validation import bind_arguments
from gymnast.errors import ToolDefinitionError


def described(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, **more}
    return {"name": "go", "description": "Go.", "parameters": parameters}


def test_the_shape_of_openai_is_taken_bare_or_wrapped() -> None:
    function = described({"n": {"type": "integer"}}, required=["n"])
    bare, wrapped = tool_of_schema(function), tool_of_schema({"function": function})
    assert bare.schema == wrapped.schema == {"type": "function", "function": function}
    assert bare.signature == "go(n: int)"


CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "function", "function": {"name": "go", "description": "Go.", "strict": True,
         "parameters": {**CITY, "additionalProperties": False}}},
        {"type": "function", "name": "go", "description": "Go.", "parameters": CITY},
        {"name": "go", "description": "Go.", "parameters": CITY, "return": {"type": "string"}},
        {"name": "go", "description": "Go.", "parameters": {**CITY, "type": ["object"]}},
        {"name": "go", "description": "Go.", "parameters": {**CITY, "type": ["object", "null"]}},
        {"type": "custom", "name": "go", "description": "Go.", "input_schema": CITY},
        {"name": "go", "title": "Go", "description": "Go.", "inputSchema": CITY,
         "outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
        {"type": "function", "name": None, "function": {"name": "go", "description": "Go.",
         "parameters": CITY, "input_schema": None, "unknown": None}},
        {"function": None, "name": "go", "description": "Go.", "parameters": CITY},
    ],
)  # fmt: skip
def test_tools_of_other_libraries_are_taken(given: dict[str, Any]) -> None:
    """OpenAI's two APIs, transformers, Anthropic, MCP, and tables with all of their fields."""
    expected = tool_of_schema(described(CITY["properties"], required=["city"]))
    assert tool_of_schema(given).schema == expected.schema


@pytest.mark.parametrize("described_as", [{}, {"description": None}, {"description": ""}])
def test_a_tool_may_have_no_description(described_as: dict[str, Any]) -> None:
    tool = tool_of_schema({"name": "go", "parameters": CITY, **described_as})
    assert tool.schema["function"] == {"name": "go", "description": "", "parameters": CITY}


@pytest.mark.parametrize("parameters", [{}, {"parameters": None}, {"parameters": {}}])
def test_a_tool_may_have_no_parameters(parameters: dict[str, Any]) -> None:
    tool = tool_of_schema({"name": "go", **parameters})
    assert tool.parameters == ()
    assert tool.schema["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "go", "paramters": CITY}, ["'paramters'", "'parameters'"]),
        ({"name": "go", "description": 3}, ["description is 3"]),
        ({"type": "web_search", "name": "go"}, ["'web_search'"]),
        ({"name": "go", "parameters": CITY, "input_schema": {}}, ["parameters and input_schema"]),
        ({"name": "go", "parameters": CITY["properties"]}, ["'city'", "properties"]),
        ({"name": "go", "parameters": {"anyOf": [CITY, CITY]}}, ["'anyOf'", "properties"]),
        ({"name": "go", "parameters": {"$ref": "#/$defs/A", "$defs": {"A": CITY}}}, ["'$ref'"]),
        ({"name": "go", "parameters": {"type": ["string", "null"]}}, ["JSON schema of an object"]),
        ({"function": 3}, ["JSON object"]),
    ],
)
def test_what_is_ambiguous_is_refused(given: dict[str, Any], words: list[str]) -> None:
    """None of these loses its parameters without a word."""
    with pytest.raises(ToolDefinitionError) as caught:
        tool_of_schema(given)
    for word in words:
        assert word in str(caught.value)


def test_a_list_of_one_type_is_shown_as_that_type() -> None:
    inner = {"type": ["object"], "properties": {"x": {"type": ["string"]}}}
    shown = tool_of_schema(described({"o": inner})).schema["function"]["parameters"]["properties"]
    assert shown == {"o": {"type": "object", "properties": {"x": {"type": "string"}}}}


# Nulls that tables add


TEXTS = st.sampled_from(["a", "b", "c"])
PLAIN = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "boolean"])},
    optional={
        "description": TEXTS,
        "enum": st.lists(TEXTS | st.none(), min_size=1, max_size=3),
        "default": TEXTS,
        "const": TEXTS,
        "minimum": st.integers(0, 9),
    },
).filter(lambda schema: not {"enum", "const"} <= schema.keys())
NAMES = st.sampled_from(["city", "unit", "const", "default", "enum"])
OBJECT = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(NAMES, PLAIN, max_size=3)},
    optional={"description": TEXTS, "additionalProperties": st.booleans()},
)
LISTS = st.fixed_dictionaries({"type": st.just("array"), "items": OBJECT | PLAIN})
PROPERTIES = st.dictionaries(NAMES, PLAIN | OBJECT | LISTS, min_size=1, max_size=4)


@given(st.lists(PROPERTIES, min_size=1, max_size=3))
def test_schemas_out_of_a_table_are_those_put_into_it(listed: list[dict[str, Any]]) -> None:
    tools = [{"type": "function", "function": described(properties)} for properties in listed]
    tools.append({"type": "function", "function": {"name": "go", "strict": True}})
    table = pyarrow.Table.from_pylist(tools)
    for row, original in zip(table.to_pylist(), tools, strict=True):
        assert tool_of_schema(row).schema == tool_of_schema(original).schema


def test_nulls_that_a_schema_allows_stay() -> None:
    allowed = {
        "e": {"enum": ["a", None]},
        "d": {"type": "object", "default": {"x": None}, "examples": [None]},
        "c": {"const": None},
    }
    tool = tool_of_schema(described(allowed))
    shown = tool.schema["function"]["parameters"]["properties"]
    assert shown == {"e": allowed["e"], "d": allowed["d"], "c": {"enum": [None]}}
    assert bind_arguments(tool, {"e": None, "c": None}) == {"e": None, "c": None}


def test_references_are_replaced_by_what_they_mean() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    tool = tool_of_schema(
        described({"at": {"$ref": "#/$defs/Point"}}, **{"$defs": {"Point": point}})
    )
    assert tool.schema["function"]["parameters"]["properties"] == {"at": point}
    assert bind_arguments(tool, {"at": {"x": 1.5}}) == {"at": {"x": 1.5}}
    with pytest.raises(BadArguments, match=r"argument .at.: \.x: 'far' is not of type"):
        bind_arguments(tool, {"at": {"x": "far"}})


def test_a_list_of_types_is_shown_as_templates_can_follow_it() -> None:
    tool = tool_of_schema(described({"n": {"type": ["integer", "null"]}}))
    shown = tool.schema["function"]["parameters"]["properties"]["n"]
    assert shown == {"type": "integer", "nullable": True}
    assert bind_arguments(tool, {"n": None}) == {"n": None}


def test_what_is_missing_unexpected_or_wrong_is_said() -> None:
    tool = tool_of_schema(described({"n": {"type": "integer", "minimum": 1}}, required=["n"]))
    for arguments, what in (
        ({}, '"n" is missing'),
        ({"n": 1, "m": 2}, 'unexpected argument "m"'),
        ({"n": 0}, "0 is less than the minimum of 1"),
    ):
        with pytest.raises(BadArguments, match=what):
            bind_arguments(tool, arguments)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), "NaN", "Infinity"])
def test_a_number_must_be_one_that_json_has(number: Any) -> None:
    bounds = {"type": "number", "minimum": 0, "maximum": 1}
    for schema in (bounds, {"type": "number"}):
        with pytest.raises(BadArguments):
            bind_arguments(tool_of_schema(described({"x": schema})), {"x": number})


@given(st.integers(), st.text(), st.lists(st.booleans()))
def test_what_fits_comes_as_it_was_written(n: int, s: str, flags: list[bool]) -> None:
    tool = tool_of_schema(
        described(
            {
                "n": {"type": "integer"},
                "s": {"type": "string"},
                "flags": {"type": "array", "items": {"type": "boolean"}},
            }
        )
    )
    arguments = {"n": n, "s": s, "flags": flags}
    assert bind_arguments(tool, arguments) == arguments


@given(st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda v: st.lists(v)))
def test_no_argument_raises_anything_else(value: Any) -> None:
    tool = tool_of_schema(described({"n": {"type": "integer"}}))
    try:
        bound = bind_arguments(tool, {"n": value})
    except BadArguments:
        return
    assert isinstance(bound["n"], int | float)


@pytest.mark.parametrize("pattern", [{"pattern": "^(a|a)*$"}, {"not": {"pattern": "^(a|a)*$"}}])
def test_no_argument_can_make_a_pattern_search_forever(pattern: dict[str, Any]) -> None:
    tool = tool_of_schema(described({"s": {"type": "string", **pattern}}))
    assert bind_arguments(tool, {"s": "b" if "not" in pattern else "a"})
    with pytest.raises(BadArguments, match="a pattern of the schema takes too long"):
        bind_arguments(tool, {"s": "a" * 60 + "b"})


def test_an_argument_may_be_nested_too_deeply_for_its_schema() -> None:
    lists = {"type": "array", "items": {"$ref": "#/$defs/Lists"}}
    tool = tool_of_schema(
        described({"of": {"$ref": "#/$defs/Lists"}}, **{"$defs": {"Lists": lists}})
    )
    assert bind_arguments(tool, {"of": [[], [[]]]}) == {"of": [[], [[]]]}
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    with pytest.raises(BadArguments, match="nested too deeply"):
        bind_arguments(tool, {"of": deep})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:9/Name"},  # though there is a Name in $defs
        {"$dynamicRef": "http://127.0.0.1:9/Name"},
        {"not": {"$ref": "#/properties/other"}},
        {"type": "array", "items": {"$ref": "file:///etc/hostname#/$defs/Name"}},
    ],
)
def test_references_that_lead_out_of_a_schema_are_refused_and_not_followed(
    schema: dict[str, Any],
) -> None:
    more = {"$defs": {"Name": {"type": "string"}}}
    with pytest.raises(ToolDefinitionError, match=r"parameter 's' refers to .*, which is not in"):
        tool_of_schema(described({"s": schema}, **more))
