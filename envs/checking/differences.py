"""Where two values that should be equal differ, written as Python would reach it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gymnast.envs.records.metrics import Timings


def first_difference(first: Any, second: Any, name: str) -> str | None:
    """The first place where two values differ: `info['metrics']['x'] was 1.0, then 2.0`.

    Seconds are left out, and objects that do not say when they are equal.

    Args:
        first: A value.
        second: What it is compared with.
        name: What both are called.

    Returns:
        None where they are equal.
    """
    if isinstance(first, Timings) and isinstance(second, Timings):
        return None
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in [*first, *(key for key in second if key not in first)]:
            if key not in first or key not in second:
                where = "the second" if key in second else "the first"
                return f"{name}[{key!r}] was there only {where} time"
            if found := first_difference(first[key], second[key], f"{name}[{key!r}]"):
                return found
        return None
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        if len(first) != len(second):
            return f"{name} had a length of {len(first)}, then of {len(second)}"
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            if found := first_difference(one, other, f"{name}[{index}]"):
                return found
        return None
    if _equal(first, second):
        return None
    return f"{name} was {first!r:.100}, then {second!r:.100}"


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return bool(np.array_equal(first, second))
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    if type(first) is type(second) and not _says_when_equal(type(first)):
        return True
    try:
        return bool(first == second)
    except Exception:  # what cannot be compared says nothing
        return True


def _says_when_equal(cls: type) -> bool:
    return any("__eq__" in vars(base) for base in cls.__mro__ if base is not object)
