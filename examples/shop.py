# examples/shop.py
from gymnast.envs import Environment, call, tool

FRUITS = ["apple", "fig", "lime", "pear", "plum"]


class Shop(Environment):
    """Answer what a fruit costs today, with a price list at hand."""

    @tool
    def price(self, fruit: str) -> int:
        """Look up what one fruit costs."""
        return self.row["prices"][fruit]  # a KeyError becomes a message to the model

    def sample_row(self, rng):
        prices = {fruit: int(rng.integers(10, 100)) for fruit in FRUITS}
        fruit = str(rng.choice(FRUITS))
        question = f"What does one {fruit} cost?"
        return {"prompt": question, "fruit": fruit, "prices": prices, "answer": prices[fruit]}

    def reward(self, episode) -> float:
        return float(str(self.row["answer"]) in episode.answer.rstrip(".").split())

    def solve(self, row):
        [result] = yield call("price", fruit=row["fruit"])
        yield f"It costs {result['content']}."
