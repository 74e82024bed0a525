"""What an environment says to a message without calls: `respond`, in messages and in tokens."""

import asyncio
import copy
import pickle
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from gymnast.envs import Environment, Outcome, Renderer, check_env, make, tool
from gymnast.errors import InfrastructureError, UserCodeError
from gymnast.types import Message, StopReason

Play = Callable[..., list[Outcome]]
QUESTIONS = {"questions": ["What is 1 plus 2?", "And 3 plus 4?", "Is that all?"]}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Quiz(Environment):
    """One question after the other."""

    def setup(self, row: Any) -> Any:
        self.left = list(row["questions"])
        self.heard: list[str] = []
        return [user(self.left.pop(0))]

    @tool
    def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b

    def respond(self, message: Any) -> Any:
        self.heard.append(message["content"])
        return [user(self.left.pop(0))] if self.left else None

    def turn_reward(self, turn: Any) -> float:
        return float(len(turn.results))

    def reward(self, episode: Any) -> float:
        return 10.0 * len(self.heard)

    def solve(self, row: Any) -> Any:
        answers = yield "3"
        for _ in row["questions"][1:]:
            answers = yield f"To {answers[0]['content']!r}: 7"


class AsyncQuiz(Quiz):
    """The same, with a hook that is awaited."""

    async def respond(self, message: Any) -> Any:
        await asyncio.sleep(0)
        return super().respond(message)


@pytest.mark.parametrize("kind", [Quiz, AsyncQuiz])
def test_the_conversation_goes_on_until_nothing_is_said(
    kind: type[Quiz], play: Play, calls: Callable[..., dict[str, Any]]
) -> None:
    env = kind()
    called = calls(("add", {"a": 3, "b": 4}))
    outcomes = play(env, says("3"), called, says("7"), says("Yes"), row=QUESTIONS)
    assert [[m["role"] for m in o.messages] for o in outcomes] == [["user"], ["tool"], ["user"], []]
    assert [outcome.reward for outcome in outcomes] == [1, 1, 1, 30]
    assert [o.info["stop_reason"] for o in outcomes] == [None, None, None, StopReason.answered]
    assert env.heard == ["3", "7", "Yes"]  # and no call
    said = [m["content"] for m in env.messages if m["role"] == "user"]
    assert said == QUESTIONS["questions"]
    assert env.episode.answer == "Yes"


@pytest.mark.parametrize("kind", [Quiz, AsyncQuiz])
def test_steps_in_tokens_append_what_is_said(
    kind: type[Quiz], renderer: Renderer, tokenizer: Any, say: Callable[..., list[int]]
) -> None:
    env = kind(renderer)
    prompt, info = env.reset(options={"row": QUESTIONS})
    ids, reward, terminated, truncated, _ = env.step(say("3"))
    assert tokenizer.decode(ids) == (
        "\n<|im_start|>user\nAnd 3 plus 4?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (reward, terminated, truncated) == (1.0, False, False)
    whole = [*prompt, *say("3"), *ids]
    assert whole == renderer.prompt(env.messages, env.tools)
    env.step(say("7"))
    ids, reward, terminated, _, info = env.step(say("Yes"))
    assert (len(ids), reward, terminated, info["stop_reason"]) == (0, 30.0, True, "answered")
    assert info["timings"].keys() >= {"respond"}


def test_gymnasium_and_its_vectors_step_through_the_conversation(
    renderer: Renderer, say: Callable[..., list[int]]
) -> None:
    class Drawn(Quiz):
        def sample_row(self, rng: np.random.Generator) -> Any:
            return QUESTIONS

    env = gymnasium.wrappers.OrderEnforcing(Drawn(renderer, max_turns=2))
    env.reset(seed=0)
    assert not any(env.step(np.array(say("3")))[2:4])
    ids, _, terminated, truncated, info = env.step(np.array(say("7")))
    assert (terminated, truncated, info["stop_reason"]) == (False, True, StopReason.max_turns)
    assert renderer.decode(ids.tolist()).count("Is that all?") == 1  # and no further turn opened
    assert not renderer.decode(ids.tolist()).endswith("assistant\n")
    assert check_env(Drawn(renderer)).rewards


class Game(Environment):
    """Moves are messages; the game ends, hangs or breaks as the policy says."""

    def setup(self, row: Any) -> Any:
        self.moves = 0
        return [user("Your move?")]

    async def respond(self, message: Any) -> Any:
        self.moves += 1
        if message["content"] == "hang":
            await asyncio.sleep(60)
        if message["content"] == "break":
            raise InfrastructureError("the user's model is gone")
        if message["content"] == "win":
            self.end_episode()
            return [user("You have won.")]
        return [user("Next?")]

    def reward(self, episode: Any) -> float:
        return float(self.moves)


def test_an_environment_may_end_the_episode_with_its_words(
    renderer: Renderer, say: Callable[..., list[int]], play: Play
) -> None:
    env = Game(renderer)
    env.reset(options={"row": {}})
    ids, reward, terminated, _, info = env.step(say("win"))
    assert (terminated, reward, info["stop_reason"]) == (True, 1.0, StopReason.environment)
    assert renderer.decode(ids.tolist()) == "\n<|im_start|>user\nYou have won.<|im_end|>\n"
    env.close()


def test_the_last_move_counts_and_its_turn_is_the_last(play: Play) -> None:
    *_, last = play(Game(max_turns=2), says("a"), says("b"), row={"any": 1})
    assert (last.info["stop_reason"], last.truncated, last.reward) == ("max_turns", True, 2.0)
    assert last.messages == [user("Next?")]


@pytest.mark.parametrize("sync", [False, True])
def test_an_episode_whose_time_is_up_while_the_user_thinks_is_truncated(
    play: Play, sync: bool
) -> None:
    class Slow(Game):
        def respond(self, message: Any) -> Any:
            time.sleep(1)

    env = (Slow if sync else Game)(episode_timeout_s=0.2)
    (last,) = play(env, says("hang"), row={"any": 1})
    assert (last.info["stop_reason"], last.truncated) == (StopReason.timeout, True)
    assert last.messages == []
    assert last.info["metrics"]["tools/abandoned_threads"] == float(sync)


def test_after_its_time_an_episode_is_not_responded_to(
    renderer: Renderer, say: Callable[..., list[int]]
) -> None:
    """A sync hook that began would hold its thread, which would be counted as abandoned."""
    env = Quiz(renderer, episode_timeout_s=0.05)
    env.reset(options={"row": QUESTIONS})
    time.sleep(0.06)  # the policy thinks
    ids, *_, info = env.step(say("3"))
    assert (len(ids), info["stop_reason"], env.heard) == (0, StopReason.timeout, [])
    assert info["metrics"]["tools/abandoned_threads"] == 0.0


def test_copies_within_a_conversation_go_on_without_its_agent(
    renderer: Renderer, say: Callable[..., list[int]]
) -> None:
    async def agent(messages: Any, tools: Any) -> Any:
        return says("Go on.")

    env, hello = Game(renderer), [Message(role="user", content="Hello.")]
    env.reset(options={"row": {"any": 1}, "agent": agent})
    env.step(say("a"))
    for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert copied.messages == env.messages
        assert copied.step(say("win"))[1] == 2.0
        with pytest.raises(UserCodeError, match="no agent plays this episode"):
            asyncio.run(copied.ask_agent(hello))
        copied.close()
    assert asyncio.run(env.ask_agent(hello)) == says("Go on.")
    env.close()


def test_a_user_that_is_lost_ends_the_episode_as_an_error(play: Play) -> None:
    (last,) = play(Game(), says("break"), row={"any": 1})
    assert (last.info["stop_reason"], last.reward) == (StopReason.error, 0.0)
    assert last.info["failure"] == "InfrastructureError: the user's model is gone"


def test_what_does_not_fit_is_not_appended(
    renderer: Renderer, say: Callable[..., list[int]]
) -> None:
    env = Quiz(renderer)
    prompt, _ = env.reset(options={"row": QUESTIONS})
    observed = len(env.step(say("3"))[0])
    for room, reason in ((observed, "context"), (observed - 9, "context"), (observed + 1, None)):
        env.context_length = len(prompt) + len(say("3")) + room
        env.reset(options={"row": QUESTIONS})
        ids, *_, info = env.step(say("3"))
        assert info["stop_reason"] == reason
        assert len(prompt) + len(say("3")) + len(ids) <= env.context_length


def test_a_message_that_was_cut_is_not_responded_to(
    renderer: Renderer, encode: Callable[[str], list[int]]
) -> None:
    env = Quiz(renderer)
    env.reset(options={"row": QUESTIONS})
    *_, info = env.step(encode("3 is the"))
    assert (info["stop_reason"], env.heard) == (StopReason.max_tokens, [])


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ([], r"returned \[\]; it must return a list of messages"),
        ("Go on.", "returned 'Go on.'; it must return a list of messages"),
        ([says("I am the policy.")], "role 'assistant'; the policy speaks for the assistant"),
        ([{"role": "tool", "content": "1", "tool_call_id": "a"}], "role 'tool'; .*'role': 'user'"),
        (
            [{**user("Now."), "tools": [{"name": "shut"}]}, user("Go on.")],
            "returned `tools` with a message that is not the last",
        ),
        ([{"role": "user", "content": 3}], "messages that are not text: the content of message 0"),
    ],
)
def test_what_cannot_be_said_is_the_authors_mistake(play: Play, said: Any, problem: str) -> None:
    class Wrong(Environment):
        def respond(self, message: Any) -> Any:
            return said

    with pytest.raises(UserCodeError, match=f"Wrong.respond: .*{problem}") as raised:
        play(Wrong(), says("Hello"))
    assert raised.value.row == {"prompt": "Go."}


def test_an_exception_in_it_stops_the_run_with_the_row(play: Play) -> None:
    class Broken(Environment):
        def respond(self, message: Any) -> Any:
            return [self.nothing]  # type: ignore[attr-defined]

    with pytest.raises(UserCodeError, match=r"Broken\.respond: AttributeError"):
        play(Broken(), says("Hello"))


def test_a_solution_is_sent_what_is_said_and_worked_turns_show_it(renderer: Renderer) -> None:
    env = make(Quiz, renderer, rows=[QUESTIONS, {"questions": ["A?", "B?"]}], worked_turns=1)
    env.reset(options={"row": {"questions": ["C?"]}})
    shown = [m["content"] for m in env.messages]
    assert shown in (
        ["A?", "3", "B?", "To 'B?': 7", "C?"],
        [
            "What is 1 plus 2?",
            "3",
            "And 3 plus 4?",
            "To 'And 3 plus 4?': 7",
            "Is that all?",
            "To 'Is that all?': 7",
            "C?",
        ],
    )
    env.close()
