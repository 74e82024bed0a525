"""Requests beside what else there is: `act`, plain text, copies, hints, checks, mixtures."""

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from gymnast.envs import Mixture, Renderer, check_env, compose, tool
from gymnast.errors import (
    ConfigError,
    ToolDefinitionError,
)
from gymnast.types import StopReason
from request_fixtures import AsyncScript, Script, Twice, begin, extends, opens, says, user

Say = Callable[..., list[int]]


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


@pytest.mark.parametrize("hook", ["tools_for", "call_tool", "respond"])
def test_a_class_with_requests_has_no_hook_that_is_never_asked(hook: str) -> None:
    with pytest.raises(ToolDefinitionError, match=f"Both has the hooks `{hook}` and `next_request"):
        type("Both", (Script,), {hook: lambda self, *given: None})


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


def test_a_teacher_sees_the_hint_before_what_the_program_asked_first(renderer: Renderer) -> None:
    class Hinted(Script):
        """Tells a teacher the answer."""

        def hint(self, row: Any) -> Any:
            return [user("It is 4.")]

    env = Hinted(renderer, system_prompt="Be brief.")
    _, info = begin(env, opens("What is 2 + 2?"), hint=True)
    system = {"role": "system", "content": "Be brief."}
    expected = renderer.prompt([system, user("It is 4."), user("What is 2 + 2?")])
    assert info["teacher_prompt_ids"] == expected


def test_several_environments_step_together(renderer: Renderer) -> None:
    made = [lambda: Twice(renderer, rows=[{"n": 1}])] * 2
    envs: Any = SyncVectorEnv(made)
    ids, info = envs.reset(seed=1)
    assert len(ids) == 2
    assert info["branch"].tolist() == [0, 0]
    _, _, terminated, truncated, info = envs.step(envs.action_space.sample())
    assert not terminated.any()
    assert truncated.all()  # which follows no branches
    envs.close()


def test_a_mixture_plays_programs_too(renderer: Renderer, say: Say) -> None:
    env = Mixture({Script: 1.0, "gymnast/Arithmetic-v0": 1.0}, renderer=renderer)
    row = {"environment": "Script", "asks": [opens("One?"), opens("Two?"), opens("Three?")]}
    env.reset(options={"row": row, "branches": True})
    assert env.step(say("1"))[4]["branch"] == 1
    assert env.step(say("2"))[4]["branch"] == 2
    assert env.branches == 3
    assert env.messages_of(1) == [user("Two?"), says("2")]
    assert env.step(say("3"))[2]
