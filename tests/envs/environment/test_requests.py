"""A program that has the loop: its requests are the observations, in one context or several."""

import asyncio
import copy
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from gymnast.envs import Environment, NextRequest, Renderer, check_env, compose, tool
from gymnast.errors import (
    ConfigError,
    InfrastructureError,
    NoRequest,
    PromptTooLong,
    ToolDefinitionError,
    UsageError,
    UserCodeError,
)
from gymnast.types import StopReason

Say = Callable[..., list[int]]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def opens(*texts: str, **settings: Any) -> NextRequest:
    return NextRequest(None, [user(text) for text in texts], **settings)  # type: ignore[misc]


def extends(branch: int, *texts: str) -> NextRequest:
    return NextRequest(branch, [user(text) for text in texts])  # type: ignore[misc]


class Script(Environment):
    """A program that asks one request of its row after the other, and then ends."""

    def setup(self, row: Any) -> None:
        self.left = list(row["asks"])
        self.heard: list[Any] = []
        self.refused: list[str] = []
        self.log: list[str] = []

    def next_request(self, message: Any, cut: bool) -> Any:
        self.heard.append((message and message["content"], cut))
        return self.ask()

    def ask(self) -> Any:
        asked = self.left.pop(0) if self.left else None
        if isinstance(asked, Exception):
            raise asked
        if isinstance(asked, NextRequest):
            shown = {**vars(asked), "refuse": self.refused.append}
            return NextRequest(**shown)
        return asked

    def stop_program(self) -> None:
        self.log.append("stop")

    def reward(self, episode: Any) -> float:
        self.log.append("reward")
        return 1.0

    def cleanup(self) -> None:
        self.log.append("cleanup")


class AsyncScript(Script):
    """The same with hooks that are awaited; a number is how many seconds it does not answer."""

    async def next_request(self, message: Any, cut: bool) -> Any:
        asked = super().next_request(message, cut)
        if isinstance(asked, float):
            await asyncio.sleep(asked)
        return asked

    async def stop_program(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().stop_program()


def begin(env: Environment, *asks: Any, **options: Any) -> tuple[list[int], dict[str, Any]]:
    ids, info = env.reset(options={"row": {"asks": list(asks)}, "branches": True, **options})
    return ids.tolist(), info


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


# ---- limits ----


def test_a_driver_that_follows_no_branches_gets_the_episode_truncated(
    renderer: Renderer, say: Say
) -> None:
    env = Script(renderer)
    begin(env, opens("One?"), extends(0, "Two?"), opens("Sub?"), branches=False)
    assert not env.step(say("1"))[3]
    ids, reward, terminated, truncated, info = env.step(say("2"))
    assert (len(ids), reward, terminated, truncated) == (0, 1.0, False, True)
    assert info["stop_reason"] == StopReason.context
    assert env.branches == 1
    assert env.log == ["stop", "reward", "cleanup"]


@pytest.mark.parametrize("further", [True, False])
def test_the_last_turn_is_told_to_the_program(renderer: Renderer, say: Say, further: bool) -> None:
    env = Script(renderer, max_turns=2)
    begin(env, opens("One?"), extends(0, "Two?"), *([extends(0, "Three?")] if further else []))
    env.step(say("1"))
    ids, _, terminated, truncated, info = env.step(say("2"))
    assert env.heard[-1] == ("2", False)
    assert len(ids) == 0
    assert (terminated, truncated) == (not further, further)
    expected = StopReason.max_turns if further else StopReason.environment
    assert info["stop_reason"] == expected
    assert env.messages[-1] == says("2")  # what cannot be answered is not appended
    assert env.log == [*(["stop"] if further else []), "reward", "cleanup"]


def test_max_tokens_counts_what_follows_the_prompts_of_all_contexts(
    renderer: Renderer, say: Say
) -> None:
    action = say("word " * 8)
    env = Script(renderer, max_tokens=3 * len(action) - 1)
    begin(env, opens("One?"), opens("A long prompt. " * 20), opens("Three?"))
    left = [env.step(action)[4]["tokens_left"] for _ in range(2)]
    assert left == [2 * len(action) - 1, len(action) - 1]
    *_, truncated, info = env.step(action[: left[-1]])
    assert not truncated
    assert info["stop_reason"] == StopReason.environment
    begin(env, opens("One?"), opens("Two?"), opens("Three?"), opens("Four?"))
    env.step(action)
    env.step(action)
    *_, truncated, info = env.step(action[: left[-1]])
    assert info["stop_reason"] == StopReason.max_tokens
    assert truncated
    assert env.branches == 3
    assert env.log == ["stop", "reward", "cleanup"]


def test_max_tokens_that_another_context_spends_are_gone_here(renderer: Renderer, say: Say) -> None:
    env = Script(renderer, max_tokens=1000)
    begin(env, opens("One?"), opens("Two?"), extends(0, "Again?"))
    first = say("1")
    other = say("word " * 50)
    env.step(first)
    ids, *_, info = env.step(other)
    assert info["branch"] == 0
    assert info["tokens_left"] == 1000 - len(first) - len(other) - len(ids)


def test_a_request_that_does_not_fit_is_refused_and_the_program_may_compact(
    renderer: Renderer, say: Say
) -> None:
    env = Script(renderer, context_length=60)
    begin(env, opens("One?"), extends(0, "word " * 60), opens("Long " * 60), opens("Short?"))
    ids, _, _, truncated, info = env.step(say("1"))
    assert (len(ids), truncated, info["branch"]) == (0, False, 1)
    assert info["prompt_ids"] == renderer.prompt([user("Short?")])
    assert len(env.refused) == 2
    assert "context_length allows 60" in env.refused[0]
    assert "context_length=60" in env.refused[1]
    assert env.heard == [(None, False), ("1", False), (None, False), (None, False)]
    assert env.messages == [user("One?"), says("1")]


def test_a_program_that_never_asks_what_fits_ends_truncated(renderer: Renderer, say: Say) -> None:
    env = Script(renderer, context_length=60)
    begin(env, opens("One?"), *[extends(0, "word " * 60)] * 100)
    *_, truncated, info = env.step(say("1"))
    assert truncated
    assert info["stop_reason"] == StopReason.context
    assert len(env.refused) == 16
    assert env.log == ["stop", "reward", "cleanup"]


def test_a_first_request_that_does_not_fit_is_raised(renderer: Renderer) -> None:
    env = Script(renderer, context_length=20)
    with pytest.raises(PromptTooLong, match="context_length=20"):
        begin(env, opens("word " * 60))
    assert env.log == ["stop", "cleanup"]


def test_what_the_chat_template_refuses_is_refused(tokenizer: Any, say: Say) -> None:
    template = (
        "{% for m in messages %}{% if m.content == 'Forbidden' %}"
        "{{ raise_exception('that is forbidden') }}{% endif %}{% endfor %}"
    )
    renderer = Renderer(tokenizer, chat_template=template + tokenizer.chat_template)
    env = Script(renderer)
    begin(env, opens("One?"), opens("Forbidden"), extends(0, "Two?"))
    *_, truncated, info = env.step(say("1"))
    assert not truncated
    assert info["branch"] == 0
    assert "that is forbidden" in env.refused[0]


@pytest.mark.parametrize("where", ["asked", "before"])
def test_the_episodes_time_bounds_waiting_for_requests(
    renderer: Renderer, say: Say, where: str
) -> None:
    env = AsyncScript(renderer, episode_timeout_s=0.3)
    begin(env, opens("One?"), 60.0)
    if where == "before":
        time.sleep(0.35)
    *_, truncated, info = env.step(say("1"))
    assert truncated
    assert info["stop_reason"] == StopReason.timeout
    assert len(env.heard) == (2 if where == "asked" else 1)
    assert env.log == ["stop", "reward", "cleanup"]


def test_a_program_that_asks_nothing_in_time_made_no_request(renderer: Renderer) -> None:
    env = AsyncScript(renderer, episode_timeout_s=0.2)
    with pytest.raises(NoRequest, match=r"asked nothing within episode_timeout_s=0\.2"):
        begin(env, 60.0)
    assert env.log == ["stop", "cleanup"]


# ---- other ends ----


def test_a_program_that_ends_before_its_first_request(renderer: Renderer) -> None:
    env = Script(renderer)
    with pytest.raises(NoRequest, match="ended before its first request"):
        begin(env)
    assert env.log == ["cleanup"]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(RuntimeError("oops"), UserCodeError), (InfrastructureError("gone"), InfrastructureError)],
)
def test_what_the_first_request_raises_is_raised_by_reset(
    renderer: Renderer, raised: Exception, expected: type[Exception]
) -> None:
    env = Script(renderer)
    with pytest.raises(expected, match=str(raised)):
        begin(env, raised)
    assert env.log == ["stop", "cleanup"]


def test_infrastructure_that_breaks_ends_the_episode_as_everywhere(
    renderer: Renderer, say: Say
) -> None:
    env = Script(renderer)
    begin(env, opens("One?"), InfrastructureError("the line is gone"))
    _, reward, _, truncated, info = env.step(say("1"))
    assert (reward, truncated, info["stop_reason"]) == (0.0, True, StopReason.error)
    assert "the line is gone" in info["failure"]
    assert env.log == ["stop", "cleanup"]


def test_the_users_mistake_stops_the_run(renderer: Renderer, say: Say) -> None:
    env = Script(renderer)
    begin(env, opens("One?"), ValueError("oops"))
    with pytest.raises(UserCodeError, match=r"Script\.next_request: ValueError: oops"):
        env.step(say("1"))
    assert env.log == ["stop", "cleanup"]


@pytest.mark.parametrize("ends", ["reset", "close", "end_episode"])
def test_a_program_is_stopped_once_whatever_ends_its_episode(
    renderer: Renderer, say: Say, ends: str
) -> None:
    env = Script(renderer)
    begin(env, opens("One?"), extends(0, "Two?"), extends(0, "Three?"))
    env.step(say("1"))
    log = env.log
    if ends == "reset":
        begin(env, opens("One?"))
    elif ends == "close":
        env.close()
    else:
        env.turn_reward = lambda turn: env.end_episode() or 0.0  # type: ignore[method-assign,func-returns-value]
        assert env.step(say("2"))[4]["stop_reason"] == StopReason.environment
        assert len(env.heard) == 2
    env.close()
    env.close()
    assert log == ["stop", *(["reward"] if ends == "end_episode" else []), "cleanup"]


def test_a_stop_that_fails_does_not_keep_cleanup_from_running(renderer: Renderer) -> None:
    class Stuck(Script):
        """Cannot be stopped."""

        def stop_program(self) -> None:
            raise RuntimeError("it does not die")

    env = Stuck(renderer)
    begin(env, opens("One?"))
    with pytest.raises(UserCodeError, match=r"stop_program: RuntimeError: it does not die"):
        env.close()
    assert env.log == ["cleanup"]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("hello", "must return a NextRequest, or None"),
        (extends(1, "Two?"), "of context 1, but the episode has 1"),
        (NextRequest(0, [says("I")]), "appends an assistant's message"),  # type: ignore[list-item]
        (NextRequest(None, []), "must return a list of messages"),
    ],
)
def test_what_is_no_request_says_so(renderer: Renderer, say: Say, asked: Any, problem: str) -> None:
    env = Script(renderer)
    begin(env, opens("One?"), asked)
    with pytest.raises(UserCodeError, match=problem):
        env.step(say("1"))


# ---- in messages, and beside the rest ----


def test_act_needs_no_renderer() -> None:
    env = AsyncScript(max_turns=3)

    async def run() -> Iterator[Any]:
        asks = [opens("One?"), extends(0, "Two?"), opens("Sub?", "Now."), extends(0, "Three?")]
        ids, info = await env.areset(options={"row": {"asks": asks}, "branches": True})
        assert len(ids) == 0
        assert info["branch"] == 0
        return iter([await env.act(says(str(number))) for number in range(3)])

    first, second, third = asyncio.run(run())
    assert first.messages == [user("Two?")]
    assert first.info["branch"] == 0
    assert second.messages == [user("Sub?"), user("Now.")]
    assert second.info["branch"] == 1
    assert "prompt_ids" not in second.info
    assert (third.messages, third.truncated) == ([], True)
    assert third.info["stop_reason"] == StopReason.max_turns
    assert env.messages_of(1) == [user("Sub?"), user("Now."), says("2")]


def test_plain_text_is_a_context_without_a_chat_template(
    renderer: Renderer, tokenizer: Any, encode: Callable[[str], list[int]]
) -> None:
    env = Script(renderer, system_prompt="Be brief.")
    asks = [opens("Once upon", plain=True), extends(0, " and <|im_end|>then"), opens("One?")]
    prompt, info = begin(env, *asks)
    assert prompt == encode("Once upon")
    assert info["stop_ids"] == [tokenizer.eos_token_id]
    ids = env.step([*encode(" a time"), tokenizer.eos_token_id])[0]
    assert tokenizer.decode(ids) == " and <|im_end|>then"
    assert tokenizer.eos_token_id not in ids
    assert env.heard[-1] == (" a time", False)
    *_, info = env.step(encode(" more"))
    assert env.heard[-1] == (" more", True)
    assert info["stop_ids"] == list(renderer.stop_ids)
    system = {"role": "system", "content": "Be brief."}
    assert info["prompt_ids"] == renderer.prompt([system, user("One?")])


def test_whether_requests_may_overlap_is_known_to_the_class(renderer: Renderer) -> None:
    env = Script(renderer)
    begin(env, opens("One?"), parallel_requests=False)
    assert env.parallel_requests is False
    begin(env, opens("One?"))
    assert env.parallel_requests is True


def test_a_copy_goes_on_with_all_contexts(renderer: Renderer, say: Say) -> None:
    env = Script(renderer)
    begin(env, opens("One?"), opens("Two", plain=True), extends(0, "Three?"))
    env.step(say("1"))
    for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert copied.messages_of(1) == env.messages_of(1)
        ids, *_, info = copied.step(say("2"))
        assert info["branch"] == 0
        assert len(ids) > 0
        copied.close()


class Twice(Environment):
    """Asks a question, lets a helper look, and asks again."""

    def setup(self, row: Any) -> None:
        self.turn = 0

    def next_request(self, message: Any, cut: bool) -> Any:
        self.turn += 1
        asks: Sequence[Any] = [opens("One?"), opens("Look.", tools=[LOOK]), extends(0, "Two?")]
        return asks[self.turn - 1] if self.turn <= len(asks) else None

    def reward(self, episode: Any) -> float:
        return float(len(episode.turns))


def test_check_env_follows_the_contexts(renderer: Renderer) -> None:
    env = Twice(renderer, rows=[{"n": 1}], context_length=500)
    report = check_env(env)
    assert [played.stop_reason for played in report.idle] == ["environment"] * 3
    assert report.rewards
    env.close()


def test_a_class_with_requests_has_no_tools() -> None:
    with pytest.raises(ToolDefinitionError, match="has the tools look and the hook `next_request`"):

        class Both(Script):
            """Has a tool too."""

            @tool
            def look(self) -> str:
                """Look."""
                return ""


def test_what_has_no_meaning_beside_requests_is_refused(renderer: Renderer) -> None:
    with pytest.raises(ConfigError, match="worked_turns=1 would show turns before a prompt"):
        Script(renderer, worked_turns=1)
    with pytest.raises(ConfigError, match="look"):
        Script(renderer, stop_tools=["look"])
    with pytest.raises(ConfigError, match="Script has the hook `next_request`"):
        compose("gymnast/Arithmetic-v0", Script)


def test_states_are_asked_for_before_each_turn(renderer: Renderer, say: Say) -> None:
    class States(Script):
        """Acts in states."""

        def turn_state(self) -> Any:
            return (len(self.episode.turns), self.branches)

    env = States(renderer)
    info = begin(env, opens("One?"), opens("Two?"))[1]
    assert info["state"] == (0, 1)
    assert env.step(say("1"))[4]["state"] == (1, 2)
    assert "state" not in env.step(say("2"))[4]


def test_ids_are_arrays(renderer: Renderer, say: Say) -> None:
    env = Script(renderer)
    ids, _ = env.reset(options={"row": {"asks": [opens("One?"), opens("Two?")]}, "branches": True})
    assert ids.dtype == np.int64
    assert env.step(say("1"))[0].dtype == np.int64


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

    env = Deaf(renderer, max_turns=2)
    env.reset(options={"row": {"asks": [opens("Hi"), extends(0, "More"), extends(0, "More")]}})
    *_, info = env.step(np.array(encode("Hello<|im_end|>")))
    assert "unreceived" not in info
    *_, info = env.step(np.array(encode("Hello<|im_end|>")))
    assert info["unreceived"] == [1]
