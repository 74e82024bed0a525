"""What `check_env` says of methods whose names are nearly those of hooks."""

from collections.abc import Callable
from typing import Any

import pytest

from gymnast.envs import Environment, Renderer, check_env, compose, tool


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
