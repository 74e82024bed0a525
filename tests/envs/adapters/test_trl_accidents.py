"""A class for TRL that raises, lies, hangs or says too much harms its own episode alone."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gymnast.envs import Environment, Outcome, make
from gymnast.envs.adapters.trl.rewards import Log
from gymnast.errors import InfrastructureError
from gymnast.types import StopReason
from trl_fixtures import GATE, MADE, Odd

Calls = Callable[..., dict[str, Any]]
Play = Callable[..., list[Outcome]]
DONE = {"role": "assistant", "content": "Done."}


@pytest.fixture(autouse=True)
def odd() -> Iterator[Callable[..., Environment]]:
    made: list[Environment] = []

    def odd(accident: str = "", **settings: Any) -> Environment:
        Odd.accident = accident
        made.append(make("trl:trl_fixtures:Odd", **settings))
        return made[-1]

    MADE.clear()
    GATE.clear()
    yield odd
    GATE.set()
    Odd.accident = ""
    for env in made:
        env.close()


def test_what_a_tool_does_wrong_is_an_observation(calls: Calls, play: Play, odd: Any) -> None:
    env = odd(max_turns=20)
    hows = ("raise", "exit", "huge", "object", "parts", "picture", "well")
    outcomes = play(env, *(calls(("act", {"how": how})) for how in hows))
    raised, left, huge, some, parts, picture, well = (o.messages[0]["content"] for o in outcomes)
    assert "RuntimeError: broken" in raised and "SystemExit: 3" in left
    assert 10**6 <= len(huge) < 10**6 + 100 and "2000000 characters left out" in huge
    assert some.startswith("<module 'threading'") and parts == "one two" and well == "well"
    assert "a text model cannot read" in picture


def test_a_tool_that_hangs_is_given_up_and_the_next_episode_has_a_new_object(
    calls: Calls, play: Play, odd: Any
) -> None:
    env = odd(timeout_s=0.3)
    hung, after = play(env, calls(("act", {"how": "hang"})), calls(("act", {"how": "well"})))
    assert hung.info["errors"][0].kind == "timeout" and not hung.truncated
    assert after.messages[0]["content"] == "well"
    (after,) = play(env, calls(("act", {"how": "well"})))
    assert after.messages[0]["content"] == "well" and len(MADE) == 2


@pytest.mark.parametrize(
    ("accident", "problem"),
    [
        ("make", "its constructor: RuntimeError: no room"),
        ("raise", "reset: ZeroDivisionError"),
        ("number", "reset: ValueError: it returned 3"),
        ("hang", "reset: it was given up after 0.3 s"),
    ],
)
def test_an_episode_that_cannot_begin(accident: str, problem: str, play: Play, odd: Any) -> None:
    env = odd(accident, timeout_s=0.3)
    with pytest.raises(InfrastructureError) as raised:
        play(env, DONE)
    assert f"trl:trl_fixtures:Odd: {problem}" in str(raised.value)
    Odd.accident = ""
    (outcome,) = play(env, DONE)
    assert outcome.reward == 1.0


def test_a_long_beginning_loses_its_middle(odd: Any) -> None:
    env = odd("huge")
    env.reset(options={"row": {"prompt": "Go."}})
    assert 10**6 <= len(env.messages[0]["content"]) < 10**6 + 100


@pytest.mark.parametrize(
    ("accident", "problem"),
    [
        ("text", "get_reward: ValueError: the reward is 'much'"),
        ("infinite", "get_reward: ValueError: the reward is inf"),
        ("large", "get_reward: ValueError: the reward is 100000"),
        ("large one", "lying: ValueError: the reward is <int instance of 16610 bits>"),
        ("broken", "get_reward: ZeroDivisionError"),
        ("slow reward", "get_reward: it was given up after 0.3 s"),
        ("too many", "lying: ValueError: it returned [1.0, 1.0], not a list of one reward"),
        ("one", "lying: ValueError: it returned 1.0, not"),
        ("words", "lying: ValueError: the reward is 'good'"),
        ("raises", "lying: KeyError: 'column'"),
    ],
)
def test_an_episode_that_cannot_be_scored(
    accident: str, problem: str, play: Play, odd: Any
) -> None:
    env = odd(accident, timeout_s=0.3, reward_funcs=["lying"])
    (outcome,) = play(env, DONE)
    assert outcome.info["stop_reason"] is StopReason.error and outcome.reward == 0.0
    assert f"trl:trl_fixtures:Odd: {problem}" in outcome.info["failure"]
    Odd.accident = ""
    (outcome,) = play(env, DONE)
    assert outcome.reward == 1.5


def test_a_reward_may_be_any_type_of_number(play: Play, odd: Any) -> None:
    (outcome,) = play(odd("fraction", reward_funcs=["lying"]), DONE)
    assert outcome.info["reward_parts"] == {"Odd": 1.0, "lying": 0.25}


def test_large_logged_metrics_are_dropped() -> None:
    log = Log()
    for value in (10**400, 1.0):
        log.metric("large", value)
    log.metric("small", 2)
    assert log.means() == {"small": 2.0}


def test_a_reward_of_none_is_left_out(play: Play, odd: Any) -> None:
    (outcome,) = play(odd("none", reward_funcs=["lying"]), DONE)
    assert outcome.info["reward_parts"] == {"lying": 0.5}
    (outcome,) = play(odd("none"), DONE)
    assert outcome.info["no_reward"] is True
