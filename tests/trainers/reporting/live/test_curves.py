"""A sparkline has a bar for each number, the higher the larger; too many numbers share bars."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.reporting.live.curves import ASCII_BARS, BARS, sparkline

numbers = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=80)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], ""),
        ([0.5], "▁"),
        ([1, 1, 1], "▁▁▁"),
        ([0, 7], "▁█"),
        ([0, 1, 2, 3, 4, 5, 6, 7], BARS),
        ([7, 0, 3.5], "█▁▅"),
        ([0, math.nan, 1], "▁ █"),
        ([math.nan], " "),
    ],
)
def test_each_number_has_a_bar(values: list[float], shown: str) -> None:
    assert sparkline(values, 40) == shown


def test_more_numbers_than_columns_share_them_by_their_means() -> None:
    assert sparkline([0, 0, 0, 0, 7, 7, 7, 7, 3, 4], 5) == sparkline([0, 0, 7, 7, 3.5], 5)


def test_what_knows_ascii_only_gets_ascii() -> None:
    assert sparkline(range(8), 8, ascii_only=True) == ASCII_BARS
    assert ASCII_BARS.isascii() and len(ASCII_BARS) == len(BARS)


@given(values=numbers, width=st.integers(0, 50))
def test_no_line_is_wider_than_asked_for(values: list[float], width: int) -> None:
    shown = sparkline(values, width)
    assert len(shown) == min(len(values), width)
    assert set(shown) <= {*BARS, " "}


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=40))
def test_a_higher_number_has_no_lower_bar(values: list[float]) -> None:
    heights = [BARS.index(bar) for bar in sparkline(values, 40)]
    ordered = sorted(zip(values, heights, strict=True))
    assert [height for _, height in ordered] == sorted(heights)
