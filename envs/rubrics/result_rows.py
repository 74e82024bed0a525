"""A rubric that compares rows, such as the results of two SQL queries."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from gymnast.envs.rubrics.comparing import as_decimal, check_tolerances, same_number
from gymnast.envs.rubrics.reading import answer_of, check_column, check_pattern, of_row
from gymnast.envs.rubrics.rubric import Played, Rubric
from gymnast.envs.rubrics.structure import json_in, parsed_json
from gymnast.errors import DataError

Row = Sequence[Any] | Mapping[str, Any]


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
    """Whether two results have the same rows, each as often.

    A row is a sequence, whose values are compared in order, or a mapping, whose values are compared
    by name; the two kinds are never the same. Numbers are the same within the tolerance, whatever
    their types; other values if they are equal and of one type. None is the same as None.

    Args:
        given: What was found.
        wanted: What is right; relative tolerances are shares of its numbers.
        ordered: Whether the order of the rows counts.
        tolerance: By how much two numbers may differ.
        relative_tolerance: By which share of the right number.
    """
    if len(given) != len(wanted):
        return False

    def close(one: _Cells, other: _Cells) -> bool:
        return all(
            same_number(a, b, tolerance, relative_tolerance)
            for a, b in zip(one.numbers, other.numbers, strict=True)
        )

    left, right = [_Cells.of(row) for row in given], [_Cells.of(row) for row in wanted]
    if ordered:
        pairs = zip(left, right, strict=True)
        return all(one.rest == other.rest and close(one, other) for one, other in pairs)
    groups: dict[str, tuple[list[_Cells], list[_Cells]]] = defaultdict(lambda: ([], []))
    for cells in left:
        groups[cells.rest][0].append(cells)
    for cells in right:
        groups[cells.rest][1].append(cells)
    return all(
        len(ours) == len(theirs) and _can_be_paired(sorted(ours), sorted(theirs), close)
        for ours, theirs in groups.values()
    )


@dataclass(frozen=True, order=True)
class _Cells:
    """A row, divided into its numbers and a text of everything else."""

    numbers: tuple[Decimal, ...]
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


def _can_be_paired(ours: Sequence[Any], theirs: Sequence[Any], close: Any) -> bool:
    """Whether every one of ours has another one of theirs that it is close to.

    Where a first guess, one after another, does not hold, a matching is sought by augmenting paths
    (Kuhn 1955), since what is close to two rows must be left to the one that needs it.
    """
    if all(map(close, ours, theirs)):
        return True
    partners = [[j for j, b in enumerate(theirs) if close(a, b)] for a in ours]
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
