"""Environments whose server has every accident that a server can have, and what plays them."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import Environment, Outcome, make

ODD = [sys.executable, "-S", str(Path(__file__).parent / "odd_server.py")]
ROW = {"prompt": "Go on."}


@pytest.fixture
def odd() -> Iterator[Callable[..., Any]]:
    """Makes such an environment, given the accidents and settings; it is closed at the end."""
    made: list[Environment] = []

    def server(*accidents: str, **settings: Any) -> Environment:
        settings = {"instructions": False, "max_turns": 100, **settings}
        made.append(make("mcp:odd", command=[*ODD, *accidents], **settings))
        return made[-1]

    yield server
    for env in made:
        env.close()


async def aplay(env: Environment, *messages: dict[str, Any], row: Any = ROW) -> list[Outcome]:
    """Take turns in one episode, which goes on after them."""
    await env.areset(options={"row": row})
    return [await env.act(message) for message in messages]


def play(env: Environment, *messages: dict[str, Any], row: Any = ROW) -> list[Outcome]:
    """The same, on a loop of its own."""
    return asyncio.run(aplay(env, *messages, row=row))


def told(outcome: Outcome) -> str:
    """What the policy reads of the results of a turn."""
    return "\n".join(message["content"] for message in outcome.messages)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
