"""Texts and numbers that are the same, and those that are not."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs import rubrics
from gymnast.envs.rubrics import last_number, same_number, same_text
from gymnast.errors import ConfigError, DataError
from rubric_fixtures import reward

IGNORED = st.lists(st.sampled_from(["case", "space", "punctuation"]), unique=True)
NUMBERS = st.integers(-(10**30), 10**30) | st.floats(-1e12, 1e12)
TOLERANCES = st.floats(0, 1e6)


# --- Texts


@given(st.text(), IGNORED)
def test_a_text_is_itself_whatever_is_ignored(text: str, ignore: Any) -> None:
    assert same_text(text, text, ignore)


@given(st.text(), st.text())
def test_nothing_is_ignored_that_is_not_named(one: str, other: str) -> None:
    assert same_text(one, other) == (one == other)


@given(st.text(), st.text(), IGNORED, IGNORED)
def test_what_is_the_same_stays_so_when_more_is_ignored(
    one: str, other: str, ignore: Any, more: Any
) -> None:
    assert same_text(one, other, ignore) == same_text(other, one, ignore)
    if same_text(one, other, ignore):
        assert same_text(one, other, [*ignore, *more])


@pytest.mark.parametrize(
    ("answer", "ignore", "earned"),
    [
        ("New York", (), 1.0),
        ("new york", (), 0.0),
        ("new york", ("case",), 1.0),
        (" New \n York ", ("case",), 0.0),
        (" New \n York ", ("space",), 1.0),
        ("NewYork", ("space",), 0.0),
        ("New York.", ("space", "case"), 0.0),
        ("new york!", ("case", "punctuation"), 1.0),
        ("Ne\u2019w York", ("punctuation",), 1.0),
    ],
)
def test_only_what_is_named_makes_no_difference(answer: str, ignore: Any, earned: float) -> None:
    assert reward(rubrics.exact("city", ignore=ignore), answer, city="New York") == earned


def test_a_column_may_hold_several_right_answers_numbers_too() -> None:
    rubric = rubrics.exact()
    assert [reward(rubric, answer, answer=["NYC", 7]) for answer in ("NYC", "7", "NY")] == [1, 1, 0]


def test_the_last_match_is_compared_where_a_pattern_says_what() -> None:
    rubric = rubrics.exact(extract=r"<answer>(.*?)</answer>")
    assert reward(rubric, "<answer>1</answer> no, <answer>2</answer>.", answer="2") == 1.0
    assert reward(rubric, "<answer>2</answer> no, <answer>1</answer>.", answer="2") == 0.0
    assert reward(rubric, "2", answer="2") == 0.0
    assert reward(rubrics.exact(extract=r"\d+"), "1 or 2.", answer="2") == 1.0


def test_a_column_may_be_anywhere_in_the_row() -> None:
    assert reward(rubrics.exact("right.city"), "Bern", right={"city": "Bern"}) == 1.0
    assert reward(rubrics.exact("the-city"), "Bern", **{"the-city": "Bern"}) == 1.0
    with pytest.raises(DataError, match=r"exact: the row has nothing in 'cty'.*prompt, city"):
        reward(rubrics.exact("cty"), "Bern", city="Bern")


# --- Numbers


@given(NUMBERS, TOLERANCES, TOLERANCES)
def test_a_number_is_itself(number: float, tolerance: float, relative: float) -> None:
    assert same_number(number, number, tolerance, relative)


@given(NUMBERS, NUMBERS, TOLERANCES)
def test_a_tolerance_is_the_distance_that_is_allowed(
    one: float, other: float, tolerance: float
) -> None:
    apart = abs(Fraction(str(one)) - Fraction(str(other)))
    assert same_number(one, other, tolerance) == (apart <= Fraction(str(tolerance)))
    assert same_number(one, other, tolerance) == same_number(other, one, tolerance)


@given(NUMBERS, NUMBERS, st.floats(0, 2))
def test_a_relative_tolerance_is_a_share_of_the_right_number(
    one: float, right: float, share: float
) -> None:
    apart = abs(Fraction(str(one)) - Fraction(str(right)))
    allowed = Fraction(str(share)) * abs(Fraction(str(right)))
    if abs(apart - allowed) > allowed * Fraction(1, 10**40):  # decimals have 50 digits
        assert same_number(one, right, 0.0, share) == (apart <= allowed)


@given(NUMBERS)
def test_a_number_is_found_at_the_end_of_a_sentence(number: float) -> None:
    assert last_number(f"First 3, then {number}.") == Decimal(str(number))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 23 x 50 = 1,150.", "1150"),
        ("about .5", "0.5"),
        ("\u22123 degrees", "-3"),
        ("1.5e3 of them", "1500"),
        ("from 10-5", "5"),
        ("1,2 and 3,4", "4"),
        ("v2", None),
        ("none", None),
        ("1e99999999999999999999", None),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("one", "other"), [("nan", "nan"), ("nan", 1), ("inf", "-inf"), ("inf", 1), (1, "inf")]
)
def test_what_is_no_number_is_the_same_as_none(one: Any, other: Any) -> None:
    assert not same_number(float(one), float(other), 1e300, 1e300)


def test_numbers_that_no_float_holds_are_compared() -> None:
    assert same_number(Decimal("1e99999"), Decimal("1e99999"))
    assert not same_number(Decimal("1e99999"), Decimal("1e-99999"), 1e300)
    assert not same_number(10**30, 10**30 + 1)


def test_a_tenth_is_a_tenth() -> None:
    rubric = rubrics.numeric(tolerance=0.1)
    earned = [reward(rubric, answer, answer=0.3) for answer in ("0.4", "0.2", "0.41", "0.1999")]
    assert earned == [1, 1, 0, 0]


def test_the_last_number_of_the_answer_counts() -> None:
    rubric = rubrics.numeric()
    earned = [
        reward(rubric, answer, answer="4 apples") for answer in ("3, no, 4.0", "4, no, 3", "")
    ]
    assert earned == [1, 0, 0]
    boxed = rubrics.numeric(extract=r"\\boxed\{(.*?)\}")
    assert reward(boxed, r"It is \boxed{4} for all 3.", answer=4) == 1.0


@pytest.mark.parametrize("wrong", ["four", True, [4]])
def test_a_column_without_a_number_is_the_authors_mistake(wrong: Any) -> None:
    if wrong == [4]:
        assert reward(rubrics.numeric(), "4", answer=wrong) == 1.0
        return
    with pytest.raises(DataError, match="numeric: column 'answer' must hold a number, got"):
        reward(rubrics.numeric(), "4", answer=wrong)


def one(wrong: Any) -> Any:
    """A value of the wrong type, which type checkers let pass."""
    return wrong


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rubrics.exact(""), "exact: column must be the name of a column, got ''"),
        (lambda: rubrics.exact("a..b"), "exact: column must be .* jmespath expression, got 'a..b'"),
        (
            lambda: rubrics.exact(ignore=one("case")),
            "exact: ignore must be a list of some of case, sp",
        ),
        (lambda: rubrics.exact(ignore=one(["accents"])), "exact: ignore must be a list"),
        (lambda: rubrics.exact(extract="("), "exact: extract must be a regular expression, got"),
        (lambda: rubrics.numeric(tolerance=-1), "numeric: a tolerance must be a number >= 0"),
        (lambda: rubrics.numeric(relative_tolerance=float("nan")), "numeric: a tolerance must be"),
        (lambda: rubrics.numeric(tolerance=True), "numeric: a tolerance must be a number"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()
