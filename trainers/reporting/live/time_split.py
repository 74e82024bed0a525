"""Where a step's time went: model, tools, environment, waiting, training.

The rollouts' part of a step is divided as the time of its mean episode is: episodes are played side
by side, so their seconds add up to more than the step's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KINDS = ("model", "tools", "environment", "waiting", "training")


@dataclass(frozen=True)
class Part:
    """A part of a step's time.

    Attributes:
        kind: One of `KINDS`.
        share: Of the step's time, from 0 to 1.
    """

    kind: str
    share: float


def time_split(metrics: Mapping[str, float]) -> list[Part]:
    """The parts of a step's time in the order of `KINDS`; empty where it was not measured.

    Args:
        metrics: The step's: `time/rollout_s` and `time/train_s` say how long its halves took, and
            `time/model_s`, `time/waiting_s`, `time/environment_s` and `time/environment/tools_s`
            what an episode took.
    """
    rollout_s, train_s = (metrics.get(f"time/{half}_s", 0.0) for half in ("rollout", "train"))
    tools_s = metrics.get("time/environment/tools_s", 0.0)
    episode_s = {
        "model": metrics.get("time/model_s", 0.0),
        "tools": tools_s,
        "environment": max(0.0, metrics.get("time/environment_s", 0.0) - tools_s),
        "waiting": metrics.get("time/waiting_s", 0.0),
    }
    whole_s = sum(episode_s.values())
    if not whole_s:  # no policy played: a warm-up plays `solve`
        episode_s, whole_s = {"environment": 1.0}, 1.0
    seconds = {kind: rollout_s * part_s / whole_s for kind, part_s in episode_s.items()}
    seconds["training"] = train_s
    step_s = sum(seconds.values())
    if not step_s > 0:
        return []
    return [Part(kind, seconds[kind] / step_s) for kind in KINDS if seconds.get(kind)]


def cells(parts: Sequence[Part], width: int) -> list[int]:
    """How many of so many columns each part gets; they add up to `width` where there are parts."""
    ends, reached = list[int](), 0.0
    for part in parts:
        reached += part.share
        ends.append(round(reached * width))
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
