"""Which metrics a clock measures: all others are the same when a deterministic run is repeated.

A clock's name has a part `time` before its last (`time/step_s`, `time/tool/search_s`,
`eval/time/model_s`), its last part ends in `per_s` (`tokens/per_s`), or it begins with `perf/`
(`perf/mfu`). Whoever adds a metric that is measured in seconds, or made of such, names it so.
"""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def is_clock(name: str) -> bool:
    """Whether a metric of this name is measured by a clock."""
    *area, last = name.split("/")
    return "time" in area or last.endswith("per_s") or area[:1] == ["perf"]


def without_clocks(metrics: Mapping[str, T]) -> dict[str, T]:
    """The metrics that a repeated or resumed deterministic run has again."""
    return {name: value for name, value in metrics.items() if not is_clock(name)}
