"""A program that has the loop: its requests are the observations, in one context or several."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gymnast.envs import Episode, NextRequest, Renderer
from gymnast.errors import (
    UsageError,
)
from gymnast.types import StopReason
from request_fixtures import LOOK, AsyncScript, Script, begin, extends, opens, says, user

Say = Callable[..., list[int]]


@pytest.mark.parametrize("kind", [Script, AsyncScript])
def test_requests_are_observations_until_the_program_ends(
    kind: type[Script], renderer: Renderer, say: Say
) -> None:
    env = kind(renderer)
    prompt, info = begin(env, opens("One?", tools=[LOOK]), extends(0, "Two?"))
    assert prompt == renderer.prompt([user("One?")], [LOOK])
    assert info["branch"] == 0
    assert env.tools == env.tools_of(0) == [LOOK]
    action = say("1")
    ids, reward, terminated, truncated, info = env.step(action)
    assert ids.tolist() == renderer.observe([*prompt, *action], [user("Two?")], tools=[LOOK])
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["branch"], info["stop_reason"]) == (0, None)
    assert "prompt_ids" not in info
    ids, reward, terminated, truncated, info = env.step(say("2"))
    assert (len(ids), reward, terminated, truncated) == (0, 1.0, True, False)
    assert info["stop_reason"] == StopReason.environment
    assert env.messages == [user("One?"), says("1"), user("Two?"), says("2")]
    assert env.heard == [(None, False), ("1", False), ("2", False)]
    assert env.log == ["reward", "cleanup"]  # it ended by itself


def test_a_request_that_extends_no_context_opens_another(renderer: Renderer, say: Say) -> None:
    env = Script(renderer, render_mode="ansi")
    prompt, _ = begin(env, opens("One?"), opens("Sub?", tools=[LOOK]), extends(0, "Two?"))
    ids, _, terminated, truncated, info = env.step(say("1"))
    assert len(ids) == 0
    assert not terminated
    assert not truncated
    assert info["branch"] == 1
    assert info["prompt_ids"] == renderer.prompt([user("Sub?")], [LOOK])
    assert env.tools == env.tools_of(1) == [LOOK]
    assert env.tools_of(0) == []
    ids, *_, info = env.step(say("sub"))
    assert info["branch"] == 0
    assert ids.tolist() == renderer.observe([*prompt, *say("1")], [user("Two?")])
    env.step(say("2"))
    assert env.branches == 2
    assert env.messages_of(0) == [user("One?"), says("1"), user("Two?"), says("2")]
    assert env.messages_of(1) == [user("Sub?"), says("sub")]
    episode = env.episode
    assert [turn.branch for turn in episode.turns] == [0, 1, 0]
    assert episode.branches == ((user("One?"),), (user("Sub?"),))
    assert episode.messages == episode.messages_of(0)
    assert env.render() == (
        "context 0\n[user]\nOne?\n[assistant]\n1\n[user]\nTwo?\n[assistant]\n2\n\n"
        "context 1\n[user]\nSub?\n[assistant]\nsub"
    )
    with pytest.raises(UsageError, match="no context 2; it has 2"):
        env.messages_of(2)
    with pytest.raises(UsageError, match="no context -1"):
        env.tools_of(-1)


def test_calls_are_recorded_and_the_program_says_what_they_returned(
    renderer: Renderer, say: Say, encode: Callable[[str], list[int]]
) -> None:
    env = Script(renderer)
    answer = {"role": "tool", "tool_call_id": "?", "name": "look", "content": "a cat"}

    class Looks(Script):
        """Answers the call by the id that it has."""

        def next_request(self, message: Any, cut: bool) -> Any:
            if message and message.get("tool_calls") and "error" not in message["tool_calls"][0]:
                answered = {**answer, "tool_call_id": message["tool_calls"][0]["id"]}
                return NextRequest(0, [answered])  # type: ignore[list-item]
            return super().next_request(message, cut)

    env = Looks(renderer)
    begin(env, opens("Look!", tools=[LOOK]), extends(0, "What?"), extends(0, "And?"))
    _, _, terminated, _, info = env.step(say("", ("look", {})))
    assert not terminated
    assert [call.name for call in info["tool_calls"]] == ["look"]
    assert info["errors"] == []
    (record,) = env.episode.calls
    assert (record.text, record.result, record.error) == ("a cat", "a cat", None)
    *_, info = env.step(encode("<tool_call>\n{oops\n</tool_call><|im_end|>"))
    assert [error.kind for error in info["errors"]] == ["malformed"]
    env.left.insert(0, extends(0, "No such tool."))
    *_, info = env.step(say("", ("jump", {})))
    assert [call.name for call in info["tool_calls"]] == ["jump"]
    assert [error.kind for error in info["errors"]] == ["unknown_tool"]


def test_turns_are_scored_before_the_program_hears_of_them(renderer: Renderer, say: Say) -> None:
    class Scored(Script):
        """Pays turns by their number."""

        def turn_reward(self, turn: Any) -> float:
            assert len(self.heard) == turn.index + 1
            return float(10 ** (turn.index + 1))

        def text_rewards(self, turn: Any) -> Any:
            return [(1, 0.5)]

    env = Scored(renderer)
    begin(env, opens("One?"), opens("Two?"))
    _, reward, *_, info = env.step(say("1"))
    assert reward == 10.5
    assert sum(info["token_rewards"]) == 0.5
    assert env.step(say("2"))[1] == 101.5


def test_a_cut_action_does_not_end_the_episode(renderer: Renderer, say: Say) -> None:
    env = Script(renderer)
    prompt, _ = begin(env, opens("One?"), extends(0, "Go on."))
    action = say("Well")[:-1]
    ids, _, terminated, truncated, _ = env.step(action)
    assert not terminated
    assert not truncated
    assert env.heard[-1] == ("Well", True)
    assert ids.tolist() == renderer.observe([*prompt, *action], [user("Go on.")])


def test_each_request_answers_the_last_turn_of_its_context(renderer: Renderer, say: Say) -> None:
    env = Script(renderer)
    begin(env, opens("One?"), extends(0, "Two?"), opens("Sub?"), extends(0, "Three?"))
    for text in ["1", "2", "sub", "3"]:
        env.step(say(text))
    results = [[user("Two?")], [user("Three?")], [], []]
    assert [list(turn.results) for turn in env.episode.turns] == results
    said = [message["content"] for message in env.messages]
    assert said == ["One?", "1", "Two?", "2", "Three?", "3"]


def test_a_request_caps_the_action_that_answers_it(renderer: Renderer, encode: Say) -> None:
    env = Script(renderer, max_tokens=100)
    _, info = env.reset(options={"row": {"asks": [opens("Hi", max_tokens=7), extends(0, "More")]}})
    assert info["tokens_left"] == 7
    *_, info = env.step(np.array(encode("Hello<|im_end|>")))
    assert 7 < info["tokens_left"] < 100


def test_a_turn_says_how_many_tokens_it_has_and_how_many_came_before(
    renderer: Renderer, encode: Say
) -> None:
    found = []

    class Counting(Script):
        def next_request(self, message: Any, cut: bool) -> Any:
            if message is not None:
                found.append(self.tokens_of_turn)
            return super().next_request(message, cut)

    env, action = Counting(renderer), encode("Hello<|im_end|>")
    prompt, _ = env.reset(options={"row": {"asks": [opens("Hi")]}})
    env.step(np.array(action))
    assert found == [(len(prompt), len(action))]


def test_turns_that_nobody_has_read_are_named_at_the_end(renderer: Renderer, encode: Say) -> None:
    class Deaf(Script):
        def stop_program(self) -> None:
            self.note_unreceived([1])

        def reward(self, episode: Episode) -> float:
            return float(episode.answer == "Hello")

    env = Deaf(renderer, max_turns=2)
    env.reset(options={"row": {"asks": [opens("Hi"), extends(0, "More"), extends(0, "More")]}})
    *_, info = env.step(np.array(encode("Hello<|im_end|>")))
    assert "unreceived" not in info
    _, reward, *_, info = env.step(np.array(encode("Bye<|im_end|>")))
    assert info["unreceived"] == [1]
    assert reward == 1.0  # an answer is one that was read


def test_a_long_request_keeps_no_other_episode_waiting(
    renderer: Renderer, encode: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are made beside the event loop, whose other tasks go on meanwhile."""
    begun, gone_on, real = threading.Event(), threading.Event(), Renderer.observe
    waited = []

    def observe(self: Renderer, *given: Any, **options: Any) -> list[int]:
        begun.set()
        waited.append(gone_on.wait(60.0))  # which another task of the loop has to end
        return real(self, *given, **options)

    async def another() -> None:
        while not begun.is_set():
            await asyncio.sleep(0.001)
        gone_on.set()

    async def play() -> Any:
        env = Script(renderer, context_length=1000)
        asks = [opens("Hi"), extends(0, "word " * 200_000)]
        await env.areset(options={"row": {"asks": asks}})
        monkeypatch.setattr(Renderer, "observe", observe)
        other = asyncio.create_task(another())
        await env.astep(np.array(encode("Hello<|im_end|>")))
        await other
        return env.refused

    refused = asyncio.run(play())
    assert waited == [True]
    assert len(refused) == 1 and "context_length" in refused[0]
