"""What a step is going to take, from what a few episodes took."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """What was measured, and what it makes of a step.

    Attributes:
        episodes: How many were played together.
        played_s: Seconds that they took.
        first_s: Seconds that the first one took, alone.
        tokens: How many tokens were sampled in them.
        learned: From how many episodes an update was computed; 0 where none could be.
        learned_s: Seconds that its forward and backward passes took.
        step_episodes: How many a step plays.
        steps: How many the run takes.
        ahead: Whether episodes are sampled while the model is trained.
        memory: What a step takes at most, in words; "" where it does not fit.
        memory_bytes: The same in bytes; None where it does not fit.
    """

    episodes: int
    played_s: float
    first_s: float
    tokens: int
    learned: int
    learned_s: float
    step_episodes: int
    steps: int
    ahead: bool
    memory: str
    memory_bytes: int | None

    @property
    def rollout_s(self) -> float | None:
        """Seconds for the episodes of a step; None where none was played."""
        return self.played_s * self.step_episodes / self.episodes if self.episodes else None

    @property
    def train_s(self) -> float | None:
        """Seconds for the passes of a step's update; None where none was computed."""
        return self.learned_s * self.step_episodes / self.learned if self.learned else None

    @property
    def step_s(self) -> float | None:
        """Seconds of a step; None where a part of it is not known."""
        if self.rollout_s is None or self.train_s is None:
            return None
        parts = (self.rollout_s, self.train_s)
        return max(parts) if self.ahead else sum(parts)

    @property
    def run_s(self) -> float | None:
        """Seconds of all steps, without evaluations and checkpoints."""
        return None if self.step_s is None else self.step_s * self.steps
