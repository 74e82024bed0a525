"""The first difference between two values that should be equal, with the Python path to it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gymnast.envs.records.episode import Timings

_MOST = 100  # characters of a value that are shown
_BEFORE = 40  # of them before the first difference


def first_difference(first: Any, second: Any, name: str) -> str | None:
    """The first place where two values differ: `info['metrics']['x'] was 1.0, then 2.0`.

    Timings are ignored, and so are objects without an `__eq__` of their own.

    Args:
        first: One value.
        second: The other value.
        name: The name of both.

    Returns:
        The difference, or None if they are equal.
    """
    if isinstance(first, Timings) and isinstance(second, Timings):
        return None
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in [*first, *(key for key in second if key not in first)]:
            if key not in first or key not in second:
                where = "the second" if key in second else "the first"
                return f"{name}[{key!r}] was there only {where} time"
            if difference := first_difference(first[key], second[key], f"{name}[{key!r}]"):
                return difference
        return None
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        if len(first) != len(second):
            return f"{name} had a length of {len(first)}, then of {len(second)}"
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            if difference := first_difference(one, other, f"{name}[{index}]"):
                return difference
        return None
    if _equal(first, second):
        return None
    one, other = _shortened(repr(first), repr(second))
    return f"{name} was {one}, then {other}"


def _shortened(first: str, second: str) -> tuple[str, str]:
    """Return two texts, or of long ones the places where they begin to differ."""
    differing = next(
        (place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0
    )
    long = max(len(first), len(second)) > _MOST and differing + _BEFORE > _MOST
    begin = differing - _BEFORE if long else 0
    shown = (f"{'...' if begin else ''}{text[begin : begin + _MOST]}" for text in (first, second))
    one, other = shown
    return one, other


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return bool(np.array_equal(first, second))
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    if type(first) is type(second) and not _defines_equality(type(first)):
        return True
    try:
        return bool(first == second)
    except Exception:  # values that cannot be compared show no difference
        return True


def _defines_equality(cls: type) -> bool:
    return any("__eq__" in vars(base) for base in cls.__mro__ if base is not object)
