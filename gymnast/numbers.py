"""Numbers that other code returns, as finite floats, and statistics that do not overflow.

Rewards, parts of rewards, metrics and grades come from hooks, reward functions, games, servers and
graders' files, and may follow the policy's text: `-abs(int(episode.answer) - 3)`. All of them pass
`finite_number`, and their sums `finite_sum`. Callers turn the `ValueError` into the error that
names the hook and the row, or into a reward of 0.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gymnast.errors import shown


def finite_number(value: Any) -> float:
    """Convert a number to a finite float.

    Numbers are ints of any size, bools, floats, `Fraction`, `Decimal`, scalars of numpy and torch,
    arrays and tensors of one element, and other objects with `__float__`.

    Args:
        value: What other code returned.

    Raises:
        ValueError: It is not a number (strings, bytes and complex numbers are not), it is NaN or
            infinite, or no float is that large.
    """
    number = as_float(value)
    if not math.isfinite(number):
        raise ValueError(f"{shown(value)} is not a finite number")
    return number


def is_finite(value: Any) -> bool:
    """Return True if `finite_number` converts a value."""
    try:
        finite_number(value)
    except ValueError:
        return False
    return True


def as_float(value: Any) -> float:
    """Convert a number to a float, to infinity where no float is that large; NaN stays NaN.

    Raises:
        ValueError: It is not a number.
    """
    try:
        plain = _plain(value)
        if isinstance(plain, str | bytes | bytearray):  # which `float` would read
            raise TypeError
        return float(plain)
    except OverflowError:
        return _infinite(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `__float__` may raise anything
        raise ValueError(f"{shown(value)} is not a number") from error


def _plain(value: Any) -> Any:
    """The element of an array or a tensor that has one; any other value as it is."""
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist()  # None where it is masked, for which `item` returns a number
    return value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value


def _infinite(value: Any) -> float:
    """Infinity with the sign of a number that is too large for a float."""
    try:
        return -math.inf if value < 0 else math.inf
    except Exception:
        return math.nan


def finite_sum(numbers: Iterable[float]) -> float:
    """Add finite floats in their order.

    Raises:
        ValueError: No float is that large.
    """
    total = sum(numbers, 0.0)
    if not math.isfinite(total):
        raise ValueError(f"the sum is {total}: no float is that large")
    return total


def mean(numbers: Sequence[float]) -> float:
    """The mean, which is finite where all numbers are, however large their sum.

    Args:
        numbers: At least one; NaN and infinities count as in any sum.
    """
    found = sum(numbers) / len(numbers)
    if math.isfinite(found) or not all(map(math.isfinite, numbers)):
        return found
    scale = safe_scale(numbers)
    return sum(number * scale for number in numbers) / len(numbers) / scale


def exact_mean(numbers: Sequence[float]) -> float:
    """The mean whose sum is rounded once, as that of `statistics.fmean`, whatever its size.

    Args:
        numbers: At least one; NaN and infinities count as in any sum.
    """
    if not all(map(math.isfinite, numbers)):
        return sum(numbers) / len(numbers)
    scale = safe_scale(numbers)
    return math.fsum(number * scale for number in numbers) / len(numbers) / scale


def standard_deviation(numbers: Sequence[float]) -> float:
    """The standard deviation of all numbers (divided by N), however large their squares.

    Args:
        numbers: At least one; it is NaN where one is NaN or infinite.
    """
    if not all(map(math.isfinite, numbers)):
        return math.nan
    scale = safe_scale(numbers)
    scaled = [number * scale for number in numbers]
    middle = sum(scaled) / len(scaled)
    squares = sum((number - middle) ** 2 for number in scaled)
    return float((squares / len(scaled)) ** 0.5) / scale


_LARGE = 2.0**500  # squares of smaller numbers, and sums of them, are floats


def safe_scale(numbers: Iterable[float]) -> float:
    """A power of two; squares of finite numbers times it do not overflow. 1 unless one is large."""
    return 2.0**-600 if max(map(abs, numbers), default=0.0) >= _LARGE else 1.0
