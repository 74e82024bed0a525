"""Rubrics that compare the answer with a column of the row: as text, or as a number."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_UP, Context, Decimal, InvalidOperation
from typing import Any, ClassVar, Literal, get_args

from gymnast.envs.rubrics.reading import answer_of, check_column, check_pattern, extracted, of_row
from gymnast.envs.rubrics.rubric import Played, Rubric
from gymnast.errors import ConfigError, DataError

Ignored = Literal["case", "space", "punctuation"]

# A digit that is not part of a word or of another number; possessive, so that it takes linear time.
_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:\d{1,3}+(?:,\d{3})+(?!\d|,\d{3})|\d++|(?=\.\d))(?:\.\d++)?(?:[eE][-+]?\d++)?(?!\w)"
)
# Rounded away from zero: a distance that is too large by a little stays too large. What is no
# number compares as unequal.
_ARITHMETIC = Context(prec=50, rounding=ROUND_UP, traps=[])


@dataclass(frozen=True)
class Exact(Rubric):
    """1.0 where the answer is the text in a column of the row, else 0.0.

    Args:
        column: The column, or a jmespath expression. A list there holds several right answers.
        ignore: What makes no difference, of "case", "space" (how much of it, and at both ends) and
            "punctuation"; by default nothing.
        extract: A regular expression; its last match in the answer is compared, or what its first
            group matches. Without a match the answer is wrong.
    """

    name: ClassVar[str] = "exact"
    column: str = "answer"
    ignore: Sequence[Ignored] = ()
    extract: str | None = None

    def __post_init__(self) -> None:
        check_column("exact", self.column)
        known = get_args(Ignored)
        if isinstance(self.ignore, str) or any(one not in known for one in self.ignore):
            raise ConfigError(
                f"exact: ignore must be a list of some of {', '.join(known)}, got "
                f"{self.ignore!r:.100}"
            )
        object.__setattr__(self, "ignore", tuple(self.ignore))
        if self.extract is not None:
            check_pattern("exact", "extract", self.extract)

    def score(self, episode: Played, environment: Any = None) -> float:
        """Whether they are the same."""
        wanted = of_row(episode.row, self.column, "exact")
        given = extracted(answer_of(episode), self.extract)
        if given is None:
            return 0.0
        right = wanted if isinstance(wanted, list | tuple) else [wanted]
        return float(any(same_text(given, str(one), self.ignore) for one in right))


def same_text(one: str, other: str, ignore: Sequence[Ignored] = ()) -> bool:
    """Whether two texts are the same, but for what is ignored; see `Exact`."""
    return _normal(one, ignore) == _normal(other, ignore)


def _normal(text: str, ignore: Sequence[Ignored]) -> str:
    if "case" in ignore:
        text = text.casefold()
    if "punctuation" in ignore:
        text = "".join(c for c in text if not unicodedata.category(c).startswith("P"))
    return " ".join(text.split()) if "space" in ignore else text


@dataclass(frozen=True)
class Numeric(Rubric):
    """1.0 where the last number in the answer is the one in a column of the row, else 0.0.

    Numbers are read as decimals, "1,150" and "1.5e3" as well, and never as binary fractions. Two
    are the same if they differ by at most `tolerance`, or `relative_tolerance` times the size of
    the row's.

    Args:
        column: The column, or a jmespath expression; a number, or a text with one.
        tolerance: In the unit of the numbers; by default 0, which makes 0.5 and 0.50 the same and
            nothing else.
        relative_tolerance: A share of the right number: 0.01 allows one percent.
        extract: A regular expression; the number is looked for in its last match in the answer, or
            in what its first group matches.
    """

    name: ClassVar[str] = "numeric"
    column: str = "answer"
    tolerance: float = 0.0
    relative_tolerance: float = 0.0
    extract: str | None = None

    def __post_init__(self) -> None:
        check_column("numeric", self.column)
        check_tolerances("numeric", self.tolerance, self.relative_tolerance)
        if self.extract is not None:
            check_pattern("numeric", "extract", self.extract)

    def score(self, episode: Played, environment: Any = None) -> float:
        """Whether they are the same."""
        wanted = of_row(episode.row, self.column, "numeric")
        right = last_number(str(wanted))
        if right is None or isinstance(wanted, bool):
            raise DataError(
                f"numeric: column {self.column!r} must hold a number, got {wanted!r:.200} (row: "
                f"{dict(episode.row)!r:.300})"
            )
        given = last_number(extracted(answer_of(episode), self.extract) or "")
        if given is None:
            return 0.0
        return float(same_number(given, right, self.tolerance, self.relative_tolerance))


def same_number(
    given: Any, right: Any, tolerance: float = 0.0, relative_tolerance: float = 0.0
) -> bool:
    """Whether two numbers are the same within a tolerance; see `Numeric`.

    NaN is no number, and infinities are the same as themselves alone.
    """
    one, other = as_decimal(given), as_decimal(right)
    if not (one.is_finite() and other.is_finite()):
        return one.is_infinite() and one == other
    relative = _ARITHMETIC.multiply(as_decimal(relative_tolerance), other.copy_abs())
    allowed = _ARITHMETIC.max(as_decimal(tolerance), relative)
    apart = _ARITHMETIC.subtract(one, other).copy_abs()
    return one == other or (apart.is_finite() and apart <= allowed)


def last_number(text: str) -> Decimal | None:
    """The last number in a text, or None: 1150 in "It is 23 x 50 = 1,150."."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    try:
        return Decimal(found[-1].replace(",", "").replace("\u2212", "-"))
    except InvalidOperation:  # an exponent that no decimal has
        return None


def check_tolerances(rubric: str, *tolerances: Any) -> None:
    """Check that tolerances are numbers >= 0.

    Raises:
        ConfigError: One is not.
    """
    for given in tolerances:
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or not 0 <= given < float("inf"):
            raise ConfigError(f"{rubric}: a tolerance must be a number >= 0, got {given!r:.100}")


def as_decimal(number: Any) -> Decimal:
    """A number as it is written: 0.1 is a tenth."""
    return Decimal(number if isinstance(number, int | Decimal) else str(number))
