"""check_env names async code that holds up the event loop."""

import asyncio
import time
from typing import Any

from gymnast.envs import Environment, Renderer, check_env, tool


class Sleepy(Environment):
    """Waits in three ways, of which one holds up the loop."""

    @tool
    async def doze(self) -> str:
        """Wait, and let nobody do anything meanwhile."""
        time.sleep(0.4)
        return "dozed"

    @tool
    async def rest(self) -> str:
        """Wait, and let others go on."""
        await asyncio.sleep(0.4)
        return "rested"

    @tool
    def sleep(self) -> str:
        """Wait on a thread."""
        time.sleep(0.4)
        return "slept"

    def sample_row(self, rng: Any) -> Any:
        return {"prompt": "Sleep."}

    def reward(self, episode: Any) -> float:
        return 0.0


def test_an_async_tool_that_sleeps_is_odd(renderer: Renderer) -> None:
    [sentence] = check_env(Sleepy(renderer)).odd
    assert sentence.startswith("Sleepy.doze is `async def` and held up the event loop for 0.")
    assert f"in line {Sleepy.doze.__code__.co_firstlineno + 3}" in sentence
