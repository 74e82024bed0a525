"""Environments whose server has every accident that a server can have, and what plays them."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import Environment, Outcome, make

ODD_FILE = Path(__file__).parent / "odd_server.py"
ODD = [sys.executable, "-S", str(ODD_FILE)]
ROW = {"prompt": "Go on."}
_END_S = 10.0  # for a process that was killed to be gone


@pytest.fixture
def odd() -> Iterator[Callable[..., Any]]:
    """Makes such an environment, given the accidents and settings; it is closed at the end."""
    made: list[Environment] = []

    def server(*accidents: str, name: str = "odd", **settings: Any) -> Environment:
        settings = {"instructions": False, "max_turns": 100, **settings}
        made.append(make(f"mcp:{name}", command=[*ODD, *accidents], **settings))
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
    return state not in "ZX"


def running_servers() -> list[int]:
    """The processes of such servers, in boxes as well."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            said = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if ODD_FILE.name.encode() in said and is_running(int(folder.name)):
            found.append(int(folder.name))
    return found


def left(running: Callable[[], list[int]]) -> list[int]:
    """What still runs after the moment that the kernel takes to end what was killed."""
    deadline = time.monotonic() + _END_S
    while (found := running()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def have_ended(*pids: int) -> bool:
    """Whether these processes end."""
    return not left(lambda: list(filter(is_running, pids)))
