"""The report of a scenario: lines of a table, targets with their figures, points of a plot."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rollout_measure import Cost

HEAD = f"{'':30} | {'wall s':>8} {'CPU s':>8} {'tokens':>9}"


@dataclass(frozen=True)
class Target:
    """A figure and its bound.

    Attributes:
        what: The name of the figure.
        measured: Its value.
        rule: Whether the bound is the least or the most.
        bound: The bound.
    """

    what: str
    measured: float
    rule: Literal[">=", "<="]
    bound: float

    @property
    def met(self) -> bool:
        """Whether the bound holds."""
        holds = self.measured >= self.bound if self.rule == ">=" else self.measured <= self.bound
        return holds

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{self.what}: {self.measured:.3g} (target {self.rule} {self.bound:g}): {verdict}"


@dataclass(frozen=True)
class Point:
    """One side's cost at a number of tool turns."""

    side: str
    turns: int
    cost: Cost


@dataclass
class Report:
    """The report of one scenario.

    Attributes:
        title: What was done.
        lines: The table.
        targets: The figures that should be reached.
        points: For the plot of cost against turns.
    """

    title: str
    lines: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    def add(self, name: str, cost: Cost) -> None:
        """Add a line to the table."""
        self.lines.append(f"{name:30} | {cost.wall_s:8.2f} {cost.cpu_s:8.2f} {cost.tokens:9,}")

    def __str__(self) -> str:
        return "\n".join([self.title, *self.lines, *(f"  {target}" for target in self.targets)])


def difference(ours: Sequence[object], theirs: Sequence[object]) -> str:
    """The first difference between two sides' conversations; "" if they are the same."""
    ours, theirs = sorted(ours, key=repr), sorted(theirs, key=repr)
    if len(ours) != len(theirs):
        return f"{len(ours)} conversations on one side, {len(theirs)} on the other"
    differing = sum(a != b for a, b in zip(ours, theirs, strict=True))
    return f"{differing} of {len(ours)} conversations differ" if differing else ""
