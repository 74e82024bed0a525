"""Numbers as a line of small bars: `▁▂▄▆█`, or `_.-=#` where the output knows ASCII only."""

import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.,-~=+#"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """A sparkline, the lowest number as the lowest bar and the highest as the highest.

    Where there are more numbers than columns, each column is the mean of as many of them.

    Args:
        values: The numbers; one that is not finite is a space.
        width: At most so many columns.
        ascii_only: Whether bars are made of ASCII.
    """
    columns = _means(values, width)
    finite = [value for value in columns if math.isfinite(value)]
    if not finite:
        return " " * len(columns)
    bars, low, high = ASCII_BARS if ascii_only else BARS, min(finite), max(finite)
    return "".join(
        bars[_level(value, low, high, len(bars))] if math.isfinite(value) else " "
        for value in columns
    )


def _means(values: Sequence[float], width: int) -> list[float]:
    """At most `width` numbers: the means of parts that are as long as each other, but for one."""
    count = min(len(values), max(0, width))
    means = list[float]()
    for column in range(count):
        part = values[column * len(values) // count : (column + 1) * len(values) // count]
        finite = [value for value in part if math.isfinite(value)]
        means.append(sum(value / len(finite) for value in finite) if finite else math.nan)
    return means


def _level(value: float, low: float, high: float, levels: int) -> int:
    # Halved first: the difference of two numbers may be larger than any float.
    span = high / 2 - low / 2
    return min(levels - 1, int((value / 2 - low / 2) / span * levels)) if span > 0 else 0
