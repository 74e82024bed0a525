"""Bugs of a tool: told to its author once, counted, and never the end of a run."""

import ast
import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from gymnast.envs import Environment, tool


class Item(BaseModel):
    name: str


class Desk(Environment):
    """Tools with bugs, and tools that only look as if they had some."""

    @tool
    def price(self, fruit: str) -> int:
        """Misses an attribute."""
        return self.prices[fruit]  # type: ignore[attr-defined, no-any-return]

    @tool
    async def later(self, fruit: str) -> int:
        """Misses a name, later."""
        return prices[fruit]  # type: ignore[name-defined, no-any-return]  # noqa: F821

    @tool
    def load(self) -> str:
        """Misses a module."""
        import no_such_module_anywhere  # type: ignore[import-not-found]

        return str(no_such_module_anywhere)

    @tool
    def half(self, numbers: list[int]) -> float:
        """Divides a list."""
        return numbers / 2  # type: ignore[operator]

    @tool
    def total(self) -> int:
        """Is not written yet."""
        raise NotImplementedError

    @tool
    def corner(self, at: set[tuple[str, str]]) -> str:
        """Misses an attribute; its argument is no JSON any more."""
        return str(self.corners)  # type: ignore[attr-defined]

    @tool
    def lines(self, names: list[str]) -> Iterator[int]:
        """Misses a key while it yields."""
        for name in names:
            yield {"plum": 2}[name]

    @tool
    def photo(self) -> Any:
        """Returns what JSON cannot hold."""
        return np.zeros((4, 4, 3), dtype=np.uint8)

    @tool
    def look_up(self, shelf: dict[str, int], fruit: str) -> int:
        """Misses a key: the model named it."""
        return shelf[fruit]

    @tool
    def attribute(self, item: Item, name: str) -> str:
        """Misses an attribute that the model named."""
        return str(getattr(item, name))

    @tool
    def module(self, name: str) -> str:
        """Misses a module that the model named."""
        return str(importlib.import_module(name))

    @tool
    def calculate(self, expression: str) -> str:
        """Runs what the model wrote."""
        return str(eval(expression))

    @tool
    def literal(self, text: str) -> str:
        """Reads what the model wrote."""
        return str(ast.literal_eval(text))

    @tool
    def run(self, code: str) -> str:
        """Runs what the model wrote, which calls a library."""
        exec(compile(code, "<code>", "exec"))
        return "done"

    @tool
    def count(self, things: list[Any]) -> int:
        """Raises on purpose."""
        if not all(isinstance(thing, str) for thing in things):
            raise TypeError("give strings")
        return len(things)


BUGS = [
    ("price", {"fruit": "pear"}, "AttributeError: 'Desk' object has no attribute 'prices'"),
    ("later", {"fruit": "pear"}, "NameError: name 'prices' is not defined"),
    ("load", {}, "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
    ("half", {"numbers": [1]}, "TypeError: unsupported operand"),
    ("total", {}, "NotImplementedError"),
    ("corner", {"at": [["a", "b"]]}, "AttributeError: 'Desk' object has no attribute 'corners'"),
    ("photo", {}, "a result of type numpy.ndarray is an image"),
]
ANSWERS = [
    ("look_up", {"shelf": {}, "fruit": "pear"}, "KeyError: 'pear'"),
    ("attribute", {"item": {"name": "pear"}, "name": "colour"}, "AttributeError"),
    ("module", {"name": "nowhere.at_all"}, "ModuleNotFoundError"),
    ("calculate", {"expression": "pear + 1"}, "NameError"),
    ("calculate", {"expression": "[] + 1"}, "TypeError"),
    ("calculate", {"expression": "1 +"}, "SyntaxError"),
    ("literal", {"text": "1 +"}, "SyntaxError"),
    ("run", {"code": "import json; json.dumps(object())"}, "TypeError"),
    ("lines", {"names": ["pear"]}, "KeyError: 'pear'"),
    ("count", {"things": [1]}, "TypeError: give strings"),
]


@pytest.mark.parametrize(("name", "arguments", "words"), BUGS)
def test_a_bug_is_told_to_the_author_with_the_traceback_and_the_row(
    name: str,
    arguments: Any,
    words: str,
    calls: Callable[..., Any],
    play: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Fresh(Desk):  # of which nobody has been told anything
        pass

    Fresh.__name__ = "Desk"
    row = {"prompt": "Buy.", "number": 7}
    outcome, last = play(Fresh(), calls((name, arguments)), calls(content="Hm."), row=row)
    (error,) = outcome.info["errors"]
    assert error.kind == "bug" and words in outcome.messages[0]["content"]
    assert outcome.messages[0]["content"].startswith(f"Error: {name}: ")
    assert not outcome.terminated and not outcome.truncated
    assert last.info["metrics"]["tools/errors/bug"] == 1.0
    assert last.info["metrics"][f"tools/failures/{name}"] == 1.0
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelno == logging.WARNING
    assert said.startswith(f"Desk.{name} has a bug") and "'number': 7" in said and words in said
    if name != "photo":  # whose code ended well
        first, frame, *_ = error.traceback.splitlines()
        assert first == "Traceback (most recent call last):"
        assert f'{__file__}"' in frame and frame.endswith(f"in {name}")
        assert said.endswith(error.traceback)


@pytest.mark.parametrize(("name", "arguments", "words"), ANSWERS)
def test_what_the_arguments_explain_is_told_to_the_model_alone(
    name: str,
    arguments: Any,
    words: str,
    calls: Callable[..., Any],
    play: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome = play(Desk(), calls((name, arguments)))[0]
    (error,) = outcome.info["errors"]
    assert (error.kind, error.traceback) == ("exception", "")
    assert words in outcome.messages[0]["content"] and not caplog.records


def test_a_bug_is_told_once_for_each_tool_and_kind_of_exception(
    calls: Callable[..., Any], play: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Shop(Environment):
        @tool
        def price(self, fruit: str) -> Any:
            """Fails in one way or another."""
            return len(5) if fruit == "pear" else self.none  # type: ignore

        @tool
        def weight(self) -> Any:
            """Fails too."""
            return self.none  # type: ignore[attr-defined]

    pear, plum = ("price", {"fruit": "pear"}), ("price", {"fruit": "plum"})
    for _ in range(2):  # of environments there are many in a run
        outcome = play(Shop(), calls(pear, plum, pear), calls(plum, ("weight", {})))[1]
        assert len(outcome.info["errors"]) == 2
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(" ")[0] for text in said] == ["Shop.price"] * 2 + ["Shop.weight"]
