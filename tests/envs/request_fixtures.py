"""Programs that have the loop, and ask what their row says."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from gymnast.envs import Environment, NextRequest

Say = Callable[..., list[int]]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def opens(*texts: str, **settings: Any) -> NextRequest:
    return NextRequest(None, [user(text) for text in texts], **settings)  # type: ignore[misc]


def extends(branch: int, *texts: str) -> NextRequest:
    return NextRequest(branch, [user(text) for text in texts])  # type: ignore[misc]


class Script(Environment):
    """A program that asks one request of its row after the other, and then ends."""

    def setup(self, row: Any) -> None:
        self.left = list(row["asks"])
        self.heard: list[Any] = []
        self.refused: list[str] = []
        self.log: list[str] = []

    def next_request(self, message: Any, cut: bool) -> Any:
        self.heard.append((message and message["content"], cut))
        return self.ask()

    def ask(self) -> Any:
        asked = self.left.pop(0) if self.left else None
        if isinstance(asked, Exception):
            raise asked
        if isinstance(asked, NextRequest):
            shown = {**vars(asked), "refuse": self.refused.append}
            return NextRequest(**shown)
        return asked

    def stop_program(self) -> None:
        self.log.append("stop")

    def reward(self, episode: Any) -> float:
        self.log.append("reward")
        return 1.0

    def cleanup(self) -> None:
        self.log.append("cleanup")


class AsyncScript(Script):
    """The same with hooks that are awaited; a number is how many seconds it does not answer."""

    async def next_request(self, message: Any, cut: bool) -> Any:
        asked = super().next_request(message, cut)
        if isinstance(asked, float):
            await asyncio.sleep(asked)
        return asked

    async def stop_program(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().stop_program()


def begin(env: Environment, *asks: Any, **options: Any) -> tuple[list[int], dict[str, Any]]:
    ids, info = env.reset(options={"row": {"asks": list(asks)}, "branches": True, **options})
    return ids.tolist(), info


class Twice(Environment):
    """Asks a question, lets a helper look, and asks again."""

    def setup(self, row: Any) -> None:
        self.turn = 0

    def next_request(self, message: Any, cut: bool) -> Any:
        self.turn += 1
        asks: Sequence[Any] = [opens("One?"), opens("Look.", tools=[LOOK]), extends(0, "Two?")]
        return asks[self.turn - 1] if self.turn <= len(asks) else None

    def reward(self, episode: Any) -> float:
        return float(len(episode.turns))
