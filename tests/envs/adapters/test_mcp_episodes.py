"""Many episodes with servers of the Model Context Protocol, at once and one after another."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents import ScriptedAgent
from gymnast.envs import Renderer, make
from gymnast.trainers import collect
from gymnast.types import Sampling, StopReason
from mcp_fixtures import ODD, ROW, aplay, have_ended, is_running, play, told

pytestmark = pytest.mark.adapters
Calls = Callable[..., dict[str, Any]]


def test_an_episode_whose_server_ends_is_played_again(
    calls: Calls, renderer: Renderer, tmp_path: Path
) -> None:
    made: list[Any] = []

    def make_env() -> Any:
        command = [*ODD, f"once:{tmp_path}/died"]
        made.append(make("mcp:odd", renderer, command=command, offer=["add"]))
        return made[-1]

    turns = [calls(("add", {"a": 4})), {"role": "assistant", "content": "Four."}]
    env = make_env()
    play(env)
    agent = ScriptedAgent([renderer.encode(turn, tools=env.tools) for turn in turns])
    env.close()
    rollouts = asyncio.run(
        collect(make_env, agent, [ROW] * 4, group_size=2, sampling=Sampling(), concurrency=4)
    )
    assert rollouts.metrics["episodes/retried"] == 1
    assert rollouts.metrics["episodes/finished"] == 8
    for group in rollouts:
        for trajectory in group:
            assert [m["content"] for m in trajectory.messages if m["role"] == "tool"] == ["4"]


def test_episodes_share_a_server(calls: Calls, odd: Any) -> None:
    """None is lost, and of the server nothing is left; benchmarks/adapters.py plays a thousand."""
    made = [odd(session="shared", max_turns=3) for _ in range(20)]
    add = calls(("add", {"a": 1}))
    end = {"role": "assistant", "content": "Done."}

    async def one(env: Any, count: int) -> list[str]:
        results = []
        for _ in range(count):
            added, ended = await aplay(env, add, end)
            assert ended.info["stop_reason"] is StopReason.answered
            results.append(told(added))
        return results

    async def all_of_them() -> list[list[str]]:
        return await asyncio.gather(*(one(env, 10) for env in made))

    results = asyncio.run(all_of_them())
    assert sorted(int(text) for texts in results for text in texts) == list(range(1, 201))
    number = int(told(play(made[0], calls(("pid", {})))[0]))
    assert is_running(number)
    for env in made:
        env.close()
    assert have_ended(number)


def test_episodes_with_processes_of_their_own_leave_none(calls: Calls, odd: Any) -> None:
    add, pid = calls(("add", {"a": 1})), calls(("pid", {}))
    end = {"role": "assistant", "content": "Done."}

    async def all_of_them() -> list[Any]:
        async def some(env: Any) -> list[Any]:
            return [await aplay(env, add, pid, end) for _ in range(10)]

        return list(await asyncio.gather(*(some(odd()) for _ in range(8))))

    played = [episode for some in asyncio.run(all_of_them()) for episode in some]
    assert [told(added) for added, _, _ in played] == ["1"] * 80
    numbers = {int(told(number)) for _, number, _ in played}
    assert len(numbers) == 80 and have_ended(*numbers)


def test_processes_end_with_the_one_that_trains(tmp_path: Path) -> None:
    program = f"""
import asyncio
from gymnast.envs import make
env = make("mcp:odd", command={ODD!r})
asyncio.run(env.areset(options={{"row": {{"prompt": "x"}}}}))
outcome = asyncio.run(env.act({{"role": "assistant", "tool_calls": [
    {{"id": "1", "type": "function", "function": {{"name": "child", "arguments": "{{}}"}}}}]}}))
print(outcome.messages[0]["content"])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert have_ended(int(ended.stdout)) and not ended.stderr
