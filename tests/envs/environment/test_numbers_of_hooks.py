"""No number that a hook returns ends an episode without an error that names the hook and row."""

import asyncio
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs import Environment, Outcome, Score, rubrics, tool
from gymnast.errors import UserCodeError

ANSWER = {"role": "assistant", "content": "310"}
ROW = {"prompt": "Go.", "answer": 3}


class OddFloat:
    """Its conversion raises."""

    def __float__(self) -> float:
        raise OSError("no")


NOT_NUMBERS: dict[str, Any] = {
    "int": -(10**310),
    "long int": 10**5000,
    "fraction": Fraction(10**400, 3),
    "decimal": Decimal("1e400"),
    "signaling": Decimal("sNaN"),
    "longdouble": np.longdouble("1e400"),
    "float16": np.float16("inf"),
    "tensor": torch.tensor([1.0, 2.0]),
    "complex": 1j,
    "bytes": b"1",
    "object": OddFloat(),
}
# How a hook returns a number, and the hook that is blamed.
PLACES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "reward": ("reward", lambda number: number),
    "part": ("reward", lambda number: {"a": 1.0, "b": number}),
    "score": ("reward", lambda number: Score({"a": number})),
    "metric of a score": ("reward", lambda number: Score({"a": 1.0}, {"b": number})),
    "turn_reward": ("turn_reward", lambda number: number),
    "text_rewards": ("text_rewards", lambda number: [(1, number)]),
    "metrics": ("metrics", lambda number: {"a": number}),
}


def returning(hook: str, value: Any, *, is_async: bool = False) -> Environment:
    """An environment one of whose hooks returns a value."""

    def method(self: Any, *arguments: Any) -> Any:
        return value

    async def later(self: Any, *arguments: Any) -> Any:
        return value

    made: type[Environment] = type("Odd", (Environment,), {hook: later if is_async else method})
    return made()


def played(env: Environment, *messages: Any) -> list[Outcome]:
    async def run() -> list[Outcome]:
        await env.areset(options={"row": ROW})
        return [await env.act(message) for message in messages or (ANSWER,)]

    try:
        return asyncio.run(run())
    finally:
        env.close()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("number", NOT_NUMBERS.values(), ids=NOT_NUMBERS)
@pytest.mark.parametrize("place", PLACES)
def test_wrong_numbers_name_hook_and_row(place: str, number: Any, is_async: bool) -> None:
    hook, give = PLACES[place]
    with pytest.raises(UserCodeError) as caught:
        played(returning(hook, give(number), is_async=is_async))
    assert caught.value.hook == hook and caught.value.row == ROW
    assert "finite number" in str(caught.value) and len(str(caught.value)) < 1000


def test_a_long_answer_is_no_overflow_error() -> None:
    class Near(Environment):
        def reward(self, episode: Any) -> int:
            return -abs(int(episode.answer) - int(self.row["answer"]))

    with pytest.raises(UserCodeError) as caught:
        played(Near(), {"role": "assistant", "content": "1" * 310})
    assert caught.value.hook == "reward" and caught.value.row == ROW
    (outcome,) = played(Near(), {"role": "assistant", "content": "1" * 300})
    assert outcome.reward == -float("1" * 300)


@pytest.mark.parametrize(
    ("hooks", "blamed"),
    [
        ({"reward": {"a": 1e308, "b": 1e308}}, "reward"),
        ({"reward": Score({"a": -1e308, "b": -1e308})}, "reward"),
        ({"text_rewards": [(1, 1e308), (2, 1e308)]}, "text_rewards"),
        ({"turn_reward": 1e308, "text_rewards": [(1, 1e308)]}, "text_rewards"),
        ({"turn_reward": 1e308, "reward": 1e308}, "reward"),
    ],
)
def test_sums_beyond_float_name_the_hook(hooks: dict[str, Any], blamed: str) -> None:
    methods = {name: lambda self, *_, value=value: value for name, value in hooks.items()}
    with pytest.raises(UserCodeError, match="more than a float holds") as caught:
        played(type("Rich", (Environment,), methods)())
    assert caught.value.hook == blamed and caught.value.row == ROW


def test_turns_whose_sum_is_beyond_float_name_the_hook(calls: Callable[..., Any]) -> None:
    class Rich(Environment):
        @tool
        def look(self) -> str:
            """Look."""
            return ""

        def turn_reward(self, turn: Any) -> float:
            return 1e308

    with pytest.raises(UserCodeError) as caught:
        played(Rich(), calls(("look", {})), calls(("look", {})))
    assert caught.value.hook == "turn_reward"


@given(
    st.integers()
    | st.fractions()
    | st.floats()
    | st.decimals()
    | st.tuples(st.integers(-9, 9), st.integers(290, 330)).map(lambda pair: pair[0] * 10 ** pair[1])
)
def test_a_reward_is_a_finite_float_or_an_error(value: Any) -> None:
    try:
        expected = float(value)
    except (OverflowError, ValueError):
        expected = math.nan
    try:
        (outcome,) = played(returning("reward", value))
    except UserCodeError as error:
        assert not math.isfinite(expected) and error.hook == "reward"
    else:
        assert outcome.reward == expected and type(outcome.reward) is float


def test_a_row_that_cannot_be_written_hides_no_error() -> None:
    env = returning("reward", math.nan)

    async def run() -> None:
        await env.areset(options={"row": {"prompt": "Go.", "answer": 10**5000}})
        await env.act(ANSWER)

    with pytest.raises(UserCodeError, match="16610 bits"):
        asyncio.run(run())


class Lazy:
    """A mapping, or pairs, whose reading raises."""

    def keys(self) -> Any:
        raise OSError("gone")

    def __iter__(self) -> Iterator[Any]:
        raise OSError("gone")


def test_values_whose_reading_raises_name_the_hook() -> None:
    with pytest.raises(UserCodeError, match="OSError: gone") as caught:
        played(returning("text_rewards", Lazy()))
    assert caught.value.hook == "text_rewards"


@pytest.mark.parametrize("number", NOT_NUMBERS.values(), ids=NOT_NUMBERS)
def test_a_rubric_of_wrong_numbers_names_its_hook(number: Any) -> None:
    def odd(episode: Any) -> Any:
        return number

    async def odd_later(episode: Any) -> Any:
        return number

    for rubric in (
        rubrics.all_of(odd=odd),
        rubrics.weighted_sum(odd=odd_later),
        rubrics.gate(odd=odd, then=lambda episode: 1.0),
        rubrics.weighted(odd, 2.0),
    ):
        env = type("Odd", (Environment,), {"reward": rubric})()
        with pytest.raises(UserCodeError) as caught:
            played(env)
        assert caught.value.hook == "reward" and caught.value.row == ROW


def test_a_weighted_sum_beyond_float_names_its_hook() -> None:
    large = rubrics.weighted_sum(a=rubrics.weighted(lambda episode: 1e300, 1e300))
    with pytest.raises(UserCodeError) as caught:
        played(type("Odd", (Environment,), {"reward": large})())
    assert caught.value.hook == "reward"


def test_results_of_tools_may_be_numbers_of_any_size(calls: Callable[..., Any]) -> None:
    class Powers(Environment):
        @tool
        def power(self, base: int, exponent: int) -> int:
            """Compute a power."""
            return int(base**exponent)

    small, large, _ = played(
        Powers(),
        calls(("power", {"base": 10, "exponent": 400})),
        calls(("power", {"base": 10, "exponent": 5000})),
        ANSWER,
    )
    assert small.messages[0]["content"] == str(10**400)
    assert large.messages[0]["content"].startswith("Error: power:")
