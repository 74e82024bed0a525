"""A server of OpenEnv's that is gone, hangs, lies or says too much harms its own episode alone."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from game_fixtures import play
from gymnast.envs import make
from gymnast.errors import InfrastructureError
from gymnast.types import StopReason

pytestmark = pytest.mark.adapters
Calls = Callable[..., dict[str, Any]]


def test_a_step_that_raises_is_told_and_the_session_goes_on(calls: Calls, served: Any) -> None:
    raised, well = play(
        served("odd"), calls(("act", {"how": "raise"})), calls(("act", {"how": "on"}))
    )
    assert raised.messages[0]["content"] == "Error: act: Refused: broken"
    assert well.messages[0]["content"] == "on" and well.info["stop_reason"] is None


def test_a_step_that_hangs_is_given_up_and_the_next_episode_plays(
    calls: Calls, served: Any
) -> None:
    env = served("odd", step_timeout_s=0.5)
    hung, after = play(env, calls(("act", {"how": "hang"})), calls(("act", {"how": "on"})))
    assert hung.info["errors"][0].kind == "timeout"
    assert after.info["stop_reason"] is StopReason.error
    assert "is in a step that was given up" in after.info["failure"]
    (well,) = play(env, calls(("act", {"how": "on"})))
    assert well.messages[0]["content"] == "on"


def test_what_is_long_loses_its_middle_and_what_is_longer_ends_the_episode(
    calls: Calls, served: Any
) -> None:
    env = served("odd")
    huge, flood = play(env, calls(("act", {"how": "huge"})), calls(("act", {"how": "flood"})))
    assert 10**6 <= len(huge.messages[0]["content"]) < 10**6 + 100
    assert flood.info["stop_reason"] is StopReason.error
    assert "the connection is closed" in flood.info["failure"]
    (well,) = play(env, calls(("act", {"how": "on"})))
    assert well.messages[0]["content"] == "on"
    begins = served("numbers")
    begins.reset(options={"row": {"reset": {"huge": True}}})
    assert 10**6 <= len(begins.messages[0]["content"]) < 10**6 + 100


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("raise", "reset: broken"),
        ("hang", "it does not answer within 1 s"),
        ("over", "the episode is over where it begins"),
        ("flood", "the connection is closed"),
    ],
)
def test_an_episode_that_cannot_begin(how: str, problem: str, calls: Calls, served: Any) -> None:
    env = served("odd", start_timeout_s=1.0 if how == "hang" else 60.0)
    with pytest.raises(InfrastructureError) as raised:
        asyncio.run(env.areset(options={"row": {"reset": {"how": how}}}))
    env.start_timeout_s = 60.0
    assert "openenv:http://" in str(raised.value) and problem in str(raised.value)
    (well,) = play(env, calls(("act", {"how": "on"})))
    assert well.messages[0]["content"] == "on"


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("words", "JSONDecodeError"),
        ("list", "it says [1]"),
        ("no data", "it says {"),
        ("no observation", "its observation is None"),
        ("reward", "its reward is '1'"),
        ("large", "its reward is 1000"),
        ("done", "it says 'no' where"),
        ("gone", "the connection is closed"),
    ],
)
def test_lies_are_not_believed(how: str, problem: str, calls: Calls, served: Any) -> None:
    env = served("lies/well")
    (outcome,) = play(env, calls(("act", {"how": how})))
    assert outcome.info["stop_reason"] is StopReason.error and outcome.reward == 0.0
    assert problem in outcome.info["failure"]
    (well,) = play(env, calls(("act", {"how": "on"})))
    assert well.messages[0]["content"] == '{"asked": {"how": "on"}}'


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("lies/bad", "its schema of an action is {'type': 3}"),
        ("lies/text", "its schema of an action is {'type': 'string'}"),
        ("lies/none", "its schema of an action is None"),
        ("lies/metadata", "not a JSON object"),
        ("nowhere", "404"),
    ],
)
def test_a_server_that_describes_itself_wrongly(path: str, problem: str, served: Any) -> None:
    with pytest.raises(InfrastructureError) as raised:
        served(path).reset()
    assert problem in str(raised.value)


def test_an_action_of_several_kinds_is_one_argument(calls: Calls, served: Any) -> None:
    env = served("lies/either")
    (outcome,) = play(env, calls(("act", {"action": {"how": "go"}}), ("act", {"action": 3})))
    assert outcome.messages[0]["content"] == '{"asked": {"how": "go"}}'
    assert outcome.info["errors"][0].kind == "bad_arguments"


def test_a_server_that_is_full_for_long(served: Any) -> None:
    first, second = served("one"), served("one", start_timeout_s=1.5)
    first.reset()
    with pytest.raises(InfrastructureError, match="Serve it with a higher max_concurrent_envs"):
        second.reset()


def test_a_server_that_is_not_there_or_says_nothing() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"openenv:127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(InfrastructureError, match="refused"):
            make(url).reset()
        deaf.listen()
        began = time.monotonic()
        with pytest.raises(InfrastructureError, match="does not answer within"):
            make(url, start_timeout_s=0.5).reset()
        assert time.monotonic() - began < 10
