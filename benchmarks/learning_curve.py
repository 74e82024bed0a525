"""The curve that a job of `learning.py` leaves, and the file that it is kept in."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WINDOW = 3  # steps that a level is averaged over


@dataclass(frozen=True)
class Step:
    """One step of training.

    Attributes:
        reward: The mean over its episodes, before its update; None in a warm-up.
        wall_s: Seconds on the clock since training began, without evaluations.
        cpu_s: CPU seconds of all threads, likewise.
        sampled_tokens: Tokens that the policy has sampled in training so far.
    """

    reward: float | None
    wall_s: float
    cpu_s: float
    sampled_tokens: int = 0


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the policy on rows that are not trained on.

    Attributes:
        taken: How many steps were taken before, those of a warm-up included.
        wall_s: Seconds of training before, as in `Step`.
        cpu_s: CPU seconds of training before.
        sampled_tokens: As in `Step`.
        reward: The mean over its episodes.
        right_calls: The share of episodes that made every call of the row's solution, or None
            where the environment has no `solve`.
        hopeful: The mean reward of the rows that are not hopeless, where some are; else None.
    """

    taken: int
    wall_s: float
    cpu_s: float
    sampled_tokens: int
    reward: float
    right_calls: float | None = None
    hopeful: float | None = None


@dataclass(frozen=True)
class Curve:
    """The learning curve of a job.

    Attributes:
        steps: All steps, in order; those of a warm-up first.
        evaluations: All evaluations, in order.
        commit: What was measured, "+" behind it where the working tree was changed.
        conditions: The machine and the versions that the figures depend on.
    """

    steps: Sequence[Step]
    evaluations: Sequence[Evaluation]
    commit: str = ""
    conditions: str = ""

    @property
    def before(self) -> float:
        """The evaluation before training."""
        return self.evaluations[0].reward

    @property
    def after(self) -> float:
        """The evaluation after training."""
        return self.evaluations[-1].reward

    def reached(self, level: float) -> Step | None:
        """The first step at which the mean reward of the last `WINDOW` steps is this high."""
        rewards = [step.reward for step in self.steps]
        for end in range(WINDOW, len(rewards) + 1):
            window = [reward for reward in rewards[end - WINDOW : end] if reward is not None]
            if len(window) == WINDOW and sum(window) >= WINDOW * level:
                return self.steps[end - 1]
        return None

    def evaluated(self, level: float) -> Evaluation | None:
        """The first evaluation with a reward as high as this."""
        return next((found for found in self.evaluations if found.reward >= level), None)

    def save(self, path: Path) -> None:
        """Write the curve as JSON, a line each for a step and an evaluation."""
        rest = {"commit": self.commit, "conditions": self.conditions}
        parts: dict[str, Sequence[Any]] = {"evaluations": self.evaluations, "steps": self.steps}
        lines = [f' "{name}": {json.dumps(value)}' for name, value in rest.items()]
        for name, entries in parts.items():
            inner = ",\n  ".join(json.dumps(_rounded(asdict(entry))) for entry in entries)
            lines.append(f' "{name}": [\n  {inner}\n ]')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def load(cls, path: Path) -> "Curve":
        """Read what `save` wrote."""
        found = json.loads(path.read_text())
        steps = tuple(Step(**step) for step in found["steps"])
        evaluations = tuple(Evaluation(**each) for each in found["evaluations"])
        return cls(steps, evaluations, found["commit"], found["conditions"])


def _rounded(entry: dict[str, Any]) -> dict[str, Any]:
    """Numbers with as many digits as say something; what is None is left out."""
    return {
        name: round(value, 1 if name.endswith("_s") else 4) if isinstance(value, float) else value
        for name, value in entry.items()
        if value is not None or name == "reward"
    }
