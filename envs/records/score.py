"""A score: what `reward` may return where a number does not say enough."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Score:
    """A reward in named parts, and metrics beside it.

    Attributes:
        parts: Their sum is the reward; each is also in `info["reward_parts"]`.
        metrics: Numbers by name that are reported and not part of the reward; they are in
            `info["metrics"]`.
    """

    parts: Mapping[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def reward(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values(), 0.0)
