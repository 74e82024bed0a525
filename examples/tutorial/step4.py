# examples/tutorial/step4.py
from typing import Literal

from gymnast.envs import Environment, call, tool

PLACES = ["beach", "cave", "mill", "tower"]


class Hunt(Environment):
    """Dig up a treasure on an island."""

    def setup(self, row):
        self.here, self.found = row["places"][0], False

    @tool
    def go(self, place: str) -> str:
        """Go to a place of the island.

        Args:
            place: Its name, such as "beach".
        """
        if place not in self.row["places"]:
            raise ValueError(f"there is no {place}; there are {', '.join(self.row['places'])}")
        self.here = place
        return f"You are at the {place}."

    @tool
    def dig(self, depth: Literal["shallow", "deep"] = "shallow") -> str:
        """Dig where you are."""
        self.found |= self.here == self.row["treasure"] and depth == "deep"
        return "A treasure!" if self.found else "Only sand."

    def sample_row(self, rng):
        question = f"You are at the beach. Dig up the treasure of the island: {', '.join(PLACES)}."
        return {"prompt": question, "places": PLACES, "treasure": str(rng.choice(PLACES))}

    def reward(self, episode):
        return float(self.found)

    def solve(self, row):
        for place in row["places"]:
            yield call("go", place=place)
            yield call("dig", depth="deep")
            if self.found:
                yield "I have it."
                return
