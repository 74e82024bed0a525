"""Classes to compose, and how their episodes are played."""

import asyncio
import threading
from typing import Any

from gymnast.envs import Environment, call, tool

TIMES = {"prompt": "3 times 4?", "answer": 12}
SHOP = {
    "prompt": "What do 4 apples cost?",
    "schema": "CREATE TABLE prices (fruit, cents); INSERT INTO prices VALUES ('apple', 3);",
    "expected": [[3]],
    "answer": "12",
}


class Times(Environment):
    """A product."""

    def __init__(self, renderer: Any = None, *, base: int = 10, **settings: Any) -> None:
        super().__init__(renderer, **settings)
        self.base = base

    def setup(self, row: Any) -> None:
        super().setup(row)
        self._notes = "of Times"
        self.thread = threading.get_ident()

    @tool
    def multiply(self, a: int, b: int) -> int:
        """Multiply.

        Args:
            a: One factor.
            b: Another.
        """
        assert self._notes == "of Times"
        return a * b

    def reward(self, episode: Any) -> float:
        return float(str(self.row["answer"]) in episode.answer)

    def solve(self, row: Any) -> Any:
        [result] = yield call("multiply", a=3, b=4)
        yield f"It is {result['content']}."


class Notes(Environment):
    """A notebook, with names that another class has too."""

    log: list[str]

    def __init__(self, renderer: Any = None, *, first_line: str = "", **settings: Any) -> None:
        super().__init__(renderer, **settings)
        self.first_line, self.log = first_line, []

    async def setup(self, row: Any) -> Any:
        await asyncio.sleep(0)
        self._notes = [self.first_line] if self.first_line else []
        self.log.append(f"setup {row['answer']}")
        return [{"role": "user", "content": "Write something down."}]

    @tool
    async def write(self, text: str) -> str:
        """Write a line.

        Args:
            text: The line.
        """
        self._notes.append(text)
        return f"{len(self._notes)} lines for {self.row['answer']}"

    @tool
    def read(self) -> list[str]:
        """Read all lines."""
        return self._notes

    @tool(stop=True)
    def leave(self) -> str:
        """Leave."""
        return "left"

    @staticmethod
    @tool
    def count(text: str) -> int:
        """Count letters."""
        return len(text)

    def turn_reward(self, turn: Any) -> float:
        return float(0.25 * sum(each.call.name == "write" for each in turn.calls))

    def metrics(self, episode: Any) -> dict[str, float]:
        return {"lines": float(len(self._notes))}

    def reward(self, episode: Any) -> float:
        return -5.0

    def cleanup(self) -> None:
        self.log.append("cleanup")


class Offers(Environment):
    """Chooses its tools by itself, and has one that is only described."""

    def tools_for(self, row: Any) -> Any:
        ask = {"name": "ask", "description": "Ask.", "parameters": {"type": "object"}}
        return [*super().tools_for(row), self.second, ask]

    @tool
    def first(self) -> int:
        """The first."""
        return 1

    def second(self) -> int:
        """The second."""
        return 2

    async def call_tool(self, name: str, arguments: Any) -> Any:
        assert name in ("first", "second", "ask")
        return "asked" if name == "ask" else await super().call_tool(name, arguments)


def says(*calls: Any, text: str = "") -> dict[str, Any]:
    tool_calls = [each["tool_calls"][0] if "tool_calls" in each else each for each in calls]
    return {"role": "assistant", "content": text, "tool_calls": tool_calls}


def played(env: Environment, *messages: Any, row: Any = TIMES) -> list[Any]:
    async def play() -> list[Any]:
        await env.areset(seed=3, options={"row": row})
        return [await env.act(message) for message in messages]

    return asyncio.run(play())


def a_call(name: str, **arguments: Any) -> Any:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}
