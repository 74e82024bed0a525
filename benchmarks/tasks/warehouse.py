"""Warehouse: four tools that share a state, and a reward that looks at what is left of it.

"Move the lamp to shelf 42." To do so the policy finds the lamp, takes it from its shelf, puts it on
the other one and says that it is done. Where things are differs from row to row.
"""

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from gymnast.envs import Environment, Episode, call, tool
from gymnast.types import Message

THINGS = ("lamp", "drum", "vase", "sled", "harp")


class Warehouse(Environment):
    """Move one thing to another shelf.

    The reward is 1 if that, and nothing else, has changed in the end, and 0.3 if the thing was
    taken from its shelf and is not yet where it belongs.
    """

    def setup(self, row: Mapping[str, Any]) -> None:
        """Fill the shelves."""
        self.shelf_of: dict[str, int] = dict(row["shelf_of"])
        self.carried: str | None = None

    @tool
    def find(self, thing: str) -> int:
        """Look up which shelf a thing is on."""
        return self.shelf_of[thing]

    @tool
    def take(self, shelf: int) -> str:
        """Take the thing that is on a shelf."""
        if self.carried is not None:
            raise ValueError(f"put the {self.carried} down first")
        there = [thing for thing, place in self.shelf_of.items() if place == shelf]
        if not there:
            raise ValueError(f"shelf {shelf} is empty")
        self.carried = there[0]
        del self.shelf_of[self.carried]
        return self.carried

    @tool
    def put(self, shelf: int) -> str:
        """Put the thing that was taken on a shelf."""
        if self.carried is None:
            raise ValueError("nothing was taken")
        if shelf in self.shelf_of.values():
            raise ValueError(f"shelf {shelf} is not empty")
        self.shelf_of[self.carried] = shelf
        self.carried = None
        return "ok"

    @tool(stop=True)
    def done(self) -> str:
        """Say that the work is done."""
        return "ok"

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row with a shelf for each thing, and an empty one to move one of them to."""
        *shelves, target = map(int, rng.choice(np.arange(10, 100), len(THINGS) + 1, replace=False))
        thing = str(rng.choice(THINGS))
        return {
            "prompt": f"Move the {thing} to shelf {target}.",
            "thing": thing,
            "target": target,
            "shelf_of": dict(zip(THINGS, shelves, strict=True)),
        }

    def reward(self, episode: Episode) -> float:
        """How far the shelves are as they should be."""
        others = {**self.row["shelf_of"]}
        before, now = others.pop(self.row["thing"]), {**self.shelf_of}
        place = now.pop(self.row["thing"], None)
        if now != others or place == before:
            return 0.0
        return 1.0 if place == self.row["target"] else 0.3

    def turn_state(self) -> Any:
        """Where each thing is, and what is carried."""
        return tuple(sorted(self.shelf_of.items())), self.carried

    def solve(self, row: Mapping[str, Any]) -> Generator[Message, list[Message], None]:
        """Find, take, put, done."""
        [shelf] = yield call("find", thing=row["thing"])
        yield call("take", shelf=int(shelf["content"]))
        yield call("put", shelf=row["target"])
        yield call("done")

    async def hint(self, row: Mapping[str, Any]) -> list[Message]:
        """What only a teacher sees: four solved rows."""
        other = Warehouse(worked_turns=4)
        await other.areset(options={"row": row})
        return other.messages[:-1]
