"""A rubric that compares rows, such as the results of two SQL queries."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, ClassVar

from gymnast.envs.rubrics.comparing import as_decimal, check_tolerances, same_number
from gymnast.envs.rubrics.reading import answer_of, check_column, check_pattern, of_row
from gymnast.envs.rubrics.rubric import Played, Rubric
from gymnast.envs.rubrics.structure import json_in, parsed_json
from gymnast.errors import DataError

Row = Sequence[Any] | Mapping[str, Any]
_Numbers = tuple[Decimal, ...]  # of a row, from left to right
_Close = Callable[[Decimal, Decimal], bool]

_MOST_MATCHED = 300  # rows, as every pair of them is compared
_FINER = (1e-3, 1e-6)  # shares of a tolerance


@dataclass(frozen=True)
class ResultSet(Rubric):
    """1.0 where the answer holds the rows that a column of the dataset row holds, else 0.0.

    The answer is read as JSON, as `json_schema` reads it. An environment that has rows at hand
    calls `same_rows` instead.

    Args:
        column: The column, or a jmespath expression: a list of rows, or the JSON of one.
        ordered: Whether the order of the rows counts.
        tolerance: By how much two numbers may differ.
        relative_tolerance: By which share of the right number.
        extract: A regular expression; its last match in the answer is read, or what its first group
            matches.
    """

    name: ClassVar[str] = "result_set"
    column: str = "rows"
    ordered: bool = False
    tolerance: float = 0.0
    relative_tolerance: float = 0.0
    extract: str | None = None

    def __post_init__(self) -> None:
        check_column("result_set", self.column)
        check_tolerances("result_set", self.tolerance, self.relative_tolerance)
        if self.extract is not None:
            check_pattern("result_set", "extract", self.extract)

    def score(self, episode: Played, environment: Any = None) -> float:
        """Whether they are the same."""
        wanted = of_row(episode.row, self.column, "result_set")
        if isinstance(wanted, str):
            wanted, _ = parsed_json(wanted)
        if not _are_rows(wanted):
            raise DataError(
                f"result_set: column {self.column!r} must hold a list of rows, each a list or an "
                f"object, got {wanted!r:.200} (row: {dict(episode.row)!r:.300})"
            )
        given, _ = json_in(answer_of(episode), self.extract)
        return float(
            _are_rows(given)
            and same_rows(
                given,
                wanted,
                ordered=self.ordered,
                tolerance=self.tolerance,
                relative_tolerance=self.relative_tolerance,
            )
        )


def _are_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(row, list | tuple | Mapping) for row in value
    )


def same_rows(
    given: Sequence[Row],
    wanted: Sequence[Row],
    *,
    ordered: bool = False,
    tolerance: float = 0.0,
    relative_tolerance: float = 0.0,
) -> bool:
    """Return whether two results have the same rows, each as often.

    A row is a sequence, whose values are compared in order, or a mapping, whose values are compared
    by name; the two kinds are never the same. Numbers are the same within the tolerance, whatever
    their types; other values if they are equal and of one type. None is the same as None.

    Takes n log n steps for n rows. Rows whose numbers are so dense that over 300 of them lie within
    the tolerance of one another, in a chain, are the same if they can be paired in order.

    Args:
        given: The rows that were found.
        wanted: The right rows; relative tolerances are shares of its numbers.
        ordered: Whether the order of the rows counts.
        tolerance: The largest difference between two numbers that are the same.
        relative_tolerance: The same as a share of the right number.
    """
    if Counter(map(len, given)) != Counter(map(len, wanted)):
        return False
    close = _closeness(tolerance, relative_tolerance)
    left, right = [_Cells.of(row) for row in given], [_Cells.of(row) for row in wanted]
    if ordered:
        pairs = list(zip(left, right, strict=True))
        return all(one.rest == other.rest for one, other in pairs) and all(
            _row_is_close(one.numbers, other.numbers, close) for one, other in pairs
        )
    groups: dict[str, tuple[list[_Numbers], list[_Numbers]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((left, right)):
        for cells in rows:
            groups[cells.rest][side].append(cells.numbers)
    if any(len(ours) != len(theirs) for ours, theirs in groups.values()):
        return False
    if not tolerance and not relative_tolerance:
        return all(Counter(ours) == Counter(theirs) for ours, theirs in groups.values())
    finer = [_closeness(share * tolerance, share * relative_tolerance) for share in _FINER]
    splits = relative_tolerance <= 1
    return all(_can_be_paired(*group, close, finer, splits) for group in groups.values())


@dataclass(frozen=True)
class _Cells:
    """A row, divided into its numbers and a string of everything else."""

    numbers: _Numbers
    rest: str

    @classmethod
    def of(cls, row: Row) -> "_Cells":
        numbers: list[Decimal] = []

        def written(value: Any) -> str:
            number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
            if number and not (decimal := as_decimal(value)).is_nan():
                numbers.append(decimal)
                return "number"
            if isinstance(value, Mapping):
                items = sorted((str(key), value[key]) for key in value)
                return f"{{{','.join(f'{key!r}:{written(inner)}' for key, inner in items)}}}"
            if isinstance(value, list | tuple):
                return f"[{','.join(map(written, value))}]"
            return f"{type(value).__name__} {value!r}"

        rest = written(row if isinstance(row, Mapping) else list(row))
        return cls(tuple(numbers), rest)


def _closeness(tolerance: float, relative_tolerance: float) -> _Close:
    def close(given: Decimal, right: Decimal) -> bool:
        return given == right or same_number(given, right, tolerance, relative_tolerance)

    return close


def _row_is_close(one: _Numbers, other: _Numbers, close: _Close) -> bool:
    return all(map(close, one, other))


def _can_be_paired(
    ours: Sequence[_Numbers],
    theirs: Sequence[_Numbers],
    close: _Close,
    finer: Iterable[_Close],
    splits: bool,
) -> bool:
    """Return whether every one of ours has another one of theirs that it is close to.

    Rows are divided by gaps in their numbers that are wider than the tolerance, since rows on two
    sides of a gap cannot be paired. The two parts between gaps have almost always few rows, or
    rows that are paired in order.

    Args:
        ours: Rows of numbers.
        theirs: As many right ones.
        close: Compares two numbers.
        finer: The same with smaller tolerances, to find pairs among dense rows with little noise.
        splits: Whether gaps separate: a relative tolerance over 1 reaches across them.
    """
    if _fit(ours, theirs, close):
        return True
    for part, other in _divided(ours, theirs, close) if splits else [(ours, theirs)]:
        if len(part) != len(other):
            return False
        if _fit(part, other, close) or any(
            _fit_divided(part, other, close, fine) for fine in finer
        ):
            continue
        columns = zip(zip(*part, strict=True), zip(*other, strict=True), strict=True)
        if splits and not all(all(map(close, sorted(a), sorted(b))) for a, b in columns):
            return False
        if len(part) > _MOST_MATCHED or not _have_matching(part, other, close):
            return False
    return True


def _fit(ours: Sequence[_Numbers], theirs: Sequence[_Numbers], close: _Close) -> bool:
    """Return whether rows are close one after another, once both sides are sorted."""
    pairs = zip(sorted(ours), sorted(theirs), strict=True)
    return all(_row_is_close(one, other, close) for one, other in pairs)


def _fit_divided(
    ours: Sequence[_Numbers], theirs: Sequence[_Numbers], close: _Close, fine: _Close
) -> bool:
    return all(
        len(part) == len(other) and _fit(part, other, close)
        for part, other in _divided(ours, theirs, fine)
    )


def _divided(
    ours: Sequence[_Numbers], theirs: Sequence[_Numbers], close: _Close
) -> list[tuple[list[_Numbers], list[_Numbers]]]:
    """Divide rows where two neighbours among all values of a column are not close."""
    intervals = [  # of each column: a value to the number of its interval
        _intervals(sorted({*one, *other}), close)
        for one, other in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)
    ]
    parts: dict[tuple[int, ...], tuple[list[_Numbers], list[_Numbers]]] = {}
    for side, rows in enumerate((ours, theirs)):
        for row in rows:
            key = tuple(of[number] for of, number in zip(intervals, row, strict=True))
            parts.setdefault(key, ([], []))[side].append(row)
    return list(parts.values())


def _intervals(values: Sequence[Decimal], close: _Close) -> dict[Decimal, int]:
    numbers = dict.fromkeys(values[:1], 0)
    for one, other in pairwise(values):
        apart = not close(one, other) and not close(other, one)
        numbers[other] = numbers[one] + apart
    return numbers


def _have_matching(ours: Sequence[_Numbers], theirs: Sequence[_Numbers], close: _Close) -> bool:
    """Return whether there is a perfect matching, found by augmenting paths (Kuhn 1955)."""
    partners = [[j for j, b in enumerate(theirs) if _row_is_close(a, b, close)] for a in ours]
    if not all(partners):
        return False
    taken: dict[int, int] = {}
    return all(_find_partner(start, partners, taken) for start in range(len(ours)))


def _find_partner(start: int, partners: Sequence[Sequence[int]], taken: dict[int, int]) -> bool:
    """Pair one more, by an augmenting path that is found breadth first."""
    came_from: dict[int, int] = {}
    front = [start]
    while front:
        following = []
        for i in front:
            for j in partners[i]:
                if j in came_from:
                    continue
                came_from[j] = i
                if j not in taken:
                    _turn_over(j, start, came_from, taken)
                    return True
                following.append(taken[j])
        front = following
    return False


def _turn_over(j: int, start: int, came_from: Mapping[int, int], taken: dict[int, int]) -> None:
    """Give each on the path to a free one the partner that it was found by."""
    partner_of = {i: j for j, i in taken.items()}
    while True:
        i = came_from[j]
        before = partner_of.get(i)
        taken[j] = i
        if i == start or before is None:
            return
        j = before
