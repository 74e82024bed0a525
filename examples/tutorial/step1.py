# examples/tutorial/step1.py
from gymnast.envs import Environment, call, tool

PLACES = ["beach", "cave", "mill", "tower"]


class Hunt(Environment):
    """Find out where a treasure is."""

    @tool
    def look(self, place: str) -> str:
        """Look around at a place.

        Args:
            place: Its name, such as "beach".
        """
        return "A treasure!" if place == self.row["treasure"] else "Only sand."

    def sample_row(self, rng):
        question = f"Where is the treasure: {', '.join(PLACES)}?"
        return {"prompt": question, "places": PLACES, "treasure": str(rng.choice(PLACES))}

    def reward(self, episode):
        named = [place for place in self.row["places"] if place in episode.answer]
        return float(named == [self.row["treasure"]])

    def solve(self, row):
        for place in row["places"]:
            [result] = yield call("look", place=place)
            if result["content"] == "A treasure!":
                yield f"It is at the {place}."
                return
