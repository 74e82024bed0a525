"""Why training rows gave no demonstration: counted, and said where a step or a run has none."""

from collections import Counter
from enum import StrEnum
from typing import NamedTuple


class Why(StrEnum):
    """Why a row gave none, in words that follow a number of rows."""

    unsolved = "without a solution (`solve` returned None)"
    too_long = "longer than environment.context_length"
    broken = "whose solution broke twice"
    poor = "with a reward below warmup.min_reward"


_WAYS_OUT = {
    Why.unsolved: "train on rows that `solve` solves",
    Why.too_long: "raise environment.context_length",
    Why.broken: "mend what broke, which the warnings name",
    Why.poor: "lower warmup.min_reward, or have `solve` earn more",
}


class NoneOfRow(NamedTuple):
    """That a row gave no demonstration.

    Attributes:
        why: Why.
        value: What goes with it, such as the limit; "" where nothing does.
    """

    why: Why
    value: str = ""


class LeftOut:
    """Rows that gave no demonstration, by why they did not.

    Attributes:
        counts: How many.
        told: Whether the user was told that a step has none.
    """

    def __init__(self) -> None:
        self.counts = Counter[Why]()
        self.told = False
        self._values: dict[Why, str] = {}

    def add(self, row: NoneOfRow) -> None:
        """Count a row; of the values of several, the last one is told."""
        self.counts[row.why] += 1
        if row.value:
            self._values[row.why] = row.value

    def update(self, others: "LeftOut") -> None:
        """Count the rows of others too."""
        self.counts.update(others.counts)
        self._values |= others._values

    def describe(self) -> str:
        """How many rows there are of each kind: "3 without a solution (`solve` returned None)"."""
        return ", ".join(
            f"{count} {why}{' ' * bool(value)}{value}"
            for why, count in self.counts.items()
            for value in (self._values.get(why, ""),)
        )

    def ways_out(self) -> str:
        """What can be done about it."""
        return "; ".join(_WAYS_OUT[why] for why in self.counts)
