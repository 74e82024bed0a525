"""Trail: four calls of which each needs the result of the one before, and one reward at the end.

"Follow the trail from the gate. Which number is at its end?" Each place on the trail names the next
one, and the last has the number. Trails and numbers differ from row to row.
"""

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from gymnast.envs import Environment, Episode, call, tool
from gymnast.types import Message

PLACES = ("barn", "hill", "lake", "mill", "pond", "tower", "well", "yard")
LENGTH = 4


class Trail(Environment):
    """Follow a trail from place to place; the reward is 1 for the number at its end."""

    def setup(self, row: Mapping[str, Any]) -> None:
        """Begin before the trail."""
        self.reached = 0

    @tool
    def look(self, place: str) -> str:
        """Look what is at a place."""
        trail = self.row["trail"]
        if place not in trail[: self.reached + 1]:
            return "Nothing is here."
        number = trail.index(place) + 1
        self.reached = max(self.reached, number)
        return f"Number {self.row['answer']}." if number == LENGTH else f"To the {trail[number]}."

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row with a trail of its own."""
        trail = [str(place) for place in rng.choice(PLACES, LENGTH, replace=False)]
        return {
            "prompt": f"Follow the trail from the {trail[0]}. Which number is at its end?",
            "trail": trail,
            "answer": int(rng.integers(100, 1000)),
        }

    def reward(self, episode: Episode) -> float:
        """Whether the answer is the number."""
        return float(str(self.row["answer"]) in episode.answer.rstrip(".").split())

    def turn_state(self) -> Any:
        """How far the trail is known."""
        return self.reached

    def solve(self, row: Mapping[str, Any]) -> Generator[Message | str, list[Message], None]:
        """Go where each place says."""
        place = row["trail"][0]
        for _ in range(LENGTH):
            [found] = yield call("look", place=place)
            place = found["content"].rstrip(".").split()[-1]
        yield f"Number {place}."
