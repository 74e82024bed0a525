"""What an evaluation says about a policy, and how far it may be off: pass@k, means, 95% intervals.

Rows are the units: another evaluation would draw other rows, and the episodes of one row resemble
one another. So each interval comes from how rows differ (the rows are clusters), and with fewer
than two rows there is none. Everything here is a pure function of numbers.
"""

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist, fmean
from typing import NamedTuple

from gymnast.numbers import exact_mean, safe_scale

LEVEL = 0.95


class Estimate(NamedTuple):
    """A number and its 95% interval; `low` and `high` are None with fewer than two rows."""

    value: float
    low: float | None = None
    high: float | None = None


def pass_at_k(episodes: int, passed: int, k: int) -> float:
    """The chance that one of k episodes of a row passes, drawn without replacement.

        1 - C(n - c, k) / C(n, k)        n = episodes, c = passed

    This is unbiased (Chen et al. 2021, https://arxiv.org/abs/2107.03374, equation 1);
    1 - (1 - c/n)^k is not.

    Args:
        episodes: How many the row has, at least k.
        passed: How many of them passed.
        k: How many are drawn.
    """
    if not (1 <= k <= episodes and 0 <= passed <= episodes):
        raise ValueError(
            f"pass@k needs 1 <= k <= episodes and 0 <= passed <= episodes, "
            f"got k={k}, episodes={episodes}, passed={passed}"
        )
    return 1.0 - math.comb(episodes - passed, k) / math.comb(episodes, k)


def clustered_mean(groups: Sequence[Sequence[float]]) -> Estimate:
    """The mean over all episodes, with the interval that rows as clusters give.

        se = sqrt( R / (R - 1) * sum_r ( sum_i (x_ri - mean) )^2 ) / N
        mean -+ t_{R-1} * se

    The standard error of clustered means (Miller 2024, https://arxiv.org/abs/2411.00640) with the
    usual correction for few clusters; if all rows have equally many episodes, it is that of the
    rows' means. If every row has the same mean, nothing varies and the interval is a point.

    Args:
        groups: The numbers of each row's episodes: R groups, N numbers; empty groups do not count.

    Raises:
        ValueError: There are no numbers.
    """
    groups = [group for group in groups if len(group)]
    numbers = [number for group in groups for number in group]
    if not numbers:
        raise ValueError("there are no numbers to take the mean of")
    mean, rows, scale = exact_mean(numbers), len(groups), safe_scale(numbers)
    if rows < 2:
        return Estimate(mean)
    apart = (math.fsum(number * scale - mean * scale for number in group) for group in groups)
    squares = math.fsum(distance**2 for distance in apart)
    half = student_t(rows - 1) * math.sqrt(squares * rows / (rows - 1)) / len(numbers) / scale
    return Estimate(mean, mean - half, mean + half)


def mean_share(shares: Sequence[float], episodes: int) -> Estimate:
    """The mean of the rows' shares, each in [0, 1], with an interval that stays in [0, 1].

    Wilson's interval, with the effective number of observations in place of n:

        m = p (1 - p) / var(p),   var(p) = sum_r (p_r - p)^2 / (R (R - 1)),   R <= m <= N
        (p + z^2/2m -+ z sqrt( p (1 - p) / m + z^2/4m^2 )) / (1 + z^2/m)

    as surveys do it (Franco et al. 2019, https://pmc.ncbi.nlm.nih.gov/articles/PMC6690503). It is
    not a point at 0 and at 1, where m = R: rows that are all alike say no more than R observations.
    With one episode per row it is Wilson's own interval.

    Args:
        shares: One for each row: R numbers.
        episodes: How many all rows have: N.

    Raises:
        ValueError: There are no shares.
    """
    if not len(shares):
        raise ValueError("there are no shares to take the mean of")
    rows, p = len(shares), min(1.0, max(0.0, fmean(shares)))
    if rows < 2:
        return Estimate(p)
    variance = math.fsum((share - p) ** 2 for share in shares) / (rows * (rows - 1))
    alike = p * (1 - p)
    if not alike:
        m = float(rows)
    elif variance * episodes <= alike:
        m = float(max(rows, episodes))
    else:
        m = max(float(rows), alike / variance)
    square = NormalDist().inv_cdf((1 + LEVEL) / 2) ** 2
    middle = p + square / (2 * m)
    half = math.sqrt(square * alike / m + (square / (2 * m)) ** 2)
    low, high = (middle - half) / (1 + square / m), (middle + half) / (1 + square / m)
    return Estimate(p, min(p, max(0.0, low)), max(p, min(1.0, high)))


@cache
def student_t(degrees: int, level: float = LEVEL) -> float:
    """Student's t lies between minus and plus this value with 95% probability.

    Computed by bisection on the angle atan(t / sqrt(degrees)), in which the probability is a finite
    sum (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4). No library that Gymnast needs has it.

    Args:
        degrees: Degrees of freedom, at least 1: 12.706 at 1, 2.228 at 10, 1.984 at 100.
        level: Another probability than 95%, below 1.
    """
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        if _two_sided(angle, degrees) < level:
            low = angle
        else:
            high = angle
    return math.tan(angle) * math.sqrt(degrees)


def _two_sided(angle: float, degrees: int) -> float:
    """The probability of |t| < sqrt(degrees) tan(angle)."""
    square, odd = math.cos(angle) ** 2, degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(2 + odd, degrees + 1, 2):
        total += term
        term *= square * (power - 1) / power
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
