"""Environments that OpenEnv serves: its actions and tools as calls, its rewards and ends."""

import asyncio
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium.utils.env_checker
import pytest

from game_fixtures import play
from gymnast.agents import ScriptedAgent
from gymnast.envs import Renderer, check_env, make
from gymnast.envs.adapters.openenv import texts
from gymnast.envs.adapters.openenv.environment import OpenEnvEnvironment
from gymnast.errors import ConfigError, UnknownEnvironment
from gymnast.trainers import rollout
from gymnast.types import StopReason
from openenv_fixtures import read

pytestmark = pytest.mark.adapters
Calls = Callable[..., dict[str, Any]]
DONE = {"role": "assistant", "content": "Done."}


def told(outcome: Any) -> list[str]:
    return [message["content"] for message in outcome.messages]


# --- Actions and tools


def test_what_openenv_makes_by_itself_plays(calls: Calls, served: Any) -> None:
    env = served("echo")
    hey, done = play(env, calls(("act", {"message": "hey"})), DONE)
    assert told(hey) == ['{"echoed_message": "hey", "message_length": 3}']
    assert hey.reward == pytest.approx(0.3) and done.reward == 0.0
    assert done.info["stop_reason"] is StopReason.answered
    (prompt,) = env.messages[:1]
    assert (
        prompt["content"]
        == '{"echoed_message": "Echo Env environment ready!", "message_length": 0}'
    )
    (tool,) = env.tools
    assert tool["function"]["description"].startswith("Take an action. Action for the Echo Env")
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "Message to echo back"}},
        "required": ["message"],
    }


def test_an_episode_in_tokens(renderer: Renderer, calls: Calls, served: Any) -> None:
    env = served("numbers", renderer)
    env.reset(seed=0)
    turns = [renderer.encode(calls(("act", {"number": n})), tools=env.tools) for n in (3, 7, 5)]
    played = asyncio.run(rollout(env, ScriptedAgent(turns), {"seed": 4}))
    assert played.turn_rewards == [-0.1, -0.1, 1.0]
    assert played.terminated and played.stop_reason is StopReason.environment
    said = [message["content"] for message in played.messages if message["role"] != "assistant"]
    assert said == ["Find a number.\n\nWhich one is it?", "more", "less", "yes"]


def test_actions_after_the_end_are_not_taken(calls: Calls, served: Any) -> None:
    (outcome,) = play(served("numbers"), calls(("act", {"number": 1}), ("act", {"number": 1})))
    assert told(outcome) == ["yes", "The episode is over; this action was not taken."]
    assert outcome.reward == 1.0 and outcome.terminated


def test_wrong_actions_are_told(calls: Calls, served: Any) -> None:
    bold = ("act", {"number": 5, "tone": "bold"})
    (outcome,) = play(served("numbers"), calls(("act", {"number": 11}), bold, ("act", {})))
    assert [error.kind for error in outcome.info["errors"]] == [
        "bad_arguments",
        "exception",
        "bad_arguments",
    ]
    assert told(outcome)[1] == "Error: act: Refused: too bold" and outcome.reward == 0.0


@pytest.mark.parametrize("path", ["desk", "desk_of_actions"])
def test_the_tools_of_a_server_are_the_tools(path: str, calls: Calls, served: Any) -> None:
    env = served(path, instructions="Write notes.")
    asked = [calls(("note", {"text": text})) for text in ("a", "done")]
    first, failed, last = play(env, asked[0], calls(("fail", {})), asked[1])
    assert env.messages[0]["content"] == "Write notes."
    assert [tool["function"]["name"] for tool in env.tools] == ["note", "fail"]
    assert told(first) == ['["a"]'] and first.reward == 1.0
    assert "ToolFailed: Error calling tool 'fail': not today" in told(failed)[0]
    assert told(last) == ['["a","done"]'] and last.info["stop_reason"] is StopReason.environment


def test_a_row_has_a_seed_parameters_and_a_prompt(served: Any) -> None:
    env = served("numbers")
    env.reset(options={"row": {"prompt": "Guess.", "reset": {"hint": 3}, "seed": 4}})
    assert env.messages == [{"role": "user", "content": "Guess.\n\nWhich one is it? {'hint': 3}"}]
    env.reset(seed=3)
    seed = env.row["seed"]
    env.reset(seed=3)
    assert env.row["seed"] == seed


def test_a_subclass_says_it_in_its_own_words(openenv_url: str, calls: Calls) -> None:
    class Loud(OpenEnvEnvironment):
        url = f"{openenv_url}/numbers"

        def describe(self, observation: Any) -> str:
            return str(observation["text"]).upper()

    env = make(Loud)
    (outcome,) = play(env, calls(("act", {"number": 9})))
    assert told(outcome) == ["LESS"]
    env.close()


# --- Sessions


def test_episodes_at_once_have_sessions_of_their_own(calls: Calls, served: Any) -> None:
    envs = [served("numbers") for _ in range(8)]

    async def one(seed: int, env: Any) -> float:
        await env.areset(options={"row": {"seed": seed}})
        await env.act(calls(("act", {"number": 9})))
        return float((await env.act(calls(("act", {"number": seed + 1})))).reward)

    async def run() -> list[float]:
        return list(await asyncio.gather(*(one(seed, env) for seed, env in enumerate(envs))))

    assert asyncio.run(run()) == [1.0] * 8


def test_a_server_that_is_full_is_asked_again(calls: Calls, served: Any) -> None:
    first, second = served("one"), served("one")
    first.reset(options={"row": {"seed": 0}})
    waiting = threading.Thread(target=lambda: second.reset(options={"row": {"seed": 0}}))
    waiting.start()
    time.sleep(1)
    assert waiting.is_alive()
    first.close()
    waiting.join(30)
    assert second.messages[0]["content"].endswith("Which one is it?")


def test_a_thousand_episodes_leave_nothing_behind(
    openenv_url: str, calls: Calls, served: Any
) -> None:
    env = served("numbers")

    async def run() -> list[float]:
        earned = []
        for seed in range(1000):
            await env.areset(options={"row": {"seed": seed}})
            earned.append((await env.act(calls(("act", {"number": seed % 9 + 1})))).reward)
        return earned

    assert asyncio.run(run()) == [1.0] * 1000
    env.close()
    ends = time.monotonic() + 10
    while read(f"{openenv_url}/open") != "0":  # sessions that are open in the server
        assert time.monotonic() < ends
        time.sleep(0.1)
    for thread in threading.enumerate():
        if "openenv:" in thread.name or "recv_events" in thread.name:
            thread.join(10)
            assert not thread.is_alive()


# --- Checks, pickles, names


@pytest.mark.parametrize(("path", "tools"), [("echo", ["act"]), ("desk", ["note", "fail"])])
def test_the_checks_are_clean(path: str, tools: list[str], renderer: Renderer, served: Any) -> None:
    env = served(path, renderer)
    assert [tried.call.partition("(")[0] for tried in check_env(env).tools] == tools
    gymnasium.utils.env_checker.check_env(env, skip_render_check=True)


def test_environments_are_pickled(renderer: Renderer, served: Any) -> None:
    env = served("numbers", renderer)
    copy = pickle.loads(pickle.dumps(env))
    assert type(copy) is type(env)
    env.reset(seed=1)
    copy.reset(seed=1)
    assert copy.messages == env.messages
    copy.close()


@pytest.mark.parametrize("name", ["openenv:file:///x", "openenv:http://"])
def test_what_is_no_url_is_refused(name: str) -> None:
    with pytest.raises(UnknownEnvironment, match="is no URL of a server"):
        make(name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"api_key_env": "NO_SUCH_VARIABLE"}, "there is no variable NO_SUCH_VARIABLE"),
        ({"start_timeout_s": 0}, "start_timeout_s must be > 0"),
    ],
)
def test_a_setting_that_does_not_hold(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("openenv:localhost:9", **settings)


# --- Texts


def test_pictures_are_named_and_results_are_texts() -> None:
    parts = [{"type": "image", "data": "..."}, {"type": "text", "text": "a cat"}]
    observation = {"tool_name": "look", "result": {"content": parts}, "error": None}
    assert texts.text_of(observation) == "[image]\na cat"
    assert texts.text_of({"tool_name": "look", "result": [1]}) == "[1]"
    with pytest.raises(texts.ToolFailed, match="gone"):
        texts.text_of({"tool_name": "look", "result": None, "error": {"message": "gone"}})
