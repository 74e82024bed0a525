"""An environment whose reward even a model with random weights gets some of."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gymnast.envs import Environment, tool
from gymnast.envs.records.episode import Episode


class Digits(Environment):
    """Write digits; a model that knows how to call a tool can roll a die."""

    @tool
    def roll(self, sides: int) -> int:
        """Roll a die with so many sides."""
        return int(self.np_random.integers(sides)) + 1

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Ask for one number after another."""
        return {"prompt": f"Write down the number {int(rng.integers(1000))}."}

    def reward(self, episode: Episode) -> float:
        """The share of characters that are digits."""
        return sum(map(str.isdigit, episode.answer)) / max(1, len(episode.answer))
