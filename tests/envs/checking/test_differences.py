"""The first difference, by the name under which people find it."""

from typing import Any

import numpy as np
import pytest

from gymnast.envs.checking.differences import first_difference
from gymnast.envs.records.episode import Timings


def seconds(kind: str) -> Timings:
    timings = Timings()
    timings.add(kind, 1.0)
    return timings


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (1.0, 2.0, "info was 1.0, then 2.0"),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "info['a']['b'] was 1, then 2"),
        ({"a": 1}, {}, "info['a'] was there only the first time"),
        ({}, {"a": 1}, "info['a'] was there only the second time"),
        ([1, (2, 3)], [1, (2, 4)], "info[1][1] was 3, then 4"),
        ([1], [1, 2], "info had a length of 1, then of 2"),
        (np.array([1, 2]), np.array([1, 3]), "info was array([1, 2]), then array([1, 3])"),
        ("a" * 500, "b", "info was '" + "a" * 99 + ", then 'b'"),
    ],
)
def test_a_difference_is_named(first: Any, second: Any, said: str) -> None:
    assert first_difference(first, second, "info") == said
    assert first_difference(second, first, "info") is not None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": [1, float("nan")]}, {"a": [1, float("nan")]}),
        (np.array([1, 2]), np.array([1, 2])),
        ((1, 2), [1, 2]),
        (seconds("tools"), seconds("setup")),
        (object(), object()),  # copies of an object that does not say when it is equal
    ],
)
def test_what_is_equal_or_cannot_be_compared_is_no_difference(first: Any, second: Any) -> None:
    assert first_difference(first, second, "info") is None


def test_long_values_are_shown_where_they_differ() -> None:
    difference = first_difference("x" * 500 + "one", "x" * 500 + "two", "text")
    assert difference == f"text was ...{'x' * 40}one', then ...{'x' * 40}two'"
