"""Letters: answer in small letters, of which even a model with random weights writes some."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gymnast.envs import Environment, Episode


class Letters(Environment):
    """The reward is the share of small letters in the answer, some 0.2 for random weights."""

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A question with a number of its own."""
        return {"prompt": f"Question {int(rng.integers(1_000_000))}."}

    def reward(self, episode: Episode) -> float:
        """How much of the answer is small letters."""
        letters = sum("a" <= letter <= "z" for letter in episode.answer)
        return letters / max(1, len(episode.answer))

    def turn_state(self) -> Any:
        """The question: all episodes of a group act in one state."""
        return self.row["prompt"]
