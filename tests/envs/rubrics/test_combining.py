"""Rubrics of rubrics: shares, weights, gates, names, and what runs where."""

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs import Environment, Episode, Score, rubrics
from gymnast.errors import ConfigError, UserCodeError
from rubric_fixtures import played, score

EPISODE = played("Bern")
WRONG: Any = "half"


def half(episode: Episode) -> float:
    return 0.5


async def whole(episode: Episode) -> float:
    await asyncio.sleep(0)
    return 1.0


def parts(rubric: Any) -> Any:
    found = score(rubric, EPISODE)
    assert found is not None
    return found.parts


def metrics(rubric: Any) -> Any:
    found = score(rubric, EPISODE)
    assert found is not None
    return found.metrics


def test_all_of_is_the_mean_by_weight() -> None:
    assert parts(rubrics.all_of(half, whole)) == {"half": 0.25, "whole": 0.5}
    heavy = rubrics.all_of(rubrics.weighted(half, 3), whole)
    assert parts(heavy) == {"half": 0.375, "whole": 0.25}
    assert metrics(heavy) == {"rubrics/half": 0.5, "rubrics/whole": 1.0}


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 100)), min_size=1, max_size=6))
def test_all_of_lies_between_its_parts(given: list[tuple[float, float]]) -> None:
    named = {
        f"part{i}": rubrics.weighted(lambda _, value=value: value, weight)
        for i, (value, weight) in enumerate(given)
    }
    found = score(rubrics.all_of(**named), EPISODE)
    assert found is not None
    values = [value for value, _ in given]
    assert min(values) - 1e-9 <= found.reward <= max(values) + 1e-9


def test_a_weighted_sum_takes_punishments() -> None:
    rubric = rubrics.weighted_sum(rubrics.weighted(half, -1), whole)
    assert parts(rubric) == {"half": -0.5, "whole": 1.0}


def test_names_of_parts_of_parts_follow_one_another() -> None:
    inner = rubrics.all_of(half, named=whole)
    rubric = rubrics.all_of(outer=inner, last=half)
    assert parts(rubric) == {"outer/half": 0.125, "outer/named": 0.25, "last": 0.25}
    assert metrics(rubric) == {
        "rubrics/outer": 0.75,
        "rubrics/outer/half": 0.5,
        "rubrics/outer/named": 1.0,
        "rubrics/last": 0.5,
    }


@pytest.mark.parametrize("condition", [half, whole])
def test_behind_a_gate_nobody_is_asked_in_vain(condition: Any) -> None:
    asked = []

    def behind(episode: Episode) -> float:
        asked.append(episode)
        return 0.8

    rubric = rubrics.gate(condition, behind)
    opened = condition is whole
    assert parts(rubric) == {"behind": 0.8 if opened else 0.0}
    assert len(asked) == opened
    assert metrics(rubric)[f"rubrics/{condition.__name__}"] == (1.0 if opened else 0.5)
    assert parts(rubrics.gate(condition, behind, least=0.5)) == {"behind": 0.8}


def test_a_gate_opens_to_what_is_awaited() -> None:
    for condition in (half, whole):
        rubric = rubrics.gate(passes=condition, then=whole, least=0.5)
        assert parts(rubric) == {"then": 1.0}


@pytest.mark.parametrize("none", [lambda _: None, whole])
def test_none_leaves_the_episode_out(none: Any) -> None:
    async def later(episode: Episode) -> None:
        await asyncio.sleep(0)

    unjudged = later if none is whole else none
    assert score(rubrics.all_of(half, none=unjudged), EPISODE) is None
    assert score(rubrics.gate(none=unjudged, half=half), EPISODE) is None
    assert score(rubrics.gate(whole, none=unjudged), EPISODE) is None


def test_a_function_may_name_parts_and_metrics() -> None:
    def parted(episode: Episode) -> dict[str, float]:
        return {"a": 0.5, "b": 1.0}

    def scored(episode: Episode) -> Score:
        return Score({"c": 1.0}, {"seen": 7.0})

    rubric = rubrics.weighted_sum(parted, scored)
    assert parts(rubric) == {"parted/a": 0.5, "parted/b": 1.0, "scored/c": 1.0}
    assert metrics(rubric)["rubrics/scored/seen"] == 7.0


class Room(Environment):
    """Its reward is made of a method, which sees the environment, and of threads."""

    def setup(self, row: Any) -> None:
        self.thread, self.answers = threading.get_ident(), ["Bern"]

    def known(self, episode: Episode) -> bool:
        assert threading.get_ident() == self.thread
        return episode.answer in self.answers

    async def awaited(self, episode: Episode) -> float:
        assert threading.get_ident() != self.thread
        return float(len(self.answers))

    reward = rubrics.all_of(known, awaited)


def test_methods_of_the_class_are_parts_on_the_threads_that_hooks_have() -> None:
    async def play() -> Any:
        room = Room()
        await room.areset(options={"row": {"prompt": "Go."}})
        return await room.act({"role": "assistant", "content": "Bern"})

    info = asyncio.run(play()).info
    assert info["reward_parts"] == {"known": 0.5, "awaited": 0.5}


def test_from_tools_takes_a_rubric_with_methods() -> None:
    def sees(environment: Any, episode: Episode) -> bool:
        return environment.row is episode.row

    made = Environment.from_tools([], reward=rubrics.all_of(sees))()
    made.reset(options={"row": {"prompt": "Go."}})
    assert asyncio.run(made.act({"role": "assistant", "content": ""})).reward == 1.0


def test_async_parts_are_asked_at_the_same_time() -> None:
    async def play() -> Any:
        arrived = asyncio.Event()

        async def waits(episode: Episode) -> float:
            await asyncio.wait_for(arrived.wait(), 30)
            return 1.0

        async def arrives(episode: Episode) -> float:
            arrived.set()
            return 1.0

        return await rubrics.all_of(waits, arrives)(EPISODE)

    assert asyncio.run(play()).reward == 1.0


@pytest.mark.parametrize("wrong", ["7", float("nan"), [1.0], {"a": "b"}])
def test_what_is_no_number_is_an_error_that_names_the_part(wrong: Any) -> None:
    class Wrong(Environment):
        awaited = rubrics.gate(whole=rubrics.all_of(whole), half=half)
        reward = rubrics.all_of(whole, awaited=awaited, bad=lambda episode: wrong)

    environment = Wrong()
    environment.reset(options={"row": {"prompt": "Go."}})
    with pytest.raises(UserCodeError, match=r"Wrong\.reward: .*the rubric 'bad' returned .*finite"):
        asyncio.run(environment.act({"role": "assistant", "content": ""}))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rubrics.all_of(), "all_of: takes at least one rubric, got none"),
        (lambda: rubrics.all_of(half, half), "two parts are called 'half'; name them: all_of"),
        (lambda: rubrics.all_of(lambda _: 1.0), "all_of: .* has no name; give it one: all_of"),
        (lambda: rubrics.all_of(rubrics.all_of(half)), "all_of: .* has no name"),
        (lambda: rubrics.all_of(a=WRONG), "all_of: takes rubrics and functions .*, got 'half'"),
        (lambda: rubrics.all_of(a=rubrics.exact), "got <class .*; a rubric is made with"),
        (lambda: rubrics.all_of(rubrics.weighted(half, 0)), "weight of 'half' must be > 0, got 0"),
        (lambda: rubrics.all_of(rubrics.weighted(half, -1)), "weighted_sum takes punishments too"),
        (lambda: rubrics.weighted(half, float("inf")), "weight must be a finite number, got inf"),
        (lambda: rubrics.weighted(half, 10**400), "weight must be a finite number, got 100"),
        (
            lambda: rubrics.all_of(
                a=rubrics.weighted(half, 1e308), b=rubrics.weighted(half, 1e308)
            ),
            "all_of: the weights add up",
        ),
        (lambda: rubrics.weighted(half, WRONG), "weighted: the weight must be a finite number"),
        (lambda: rubrics.gate(half), "gate: takes a condition and a rubric behind it, got 1"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()
