"""What episodes in flight hold: their tokens once, and little beside them."""

import asyncio
import gc
import tracemalloc
from typing import Any

from gymnast.envs import Environment, Renderer, tool
from gymnast.trainers import collect
from gymnast.types import Completion, Sampling, ToolCall

EPISODES, CALLS = 40, 3


class Desk(Environment):
    """A tool with a long result."""

    @tool
    async def read(self, page: int) -> str:
        """Read a page.

        Args:
            page: Which.
        """
        return f"Page {page}: " + "What is 7 plus 10? " * 40


class Gate:
    """Calls the tool until the last turn, in which it waits until all episodes are there."""

    def __init__(self, renderer: Renderer) -> None:
        call = ToolCall("", "read", {"page": 1234})
        self.call = renderer.encode({"role": "assistant", "content": "", "tool_calls": [call]})
        self.answer = renderer.encode({"role": "assistant", "content": "Done."})
        self.stop, self.waiting, self.all_wait = renderer.stop_ids[0], 0, asyncio.Event()
        self.held = self.tokens = 0

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        turn = (context_ids.count(self.stop) - 2) // 2
        ids = list(self.answer if turn == CALLS else self.call)
        if turn == CALLS:
            self.waiting += 1
            self.tokens += len(context_ids)
            if self.waiting == EPISODES:
                gc.collect()
                self.held = tracemalloc.get_traced_memory()[0]
                self.all_wait.set()
            await self.all_wait.wait()
        return Completion(ids, [-0.1 * number for number in range(len(ids))], "stop")


def test_an_episode_in_flight_takes_little_beside_one_list_of_its_ids(renderer: Renderer) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"Row {n}. " + "Go on. " * 250} for n in range(4)]

    async def run() -> Gate:
        agent = Gate(renderer)
        found = await collect(
            *(lambda: Desk(renderer), agent, rows),
            group_size=EPISODES // 4,
            sampling=Sampling(),
            concurrency=EPISODES,
        )
        assert [len(t.turns) for t in found.trajectories] == [CALLS + 1] * EPISODES
        return agent

    asyncio.run(run())  # what first calls take
    tracemalloc.start()
    try:
        agent = asyncio.run(run())
    finally:
        tracemalloc.stop()
    tokens = agent.tokens / EPISODES
    assert tokens > 1500
    # A list of the ids, which the agent gets, has 8 bytes a token and some room to grow; the
    # environment's own copy has 4. Before, both had 40, and mask, logprobs and rewards 8 each.
    assert agent.held / EPISODES < 14 * tokens + 30_000
