"""Limits that a row has of its own, in place of the environment's."""

import asyncio
from typing import Any

import pytest

from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import DataError


class Steps(Environment):
    """Takes steps."""

    @tool
    def go(self) -> str:
        """Go."""
        return "gone"

    @tool
    async def wait(self) -> str:
        """Wait."""
        await asyncio.sleep(5)
        return "waited"


def played(env: Environment, limits: Any, name: str = "go", turns: int = 4) -> list[Any]:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": {}}}]}

    async def play() -> list[Any]:
        await env.areset(options={"row": {"prompt": "Go.", "limits": limits}})
        outcomes: list[Any] = []
        while len(outcomes) < turns and not (outcomes and outcomes[-1].truncated):
            outcomes.append(await env.act(message))
        return outcomes

    return asyncio.run(play())


def test_turns_are_those_of_the_row_and_then_of_the_environment_again() -> None:
    env = Steps(max_turns=3)
    assert len(played(env, {"max_turns": 2})) == 2
    assert len(played(env, None)) == len(played(env, {"max_turns": None})) == 3
    assert len(played(env, {"max_turns": 4})) == 4
    assert env.max_turns == 3


def test_tokens_and_seconds_are_those_of_the_row(renderer: Renderer) -> None:
    env = Steps(renderer)
    row = {"prompt": "Go.", "limits": {"max_tokens": 7}}
    assert env.reset(options={"row": row})[1]["tokens_left"] == 7
    [outcome] = played(env, {"episode_timeout_s": 0.2}, "wait")
    assert outcome.info["stop_reason"] == "timeout"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (3, "'limits' is 3; it must be a mapping"),
        ({"max_turn": 3}, "has 'max_turn'. Did you mean 'max_turns'"),
        ({"context_length": 3}, "has 'context_length'.* It may have: max_turns, max_tokens"),
        ({"max_turns": 0}, "max_turns must be a whole number >= 1, got 0"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number >= 1, got 1.5"),
        ({"max_turns": True}, "max_turns must be a whole number >= 1, got True"),
        ({"episode_timeout_s": "5"}, "episode_timeout_s must be a number > 0, got '5'"),
    ],
)
def test_other_limits_are_refused(limits: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        played(Steps(), limits)
