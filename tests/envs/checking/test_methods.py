"""check_env names methods that nothing calls: misspelt hooks, and tools without `@tool`."""

from collections.abc import Callable
from typing import Any

import pytest

from gymnast.envs import Environment, Renderer, call, check_env, compose, tool


class Desk(Environment):
    """Has the hooks `sample_row` and `reward`."""

    def sample_row(self, rng: Any) -> Any:
        return {"prompt": "Go."}

    def reward(self, episode: Any) -> float:
        return 0.0


def nothing(self: Any, *given: Any) -> None:
    """What a method of any name is here."""


def odd(renderer: Renderer, **methods: Any) -> tuple[str, ...]:
    return check_env(type("Desk", (Desk,), methods)(renderer)).odd


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("set_up", "setup"),
        ("clean_up", "cleanup"),
        ("turn_rewards", "turn_reward"),
        ("solves", "solve"),
        ("prepare_sandboxes", "prepare_sandbox"),
    ],
)
def test_a_method_that_is_nearly_a_hook_is_odd(name: str, hook: str, renderer: Renderer) -> None:
    said = f"Desk.{name} is no hook of Environment, and the class does not call it; did you mean "
    assert odd(renderer, **{name: nothing}) == (f"{said}{hook}?",)


def test_one_of_a_class_that_is_composed_or_inherited_is_odd(renderer: Renderer) -> None:
    class Stamps:
        def set_up(self, row: Any) -> None: ...

    class Further(Stamps, Environment):
        @tool
        def stamp(self) -> str:
            """Stamp."""
            return "stamped"

    [sentence] = check_env(compose(Desk, Further)(renderer)).odd
    assert sentence.startswith("Stamps.set_up is no hook of Environment")


@tool
def respons(self: Any) -> str:
    """Respond."""
    return "yes"


def sets_up(self: Any, row: Any) -> None:
    [self.set_up(row) for _ in range(1)]


@pytest.mark.parametrize(
    "methods",
    [
        {"respons": respons},
        {"rewards": nothing, "sample_rows": nothing},  # the class has those hooks
        {"set_up": nothing, "setup": sets_up},
        {"clean_up": nothing, "metrics": lambda self, episode: self.clean_up() or {}},
        {"lend": nothing, "_set_up": nothing, "solved": property(nothing)},
    ],
)
def test_tools_and_methods_that_are_called_are_not(
    methods: dict[str, Callable[..., Any]], renderer: Renderer
) -> None:
    assert odd(renderer, **methods) == ()


def test_where_the_check_fails_a_note_names_it(renderer: Renderer) -> None:
    class Misspelt(Environment):
        def sample_row(self, rng: Any) -> Any:
            return {"prompt": "Go."}

        def rewards(self, episode: Any) -> float:
            return 1.0

    with pytest.raises(AssertionError, match="Misspelt has no reward") as failed:
        check_env(Misspelt(renderer))
    assert failed.value.__notes__ == [
        "odd: Misspelt.rewards is no hook of Environment, and the class does not call it; did you "
        "mean reward?"
    ]


class Typed(Desk):
    def price(self, fruit: str) -> int:
        """Look up what a fruit costs."""
        return 3


class Later(Desk):
    async def price(self, fruit: str) -> int:
        """Look up what a fruit costs."""
        return 3


class HalfTyped(Desk):
    def price(self, fruit) -> int:  # type: ignore[no-untyped-def]
        """Look up what a fruit costs."""
        return 3


class Static(Desk):
    @staticmethod
    def price(fruit: str) -> int:
        """Look up what a fruit costs."""
        return 3


@pytest.mark.parametrize("made", [Typed, Later, HalfTyped, Static])
def test_a_forgotten_tool_fails(made: type[Desk], renderer: Renderer) -> None:
    with pytest.raises(
        AssertionError, match=rf"{made.__name__}\.price is no tool.*@tool.*no tools"
    ):
        check_env(made(renderer))


def test_forgotten_tools_fail_next_to_tools(renderer: Renderer) -> None:
    class Market(Environment):
        @tool
        def look(self) -> str:
            """Look around."""
            return "fruits"

        def sell(self, fruit: str, count: int = 1) -> int:
            """Sell fruits."""
            return count

        def recursive(self, depth: int = 0) -> int:
            """Count down."""
            return self.recursive(depth - 1) if depth else 0

        def sample_row(self, rng: Any) -> Any:
            return {"prompt": "Go.", "sell": "sell"}

        def reward(self, episode: Any) -> float:
            return float(self.row["sell"] == "sell")

        def solve(self, row: Any) -> Any:
            return [call("sell", fruit="fig"), "Done."]

    with pytest.raises(AssertionError, match=r"Market\.sell, Market\.recursive are no tools"):
        check_env(Market(renderer))


def test_a_forgotten_tool_of_a_mixin_fails(renderer: Renderer) -> None:
    class Stamps:
        def stamp(self, paper: str) -> str:
            """Stamp a paper."""
            return "stamped"

    class Office(Stamps, Desk):
        pass

    with pytest.raises(AssertionError, match=r"Stamps\.stamp is no tool"):
        check_env(Office(renderer))


def test_helpers_and_what_cannot_be_a_tool_pass(renderer: Renderer) -> None:
    class Helped(Environment):
        def __init__(self, renderer: Any = None, **settings: Any) -> None:
            super().__init__(renderer, **settings)
            self.scores = [self.by_reference]

        def total(self, numbers: list[int]) -> int:
            """Add numbers."""
            return sum(numbers)

        def by_reference(self, answer: str) -> float:
            """Score an answer."""
            return float(bool(answer))

        def of_others(self, other: Environment) -> int:
            """Count the rows of an environment, which no policy has."""
            return 0

        def untyped(self, fruit):  # type: ignore[no-untyped-def]
            """Look up a fruit."""

        def undocumented(self, fruit: str) -> str:
            return fruit

        def _private(self, fruit: str) -> str:
            """Look up a fruit."""
            return fruit

        @classmethod
        def with_rows(cls, file: str) -> "Helped":
            """Make one with the rows of a file."""
            return cls()

        @property
        def size(self) -> int:
            """The number of rows."""
            return 0

        def take(self, what: str) -> str:
            """Take something."""
            return what

        def tools_for(self, row: Any) -> Any:
            return [self.take]

        def sample_row(self, rng: Any) -> Any:
            return {"prompt": "Go."}

        def reward(self, episode: Any) -> float:
            return self.total([0]) + sum(score(episode.answer) for score in self.scores)

    assert check_env(Helped(renderer)).odd == ()


def test_a_method_that_may_be_called_by_any_name_is_odd(renderer: Renderer) -> None:
    class Dispatching(Desk):
        def open_door(self, which: str) -> str:
            """Open a door."""
            return which

        def setup(self, row: Any) -> None:
            self.chosen = getattr(self, row.get("method", "reward"))

    [sentence] = check_env(Dispatching(renderer)).odd
    assert "Dispatching.open_door is no tool" in sentence


class Counted(Desk):
    """Its method is called by a function of the module."""

    def doubled(self, number: int) -> int:
        """Double a number."""
        return 2 * number


def outside(env: Counted) -> int:
    return env.doubled(1)


def test_a_method_that_the_module_calls_passes(renderer: Renderer) -> None:
    assert outside(Counted()) == 2
    assert check_env(Counted(renderer)).odd == ()
