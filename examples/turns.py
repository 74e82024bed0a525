"""An environment that pays turns: examples/turns.yaml."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gymnast.envs import Environment, call, tool


class Dice(Environment):
    """Roll a die until the sum is what was asked for."""

    sum = 0

    @tool
    def roll(self) -> int:
        """Roll the die."""
        rolled = int(self.np_random.integers(6)) + 1
        self.sum += rolled
        return rolled

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Ask for one number after another."""
        wanted = int(rng.integers(7, 40))
        return {"prompt": f"Roll until you have {wanted}.", "wanted": wanted}

    def setup(self, row: Mapping[str, Any]) -> None:
        """Begin at nothing."""
        self.sum = 0

    def turn_reward(self, turn: Any) -> float:
        """A tenth for each roll."""
        return 0.1 * len(turn.calls)

    def reward(self, episode: Any) -> float:
        """One for as much as was asked for."""
        return float(self.sum >= self.row["wanted"])

    def solve(self, row: Mapping[str, Any]) -> Any:
        """Roll until it is enough."""
        while self.sum < row["wanted"]:
            yield call("roll")
        yield f"I have {self.sum}."
