"""Lake: FrozenLake as Gymnasium has it, without slipping; its demonstrations go different ways."""

from collections.abc import Iterator, Mapping
from typing import Any

from gymnast.envs import call
from gymnast.envs.adapters.gymnasium import GymnasiumEnvironment
from gymnast.types import Message

WAYS = (  # the shortest ones to the goal
    ("down", "down", "right", "right", "down", "right"),
    ("down", "down", "right", "down", "right", "right"),
    ("right", "right", "down", "down", "down", "right"),
)


class Lake(GymnasiumEnvironment):
    """Walk over the frozen lake; the reward is 1 at the goal."""

    id = "FrozenLake-v1"

    def solve(self, row: Mapping[str, Any]) -> Iterator[Message]:
        """Go one of the ways."""
        for way in WAYS[row["seed"] % len(WAYS)]:
            yield call("act", action=way)
