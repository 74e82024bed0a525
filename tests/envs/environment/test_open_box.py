"""Boxes beside the episode's, and an environment of a user's that does what Container does."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from gymnast.envs import Environment, tool
from gymnast.errors import SandboxDead, UserCodeError
from gymnast.sandboxes import Sandbox, SandboxSpec
from gymnast.types import StopReason

ANSWER = {"role": "assistant", "content": "Done."}
GO = {"row": {"prompt": "Go."}}


class Compare(Environment):
    """Runs commands in a second box."""

    sandbox_spec: ClassVar[SandboxSpec | None] = SandboxSpec()

    def prepare_sandbox(self, sandbox: Sandbox) -> None:
        sandbox.write_file("own.txt", "mine")

    async def setup(self, row: Any) -> None:
        self.beside = await self.open_box()

    @tool
    async def look(self) -> str:
        """List the files of both boxes."""
        boxes = (self.sandbox, self.beside)
        return " | ".join([(await box.aexec("ls")).stdout.strip() for box in boxes])

    @tool
    async def lose(self) -> str:
        """Break the second box."""
        self.beside.close()
        return (await self.beside.aexec("true")).stdout

    async def reward(self, episode: Any) -> float:
        async with await self.open_box() as box:
            return float((await box.aexec("test ! -e own.txt")).verdict == "ok")


def test_a_further_box_is_empty_and_closed_with_the_episode(calls: Callable[..., Any]) -> None:
    env = Compare(sandbox="local")
    env.reset(options=GO)
    first = env.beside
    turn = asyncio.run(env.act(calls(("look", {}))))
    assert turn.messages[0]["content"] == "own.txt | "
    assert first.alive
    assert asyncio.run(env.act(ANSWER)).reward == 1.0
    assert not first.alive
    env.reset(options=GO)
    second = env.beside
    env.reset(options=GO)  # an episode that is given up closes its boxes as well
    assert not second.alive and env.beside.alive
    env.close()
    assert not env.beside.alive


def test_a_further_box_that_is_gone_is_an_accident(calls: Callable[..., Any]) -> None:
    env = Compare(sandbox="local")
    env.reset(options=GO)
    ended = asyncio.run(env.act(calls(("lose", {}))))
    assert ended.info["stop_reason"] is StopReason.error
    env.close()


def test_one_can_be_opened_between_episodes_and_close_closes_it() -> None:
    env = Compare(sandbox="local")
    box = asyncio.run(env.open_box())
    assert box.alive
    env.close()
    assert not box.alive


def test_episodes_that_each_hold_several_boxes_do_not_wait_for_one_another() -> None:
    class Greedy(Compare):
        async def setup(self, row: Any) -> None:
            self.held = [await self.open_box() for _ in range(3)]

    envs = [Greedy(sandbox={"backend": "local", "max_boxes": 2}) for _ in range(2)]

    async def begin() -> None:
        await asyncio.wait_for(asyncio.gather(*(env.areset(options=GO) for env in envs)), 60)

    asyncio.run(begin())
    assert len({id(box) for env in envs for box in env.held}) == 6
    for env in envs:
        env.close()
        assert not any(box.alive for box in env.held)


def test_without_a_spec_the_class_is_told_what_to_declare() -> None:
    class Bare(Environment):
        async def setup(self, row: Any) -> None:
            await self.open_box()

    with pytest.raises(UserCodeError, match=r"Bare uses self\.open_box, .*sandbox_spec = Sandbox"):
        Bare().reset(options=GO)
    with pytest.raises(UserCodeError, match=r"Bare uses self\.box_settings"):
        _ = Bare().box_settings


def test_a_box_that_comes_after_the_episode_is_closed() -> None:
    class Late(Compare):
        async def setup(self, row: Any) -> None:
            self.opening = asyncio.create_task(self.open_box())
            await asyncio.sleep(0)

    env = Late(sandbox="local")

    async def play() -> Any:
        await env.areset(options=GO)
        await env.aclose()
        return await asyncio.gather(env.opening, return_exceptions=True)

    (outcome,) = asyncio.run(play())
    assert isinstance(outcome, SandboxDead) or not outcome.alive


PROGRAM = """\
import json, os, sys
operation, *rest = sys.argv[1:]
if operation == "describe":
    count = {"name": "count", "description": "Count the eggs."}
    lay = {"name": "lay", "description": "Lay some eggs.", "parameters": {"type": "object",
           "properties": {"number": {"type": "integer", "minimum": 1}}, "required": ["number"]}}
    print(json.dumps([count, lay]))
elif operation == "call":
    arguments = json.load(sys.stdin)
    eggs = int(open("eggs").read())
    if rest == ["lay"]:
        eggs += arguments["number"]
        open("eggs", "w").write(str(eggs))
    print(eggs)
else:
    print(json.dumps(float(int(open("eggs").read()) == json.load(sys.stdin)["wanted"])))
"""


class Henhouse(Environment):
    """Tools, calls and reward of a program, as `gymnast/Container-v0`; with public hooks alone."""

    sandbox_spec: ClassVar[SandboxSpec | None] = SandboxSpec()

    def prepare_sandbox(self, sandbox: Sandbox) -> None:
        sandbox.write_file("program.py", PROGRAM)
        sandbox.write_file("eggs", str(self.row["eggs"]))

    async def tools_for(self, row: Mapping[str, Any]) -> list[Any]:
        async with await self.open_box() as box:
            await box.awrite_file("program.py", PROGRAM)
            described = await box.aexec([sys.executable, "program.py", "describe"])
        tools: list[Any] = json.loads(described.stdout)
        return tools

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        argv = [sys.executable, "program.py", "call", name]
        result = await self.sandbox.aexec(argv, stdin=json.dumps(arguments))
        return result.stdout.strip()

    async def reward(self, episode: Any) -> float | None:
        result = await self.run_grader(
            [sys.executable, "program.py", "reward"],
            files={"program.py": PROGRAM},
            stdin=json.dumps(dict(episode.row)),
        )
        return 0.0 if result is None else float(json.loads(result.stdout))


def test_a_users_environment_can_do_what_container_does(calls: Callable[..., Any]) -> None:
    env = Henhouse(sandbox="local")
    for number, reward in ((5, 1.0), (4, 0.0)):
        env.reset(options={"row": {"prompt": "12 eggs, please.", "eggs": 7, "wanted": 12}})
        assert [schema["function"]["name"] for schema in env.tools] == ["count", "lay"]
        turn = asyncio.run(env.act(calls(("count", {}), ("lay", {"number": number}))))
        assert [message["content"] for message in turn.messages] == ["7", str(7 + number)]
        refused = asyncio.run(env.act(calls(("lay", {"number": 0}))))
        assert [error.kind for error in refused.info["errors"]] == ["bad_arguments"]
        assert asyncio.run(env.act(ANSWER)).reward == reward
    env.close()
