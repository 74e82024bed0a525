"""Episodes to score, and what a rubric says about them."""

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from gymnast.envs import Environment, Episode, Score


def played(answer: str, row: Mapping[str, Any] | None = None, prompt: str = "Go.") -> Episode:
    """An episode with one answer."""

    class Answering(Environment):
        episodes: list[Episode]

        def reward(self, episode: Episode) -> float:
            self.episodes = [episode]
            return 0.0

    environment = Answering()

    async def play() -> None:
        await environment.areset(options={"row": {"prompt": prompt, **(row or {})}})
        await environment.act({"role": "assistant", "content": answer})

    asyncio.run(play())
    return environment.episodes[0]


def score(rubric: Any, episode: Any) -> Score | None:
    """What a rubric says, awaited where it has to be."""

    async def scored() -> Any:
        found = rubric(episode)
        return await found if inspect.isawaitable(found) else found

    found: Score | None = asyncio.run(scored())
    return found


def reward(rubric: Any, answer: str, /, **row: Any) -> float:
    """What an answer earns."""
    found = score(rubric, played(answer, row))
    assert found is not None
    return found.reward
