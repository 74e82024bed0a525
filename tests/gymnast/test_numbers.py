"""Numbers of other code become finite floats, and statistics of them do not overflow."""

import math
import statistics
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.errors import described, shown
from gymnast.numbers import (
    as_float,
    exact_mean,
    finite_number,
    finite_sum,
    is_finite,
    mean,
    standard_deviation,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)


class Raises:
    """Its conversion raises, and so does its repr."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __float__(self) -> float:
        raise self.error

    def __repr__(self) -> str:
        raise self.error


class Returns:
    """Its conversion returns what it is given."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __float__(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0),
        (True, 1.0),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
        (10**300, 1e300),
        (np.int64(3), 3.0),
        (np.float16(0.5), 0.5),
        (np.longdouble(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(1.5), 1.5),
        (np.array([1.5]), 1.5),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([1.5], requires_grad=True), 1.5),
        (Returns(2.5), 2.5),
    ],
)
def test_numbers_of_any_type_become_floats(value: Any, number: float) -> None:
    found = finite_number(value)
    assert type(found) is float and found == number


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "large",
    [
        10**400,
        10**5000,
        Fraction(10**400),
        Decimal("1e400"),
        np.longdouble("1e400"),
        np.array(10**400, dtype=object),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_beyond_float_are_infinite_and_refused(large: Any, sign: int) -> None:
    assert as_float(sign * large) == sign * math.inf
    assert not is_finite(sign * large)
    with pytest.raises(ValueError, match="is not a finite number"):
        finite_number(sign * large)


@pytest.mark.parametrize(
    "value",
    [
        None, "1", b"1", [1.0], {}, 1j, np.complex64(1), Decimal("sNaN"), np.ma.masked,
        np.array([1, 2]), torch.tensor([1.0, 2.0]), torch.tensor([]), np.datetime64(3, "s"),
        Returns("x"), Raises(ValueError("no")), Raises(SystemExit(1)), Raises(GeneratorExit()),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        finite_number(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float16("inf"), Decimal("NaN")])
def test_what_is_not_finite_is_refused(value: Any) -> None:
    assert not math.isfinite(as_float(value))
    with pytest.raises(ValueError, match="is not a finite number"):
        finite_number(value)
    with pytest.raises(ValueError, match="is not a finite number"):
        finite_number(Returns(float(value)))


def test_ctrl_c_in_a_conversion_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        finite_number(Raises(KeyboardInterrupt()))


@given(st.integers() | st.fractions() | FINITE | st.integers(290, 330).map(lambda n: 10**n))
def test_a_number_is_what_float_says_or_refused(value: Any) -> None:
    try:
        expected = float(value)
    except OverflowError:
        assert not is_finite(value)
    else:
        assert finite_number(value) == expected


@given(st.lists(FINITE, max_size=5))
def test_a_sum_is_finite_or_refused(numbers: list[float]) -> None:
    if math.isfinite(total := sum(numbers)):
        assert finite_sum(numbers) == total
    else:
        with pytest.raises(ValueError, match="no float is that large"):
            finite_sum(numbers)


@given(st.lists(FINITE, min_size=1, max_size=8))
def test_statistics_of_finite_numbers_are_finite(numbers: list[float]) -> None:
    low, high = min(numbers), max(numbers)
    size = max(abs(low), abs(high))
    for average in (mean(numbers), exact_mean(numbers)):
        assert math.isfinite(average)
        assert low - 1e-9 * size <= average <= high + 1e-9 * size
    deviation = standard_deviation(numbers)
    assert math.isfinite(deviation) and 0 <= deviation <= size * (1 + 1e-9)


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=8))
def test_statistics_of_small_numbers_are_the_usual_ones(numbers: list[float]) -> None:
    assert mean(numbers) == sum(numbers) / len(numbers)
    assert exact_mean(numbers) == statistics.fmean(numbers)


def test_what_is_not_finite_stays_so_in_statistics() -> None:
    for numbers in ([math.inf, -math.inf], [math.nan, 1.0]):
        assert math.isnan(mean(numbers)) and math.isnan(exact_mean(numbers))
        assert math.isnan(standard_deviation(numbers))


class Silent(Exception):
    """Its message raises."""

    def __str__(self) -> str:
        raise SystemExit(1)


def test_messages_are_safe_from_what_they_show() -> None:
    assert described(KeyError("a")) == "KeyError: 'a'" and described(Silent()) == "Silent"
    assert shown([1, "a"]) == "[1, 'a']" and shown("a" * 300) == "'" + "a" * 199 + "..."
    assert shown({"a": 10**5000}) == "{'a': <int instance of 16610 bits>}"
    assert shown(Raises(SystemExit(1))) == "<Raises instance>"
    assert shown(Fraction(10**5000)).startswith("<Fraction instance")
