"""Example arguments: whatever a schema asks for, or an honest no."""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from gymnast.envs.checking.example_arguments import NoExample, example_arguments
from gymnast.envs.tools.definition import define_tool
from gymnast.envs.tools.json_schema import tool_of_schema
from gymnast.envs.tools.marks import ToolOptions
from gymnast.envs.tools.validation import bind_arguments


class Color(Enum):
    red = "red"


class Point(BaseModel):
    x: Annotated[int, Field(gt=3, lt=5)]
    tags: Annotated[list[Annotated[str, Field(min_length=9)]], Field(min_length=2)]
    note: str = "?"


class Node(BaseModel):
    value: int
    children: list["Node"]


def tool_of(function: Callable[..., Any]) -> Any:
    return define_tool(function, name="go", options=ToolOptions())


@pytest.mark.parametrize(
    "hint",
    [
        int,
        float,
        str,
        bool,
        list[int],
        dict[str, float],
        tuple[int, str],
        set[str],
        Any,
        Color,
        Literal["a", 2],
        Point | None,
        Point,
        Node,
        date,
        datetime,
        timedelta,
        UUID,
        int | str,
        None,
        list[Point],
        Annotated[float, Field(gt=0.5, lt=0.6)],
        Annotated[int, Field(ge=7, multiple_of=5)],
        Annotated[int, Field(le=-7)],
        Annotated[str, Field(min_length=30, max_length=31)],
        Annotated[str, Field(max_length=2)],
        Annotated[str, Field(pattern="^[A-Z]+$")],
        Annotated[set[Color], Field(min_length=1)],
        Annotated[dict[str, int], Field(min_length=1)],
    ],
)
def test_a_type_has_an_example_that_its_tool_takes(hint: Any) -> None:
    def go(value, more=3):  # type: ignore[no-untyped-def]
        """Go."""

    go.__annotations__ = {"value": hint, "more": int}
    tool = tool_of(go)
    arguments = example_arguments(tool)
    assert list(arguments) == ["value"]  # what need not be given is left out
    bind_arguments(tool, arguments)


def test_where_no_value_is_found_the_parameter_and_its_rule_are_named() -> None:
    def go(code: Annotated[str, Field(pattern="^[A-Z]{3}-[0-9]{9}$")]) -> None:
        """Go."""

    with pytest.raises(NoExample, match=r"no value .* code: str with the pattern .\^\[A-Z\]"):
        example_arguments(tool_of(go))


BOUNDS = st.integers(-1000, 1000)
LEAVES = st.one_of(
    st.builds(
        lambda a, b: {"type": "integer", "minimum": a, "maximum": a + abs(b)}, BOUNDS, BOUNDS
    ),
    st.builds(lambda n: {"type": "number", "exclusiveMinimum": n}, BOUNDS),
    st.builds(
        lambda n, m: {"type": "string", "minLength": n, "maxLength": n + m},
        st.integers(0, 30),
        st.integers(0, 5),
    ),
    st.just({"type": "boolean"}),
    st.just({}),
    st.lists(st.text(), min_size=1).map(lambda values: {"enum": values}),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda items, n: {"type": "array", "items": items, "minItems": n},
            inner,
            st.integers(0, 4),
        ),
        st.dictionaries(st.text(min_size=1), inner, max_size=3).map(
            lambda fields: {"type": "object", "properties": fields, "required": list(fields)}
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=8,
)


@given(SCHEMAS)
def test_every_schema_without_a_pattern_has_an_example(schema: Any) -> None:
    parameters = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
    tool = tool_of_schema({"name": "go", "description": "Go.", "parameters": parameters})
    bind_arguments(tool, example_arguments(tool))
