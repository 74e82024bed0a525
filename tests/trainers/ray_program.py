"""A program that plays on a Ray cluster of its own, with a class that no worker can import.

    python ray_program.py EPISODES

It says "playing" after its first group, and in the end the mean reward.
"""

import asyncio
import sys
from typing import Any

from gymnast.agents import ScriptedAgent
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Renderer, tool
from gymnast.trainers import RayWorkers, collect
from gymnast.types import Sampling, ToolCall


class Slow(Environment):
    """Ask for the time."""

    @tool
    async def wait(self) -> str:
        """Wait a little."""
        await asyncio.sleep(0.1)
        return "Done."

    def reward(self, episode: Any) -> float:
        """1 for an answer."""
        return float(bool(episode.answer))


def main() -> None:
    renderer = Renderer(tiny_tokenizer())
    call = {"role": "assistant", "content": "", "tool_calls": [ToolCall("", "wait", {})]}
    answer = {"role": "assistant", "content": "It is done."}
    agent = ScriptedAgent([renderer.encode(call), renderer.encode(answer)])
    rows = [{"prompt": f"Wait {i}."} for i in range(int(sys.argv[1]))]
    said: list[int] = []

    def say(done: int, total: int) -> None:
        if not said:
            said.append(done)
            print("playing", flush=True)

    rollouts = asyncio.run(
        collect(
            *(lambda: Slow(renderer=renderer), agent, rows),
            group_size=1,
            sampling=Sampling(max_new_tokens=32),
            concurrency=4,
            workers=RayWorkers(2),
            on_progress=say,
        )
    )
    print("mean reward", rollouts.metrics["reward/mean"], flush=True)


if __name__ == "__main__":
    main()
