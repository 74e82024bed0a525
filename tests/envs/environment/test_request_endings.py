"""How the episode of a program ends: by itself, by a limit, or because something broke."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gymnast.envs import NextRequest, Renderer
from gymnast.errors import (
    InfrastructureError,
    NoRequest,
    PromptTooLong,
    SandboxBroken,
    UserCodeError,
)
from gymnast.types import StopReason
from request_fixtures import AsyncScript, Script, begin, extends, opens, says, user

Say = Callable[..., list[int]]


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


def test_a_box_that_the_policy_broke_ends_the_episode(renderer: Renderer, say: Say) -> None:
    env = Script(renderer)
    begin(env, opens("One?"), SandboxBroken("its processes are gone"))
    _, reward, terminated, _, info = env.step(say("1"))
    assert (reward, terminated, info["stop_reason"]) == (0.0, True, StopReason.environment)
    assert env.log == ["stop", "cleanup"]


def test_a_step_that_is_cancelled_stops_the_program(renderer: Renderer, say: Say) -> None:
    env = AsyncScript(renderer)
    begin(env, opens("One?"), 60.0)

    async def cancelled() -> None:
        step = asyncio.ensure_future(env.astep(say("1")))
        await asyncio.sleep(0.05)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step

    asyncio.run(cancelled())
    assert env.log == ["stop", "cleanup"]


def test_a_sync_hook_that_hangs_is_left_behind(renderer: Renderer, say: Say) -> None:
    class Hangs(Script):
        """Waits for its program with a blocking call."""

        def ask(self) -> Any:
            asked = super().ask()
            return time.sleep(asked) if isinstance(asked, float) else asked

    env = Hangs(renderer, episode_timeout_s=0.3)
    begin(env, opens("One?"), 2.0)
    *_, truncated, info = env.step(say("1"))
    assert truncated
    assert info["stop_reason"] == StopReason.timeout
    assert info["metrics"]["tools/abandoned_threads"] == 1.0
    assert env.log == ["stop", "reward", "cleanup"]


def test_what_refuse_raises_is_the_users_mistake(renderer: Renderer, say: Say) -> None:
    class Refuses(Script):
        """Cannot be refused."""

        def ask(self) -> Any:
            asked = super().ask()
            return asked and replace(asked, refuse=[].remove)

    env = Refuses(renderer, context_length=60)
    begin(env, opens("One?"), opens("word " * 60))
    with pytest.raises(UserCodeError, match=r"Refuses\.next_request: ValueError"):
        env.step(say("1"))
