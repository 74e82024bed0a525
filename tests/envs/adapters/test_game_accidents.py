"""A game that raises, lies, hangs or says too much harms its own episode alone."""

import asyncio
import math
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from game_fixtures import CLOSED, play
from gymnast.envs import make
from gymnast.errors import ConfigError, InfrastructureError
from gymnast.types import StopReason

Calls = Callable[..., dict[str, Any]]


def leave() -> None:
    """Raise what is not an `Exception`."""
    raise GeneratorExit


def repr_of(accident: Any) -> str:
    return getattr(accident, "__name__", type(accident).__name__)


def test_rewards_of_a_turn_beyond_float_end_its_episode(calls: Calls, outside: Any) -> None:
    env = outside(reward=1e308)
    twice = calls(("act", {"action": 1}), ("act", {"action": 1}))
    (outcome,) = play(env, twice)
    assert outcome.info["stop_reason"] is StopReason.error and outcome.reward == 0.0
    assert "no float is that large" in outcome.info["failure"]


@pytest.mark.parametrize(
    "accident",
    [
        *(lambda: 1 / 0, lambda: "all", lambda: None, sys.exit, leave, math.nan, math.inf),
        *(10**400, -(10**5000), Fraction(10**400), Decimal("1e400"), np.longdouble("1e400")),
    ],
    ids=repr_of,
)
def test_a_game_that_raises_or_lies_ends_its_own_episode(
    accident: Any, calls: Calls, outside: Any
) -> None:
    env = outside(reward=accident)
    act, broken = calls(("act", {"action": 1})), env.game.unwrapped
    (outcome,) = play(env, act)
    assert outcome.truncated and outcome.info["stop_reason"] is StopReason.error
    assert "gymnasium:Outside-v0: step(" in outcome.info["failure"]
    env.make_keywords = {}  # a game in which nothing goes wrong, as the next is a new one
    (outcome,) = play(env, act)
    assert outcome.reward == 1.0 and outcome.info["stop_reason"] is None
    assert broken in CLOSED


@pytest.mark.parametrize(
    "stepped",
    [
        ("on", 1.0, False, False),  # of an old interface
        ("on", 1.0, np.zeros(2), False, {}),
        (np.zeros(10**6), 1.0, False, False, {}),  # in a space of texts
    ],
)
def test_what_a_step_returns_is_not_trusted(stepped: Any, calls: Calls, outside: Any) -> None:
    env = outside()
    env.game.unwrapped.step = lambda action: stepped
    (outcome,) = play(env, calls(("act", {"action": 1})))
    assert outcome.info["stop_reason"] is StopReason.error


def test_a_game_that_cannot_begin_ends_its_own_episode(calls: Calls, outside: Any) -> None:
    env = outside()
    env.game.unwrapped.reset = lambda **keywords: 1 / 0
    with pytest.raises(InfrastructureError, match=r"gymnasium:Outside-v0: reset\(seed=0\)"):
        play(env)
    (outcome,) = play(env, calls(("act", {"action": 1})))
    assert outcome.reward == 1.0


def test_a_text_that_a_game_cannot_make_ends_its_own_episode(calls: Calls) -> None:
    env: Any = make("gymnasium:FrozenLake-v1")
    env.reset(options={"row": {"seed": 1}})
    env.game.unwrapped.render = lambda: 1 / 0
    outcome = asyncio.run(env.act(calls(("act", {"action": 1}))))
    assert outcome.info["stop_reason"] is StopReason.error
    assert "its observation: ZeroDivisionError" in outcome.info["failure"]
    env.close()


def test_a_game_that_cannot_be_closed_does_not_stop_the_run(
    outside: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env = outside()

    def close() -> None:
        CLOSED.append(env.game.unwrapped)
        raise RuntimeError("stuck")

    env.game.unwrapped.close = close
    env.close()
    assert "cannot be closed" in caplog.text


def test_a_game_that_is_refused_is_closed(outside: Any) -> None:
    with pytest.raises(ConfigError):
        outside(actions=spaces.Sequence(spaces.Discrete(2)))
    with pytest.raises(ConfigError):
        make("gymnasium:Outside-v0", max_turns=0)
    assert len(CLOSED) == 2


@pytest.mark.parametrize("number", [math.nan, math.inf, 1e300])
def test_numbers_that_are_not_finite_are_no_action(
    number: float, calls: Calls, outside: Any
) -> None:
    env = outside(actions=spaces.Box(-np.inf, np.inf, ()))
    (outcome,) = play(env, calls(("act", {"action": number})))
    assert len(outcome.info["errors"]) == 1 and outcome.info["stop_reason"] is None
    assert env.game.unwrapped.taken == []


def test_a_game_that_hangs_ends_its_own_episode(calls: Calls, outside: Any) -> None:
    stuck, ended = threading.Event(), threading.Event()

    def late() -> float:
        stuck.wait(30)
        ended.set()
        return 7.0

    env = outside(reward=late, step_timeout_s=0.2)
    act = calls(("act", {"action": 1}))
    first, second = play(env, act, act)
    assert first.info["errors"][0].kind == "timeout"
    assert second.info["stop_reason"] is StopReason.error
    assert "a step that was given up" in second.info["failure"]
    env.make_keywords = {}
    asyncio.run(env.areset(options={"row": {"seed": 0}}))
    stuck.set()
    assert ended.wait(30)
    outcome = asyncio.run(env.act(act))
    assert outcome.reward == 1.0  # nothing of the step that came back late
    assert len(CLOSED) == 1  # by the step


def test_a_result_of_any_length_is_an_observation_like_others(calls: Calls, outside: Any) -> None:
    env = outside()
    env.game.unwrapped.step = lambda action: ("on " * 10**6, 1.0, True, False, {})
    (outcome,) = play(env, calls(("act", {"action": 1})))
    assert outcome.terminated and outcome.reward == 1.0
    assert 10**5 < len(outcome.messages[-1]["content"]) < 1.1 * 10**6
    assert "characters left out" in outcome.messages[-1]["content"]
