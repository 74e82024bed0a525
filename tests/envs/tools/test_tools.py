"""@tool: what a policy is shown of a function, and which functions cannot be tools."""

import asyncio
import functools
import json
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from gymnast.envs import Environment, tool
from gymnast.errors import ConfigError, ToolDefinitionError
from gymnast.lookup import imported


class Color(Enum):
    red = "red"
    blue = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


@dataclass
class Box:
    corner: Point
    name: str


class Options(TypedDict, total=False):
    depth: int


class Node(BaseModel):
    value: int
    children: list["Node"] = []


def parameters_of(function: Any) -> dict[str, Any]:
    schema = Environment.from_tools([function])().tools[0]["function"]["parameters"]
    json.dumps(schema)
    assert "$ref" not in json.dumps(schema) and "title" not in schema
    return schema  # type: ignore[no-any-return]


def test_a_schema_comes_from_type_hints_and_the_docstring() -> None:
    class Shop(Environment):
        @tool
        def search(self, query: str, limit: int = 10, exact: bool = False) -> list[str]:
            """Search the catalogue.

            Every word counts.

            Args:
                query: What to look for,
                    in plain words.
                limit (int): How many results.

            Returns:
                The names found.
            """
            return []

    assert Shop().tools == [
        {
            "type": "function",
            "function": {
                "name": "search",
                "description": "Search the catalogue.\n\nEvery word counts.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "query": {
                            "type": "string",
                            "description": "What to look for, in plain words.",
                        },
                        "limit": {
                            "type": "integer",
                            "description": "How many results.",
                            "default": 10,
                        },
                        "exact": {"type": "boolean", "default": False},
                    },
                    "required": ["query"],
                },
            },
        }
    ]


def test_a_marked_function_can_still_be_called() -> None:
    class Doubler(Environment):
        @tool(timeout_s=1)
        def double(self, a: int) -> int:
            """Double a number."""
            return 2 * a

    assert Doubler().double(4) == 8


def test_rich_types_become_plain_schemas() -> None:
    def draw(
        color: Color,
        mode: Literal["fill", "line"],
        only: Literal["x"],
        where: Optional[Point],  # noqa: UP045
        boxes: list[Box],
        options: Options,
        tags: dict[str, float],
        pair: tuple[int, str],
        either: int | str,
        size: Annotated[int, Field(gt=0, description="In pixels.")] = 1,
        title: str | None = None,
    ) -> None:
        """Draw."""

    found = parameters_of(draw)["properties"]
    point = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    }
    assert found["color"] == {"type": "string", "enum": ["red", "blue"]}
    assert found["mode"] == {"type": "string", "enum": ["fill", "line"]}
    assert found["only"] == {"type": "string", "enum": ["x"]}
    assert found["where"] == {**point, "nullable": True}
    assert found["boxes"]["items"]["properties"] == {"corner": point, "name": {"type": "string"}}
    assert found["options"]["properties"] == {"depth": {"type": "integer"}}
    assert found["tags"] == {"type": "object", "additionalProperties": {"type": "number"}}
    assert [item["type"] for item in found["pair"]["prefixItems"]] == ["integer", "string"]
    assert found["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert found["size"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "description": "In pixels.",
        "default": 1,
    }
    assert found["title"] == {"type": "string", "nullable": True}


def test_a_recursive_type_has_a_finite_schema() -> None:
    def grow(root: Node) -> int:
        """Grow a tree."""
        return root.value

    children = parameters_of(grow)["properties"]["root"]["properties"]["children"]
    assert children["items"] == {"type": "object"}


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    def now() -> str:
        """Tell the time."""
        return ""

    assert parameters_of(now) == {"type": "object", "properties": {}}


def test_subclasses_inherit_and_replace_tools() -> None:
    class Base(Environment):
        @tool
        def first(self) -> str:
            """Be first."""
            return "base"

    class Sub(Base):
        @tool
        def second(self) -> str:
            """Be second."""
            return ""

        @tool
        def first(self) -> str:
            """Be first, again."""
            return "sub"

    names = [schema["function"]["name"] for schema in Sub().tools]
    assert names == ["first", "second"]
    assert Sub().tools[0]["function"]["description"] == "Be first, again."


def no_docstring(a: int) -> int:
    return a


def no_hint(a) -> int:  # type: ignore[no-untyped-def]
    """Take one."""
    return a  # type: ignore[no-any-return]


def many(*values: int) -> int:
    """Take many."""
    return len(values)


def not_json(connection: type(pytest)) -> int:  # type: ignore[valid-type]
    """Take a module."""
    return 0


def stale_docstring(a: int) -> int:
    """Take one.

    Args:
        number: The old name.
    """
    return a


def undefined_hint(a: "Undefined") -> int:  # type: ignore[name-defined]  # noqa: F821
    """Take something."""
    return 0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_docstring, ["no_docstring", "docstring", "Add one"]),
        (no_hint, ["no_hint", "'a'", "type hint", "a: int"]),
        (many, ["many", "*values", "by name"]),
        (not_json, ["not_json", "'connection'", "JSON", "dataclass"]),
        (stale_docstring, ["stale_docstring", "'number'", "Args"]),
        (undefined_hint, ["undefined_hint", "Undefined", "import"]),
        (lambda a: a, ["lambda", "def"]),
    ],
)
def test_a_tool_that_cannot_be_described_fails_before_any_run(
    function: Any, words: list[str]
) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        Environment.from_tools([function])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("folder", "said"),
    [("", " It stands in own.py, line 3."), ("below", " It stands in {here}/own.py, line 3.")],
)
def test_where_a_tool_stands_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, said: str
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / folder)
    file = tmp_path / "own.py"
    file.write_text("import math\n\ndef double(n):\n    'Double.'\n")
    double = imported(f"{file}:double")
    wrapped = functools.wraps(double)(lambda *given: double(*given))
    for function in (double, wrapped):
        with pytest.raises(ToolDefinitionError) as caught:
            Environment.from_tools([function])
        assert str(caught.value).endswith("`n: int`." + said.format(here=tmp_path))


def test_nothing_is_said_of_where_a_tool_stands_that_no_file_has() -> None:
    names: dict[str, Any] = {}
    exec("def double(n):\n    'Double.'\n", names)
    with pytest.raises(ToolDefinitionError, match=r"`n: int`\.$"):
        Environment.from_tools([names["double"]])


def test_functions_are_given_as_a_list() -> None:
    with pytest.raises(ToolDefinitionError, match="list of functions"):
        Environment.from_tools(many)  # type: ignore[arg-type]


def test_a_method_without_a_docstring_fails_when_its_class_is_defined() -> None:
    with pytest.raises(ToolDefinitionError, match=r"Broken: tool 'search' has no docstring"):

        class Broken(Environment):
            @tool
            def search(self, query: str) -> str:
                return query


def test_tools_may_be_static_and_class_methods_marked_above_or_below() -> None:
    class Fruits(Environment):
        name = "fruits"

        @tool
        @staticmethod
        def one(a: int) -> int:
            """Mark above a static method."""
            return a

        @staticmethod
        @tool
        def two(a: int) -> int:
            """Mark below it."""
            return 2 * a

        @tool
        @classmethod
        def three(cls, a: int) -> str:
            """Mark above a class method."""
            return cls.name * a

        @classmethod
        @tool(stop=True)
        def four(cls, a: int) -> str:
            """Mark below it."""
            return cls.name * a

    env = Fruits()
    assert [schema["function"]["name"] for schema in env.tools] == ["one", "two", "three", "four"]
    assert {tuple(schema["function"]["parameters"]["required"]) for schema in env.tools} == {("a",)}
    call = {"id": "x", "function": {"name": "four", "arguments": {"a": 2}}}
    env.reset(options={"row": {"prompt": "Go."}})
    outcome = asyncio.run(env.act({"role": "assistant", "tool_calls": [call]}))
    assert outcome.messages[0]["content"] == "fruitsfruits" and outcome.terminated


@pytest.mark.parametrize("kind", [property, functools.cached_property])
@pytest.mark.parametrize("mark_is_above", [True, False])
def test_a_property_cannot_be_a_tool(kind: Any, mark_is_above: bool) -> None:
    def size(self: Any) -> int:
        """Tell the size."""
        return 1

    with pytest.raises(ToolDefinitionError, match=f"'size' is a property. Drop @{kind.__name__}"):
        attribute = tool(kind(size)) if mark_is_above else kind(tool(size))
        type("Box", (Environment,), {"size": attribute})


def test_a_method_without_self_cannot_be_a_tool() -> None:
    with pytest.raises(ToolDefinitionError) as caught:

        class Shop(Environment):
            @tool
            def price(fruit: str) -> int:  # type: ignore[misc]
                """Look up a price."""
                return len(fruit)

    for word in ("'price'", "fruit, not self", "def price(self, fruit: str)", "@staticmethod"):
        assert word in str(caught.value)
    with pytest.raises(ToolDefinitionError, match=r"missing, not self.*def now\(self\)"):

        class Clock(Environment):
            @tool
            def now() -> str:  # type: ignore[misc]
                """Tell the time."""
                return ""


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        (lambda: tool(stopp=True), "no option 'stopp'. Did you mean 'stop'?"),  # type: ignore
        (lambda: tool(name="x"), "It takes: stop, timeout_s, max_output_tokens, concurrent."),  # type: ignore
        (lambda: tool("price"), "marks functions, and was given 'price'"),  # type: ignore
        (lambda: tool(Color), "Color is a class"),
        (lambda: tool(stop="yes"), "stop must be True or False, got 'yes'"),  # type: ignore
        (lambda: tool(timeout_s="5"), "timeout_s must be > 0, got '5'"),  # type: ignore
        (lambda: tool(timeout_s=True), "timeout_s must be > 0, got True"),
        (lambda: tool(max_output_tokens=1.5), "max_output_tokens must be >= 1, got 1.5"),  # type: ignore
    ],
)
def test_a_wrong_use_of_the_mark_says_what_is_right(mark: Any, words: str) -> None:
    with pytest.raises(ToolDefinitionError, match=re.escape(words)):
        mark()


def test_a_tool_cannot_take_the_place_of_a_method_of_environments() -> None:
    with pytest.raises(ToolDefinitionError, match=r"replace .*step"):

        class Broken(Environment):
            @tool
            def step(self, direction: str) -> str:  # type: ignore[override]
                """Go one step."""
                return direction


def test_an_attribute_that_hides_a_tool_is_an_error() -> None:
    class Hidden(Environment):
        @tool
        def notes(self) -> str:
            """Read the notes."""
            return ""

        def __init__(self) -> None:
            super().__init__()
            self.notes = []  # type: ignore[assignment, method-assign]

    with pytest.raises(ToolDefinitionError, match=r"'notes' is hidden"):
        Hidden().reset(options={"row": {"prompt": "Go."}})


def test_options_out_of_range_are_errors() -> None:
    with pytest.raises(ToolDefinitionError, match="timeout_s must be > 0, got 0"):
        tool(timeout_s=0)
    with pytest.raises(ToolDefinitionError, match="max_output_tokens must be >= 1, got 0"):
        tool(max_output_tokens=0)


def test_only_async_tools_can_be_concurrent() -> None:
    @tool(concurrent=True)
    def slow(a: int) -> int:
        """Be slow."""
        return a

    with pytest.raises(ToolDefinitionError, match="async def"):
        Environment.from_tools([slow])


def test_stop_tools_that_do_not_exist_are_named_with_the_nearest() -> None:
    def final_answer(text: str) -> str:
        """Answer."""
        return text

    made = Environment.from_tools([final_answer])
    with pytest.raises(ConfigError, match=r"'finalanswer'.*mean 'final_answer'"):
        made(stop_tools=["finalanswer"])
    with pytest.raises(ConfigError, match=r"\['final_answer'\]"):
        made(stop_tools="final_answer")
