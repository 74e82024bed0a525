"""Two evaluations of the same rows, compared row by row.

A row is hard or easy for both, so their difference on it varies less than either: the interval of
the mean difference is narrower than those of the two means (Miller 2024,
https://arxiv.org/abs/2411.00640, "paired differences"). With other seeds the same holds of a row:
what its episodes differ by chance is in the interval. Everything here is a pure function.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gymnast.numbers import exact_mean
from gymnast.trainers.evaluation.estimates import Estimate, clustered_mean

Key = tuple[str, int | None]


@dataclass(frozen=True)
class ScoredRow:
    """What an evaluation says of one row.

    Attributes:
        key: The row as text, and the environment's seed: what pairs it with that of another.
        number: Its place among the rows of its evaluation.
        row: The row.
        rewards: Of its episodes, at least one.
    """

    key: Key
    number: int
    row: Mapping[str, Any]
    rewards: Sequence[float]

    def passes(self, pass_reward: float) -> float:
        """The share of its episodes that pass."""
        return fmean(reward >= pass_reward for reward in self.rewards)


@dataclass(frozen=True)
class RowChange:
    """How one row fared in two evaluations.

    Attributes:
        number: Its place among the rows of the first one.
        row: The row.
        first: Its mean reward in the first.
        second: Its mean reward in the second.
    """

    number: int
    row: Mapping[str, Any]
    first: float
    second: float

    @property
    def difference(self) -> float:
        """Of the second from the first."""
        return self.second - self.first


@dataclass(frozen=True)
class Comparison:
    """What two evaluations say on the rows that both have.

    Attributes:
        changes: Of each row, the largest first.
        only_first: How many rows only the first one has.
        only_second: How many rows only the second one has.
        rewards: The mean reward of each, over rows.
        reward_difference: The mean difference; without an interval where no row differs.
        passes: pass@1 of each, over rows.
        pass_difference: Their mean difference, likewise.
        same_seeds: Whether rows were played with the same seeds in both; otherwise they pair by
            row alone.
    """

    changes: Sequence[RowChange]
    only_first: int
    only_second: int
    rewards: tuple[Estimate, Estimate]
    reward_difference: Estimate
    passes: tuple[Estimate, Estimate]
    pass_difference: Estimate
    same_seeds: bool = True

    @property
    def rows(self) -> int:
        """How many rows pair."""
        return len(self.changes)

    @property
    def won(self) -> int:
        """In how many rows the second one has the higher mean reward."""
        return sum(change.difference > 0 for change in self.changes)

    @property
    def tied(self) -> int:
        """In how many rows both have the same mean reward."""
        return sum(change.difference == 0 for change in self.changes)

    @property
    def lost(self) -> int:
        """In how many rows the first one has the higher mean reward."""
        return sum(change.difference < 0 for change in self.changes)


def compare(
    first: Sequence[ScoredRow], second: Sequence[ScoredRow], pass_reward: float
) -> Comparison:
    """Compare two evaluations on the rows that pair; each row counts once, whatever its episodes.

    Rows pair by row and seed; where none does, by row. Then rows that are alike within an
    evaluation are left out: only their seeds tell them apart.

    Args:
        first: The rows of the one, no two with the same key.
        second: The rows of the other, likewise.
        pass_reward: What an episode's reward must reach to pass.

    Raises:
        ValueError: No row pairs.
    """
    pairs = _pairs(*({row.key: row for row in rows} for rows in (first, second)))
    same_seeds = bool(pairs)
    if not same_seeds:
        pairs = _pairs(_by_text(first), _by_text(second))
    if not pairs:
        raise ValueError("no row pairs")
    means = [(exact_mean(one.rewards), exact_mean(other.rewards)) for one, other in pairs]
    passed = [(one.passes(pass_reward), other.passes(pass_reward)) for one, other in pairs]
    changes = [
        RowChange(one.number, one.row, *mean) for (one, _), mean in zip(pairs, means, strict=True)
    ]
    return Comparison(
        sorted(changes, key=lambda change: (-abs(change.difference), change.number)),
        len(first) - len(pairs),
        len(second) - len(pairs),
        (_mean([one for one, _ in means]), _mean([other for _, other in means])),
        _difference(means),
        (_mean([one for one, _ in passed]), _mean([other for _, other in passed])),
        _difference(passed),
        same_seeds,
    )


def _pairs(
    first: Mapping[Any, ScoredRow], second: Mapping[Any, ScoredRow]
) -> list[tuple[ScoredRow, ScoredRow]]:
    return [(row, second[key]) for key, row in first.items() if key in second]


def _by_text(rows: Sequence[ScoredRow]) -> dict[str, ScoredRow]:
    """Those rows that no other one is like."""
    counts = Counter(row.key[0] for row in rows)
    return {row.key[0]: row for row in rows if counts[row.key[0]] == 1}


def _mean(numbers: Sequence[float]) -> Estimate:
    return clustered_mean([[number] for number in numbers])


def _difference(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """The mean difference; that no row differs says nothing of how far another row may."""
    differences = [second - first for first, second in pairs]
    return _mean(differences) if any(differences) else Estimate(0.0)
