"""The rows that steps play, and where the next step goes on.

A step that plays all rows it is offered has those that its number says (`StepRows`), which needs no
state. With dynamic sampling, steps play different numbers of rows (`CursorRows`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gymnast.trainers.data.rows import Row, RowSource


class StepRows:
    """The rows that a step's number says.

        rows = step_rows.offer(step)          in the order in which they are played
        metrics = step_rows.played(rewards)   once the step is over

    Nothing changes between the two, so a step that was interrupted is offered the same rows again.

    Args:
        source: Of the training rows.
        most: How many rows a step is offered.
    """

    def __init__(self, source: RowSource, most: int) -> None:
        self.source, self.most = source, most

    def offer(self, step: int) -> list[Row]:
        """The rows that a step may play.

        Args:
            step: How many steps came before it.
        """
        return self.source.batch(step, self.most)

    def played(self, rewards: Mapping[int, Sequence[float]]) -> dict[str, float]:
        """Go on after a step; returns metrics.

        Args:
            rewards: Of the episodes of each row that was played, by its place in the last offer.
        """
        return {}

    @property
    def parts(self) -> dict[str, Any]:
        """What belongs to a checkpoint, by name: itself, if it has a state."""
        return {}


class CursorRows(StepRows):
    """The rows of a source in their order, each once; those not played come first in the next step.

    Args:
        source: Of the training rows.
        most: How many rows a step is offered.
        rows_per_step: What a step has taken so far, where no state is loaded: the rows of a run
            that gets dynamic sampling when it is resumed go on where they were.
    """

    def __init__(self, source: RowSource, most: int, rows_per_step: int) -> None:
        super().__init__(source, most)
        self._rows_per_step = rows_per_step
        self._next: int | None = None  # the position after the last one that was ever offered
        self._left: list[int] = []  # positions before it that were passed over
        self._positions: list[int] = []  # of the last offer

    def offer(self, step: int) -> list[Row]:
        """See `StepRows`."""
        start = step * self._rows_per_step if self._next is None else self._next
        fresh = range(start, start + max(0, self.most - len(self._left)))
        self._positions = [*self._left[: self.most], *fresh]
        self._next = start
        return [self.source.row(position) for position in self._positions]

    def played(self, rewards: Mapping[int, Sequence[float]]) -> dict[str, float]:
        """See `StepRows`."""
        assert self._next is not None
        kept = [p for place, p in enumerate(self._positions) if place not in rewards]
        left = kept + self._left[self.most :]
        self._next = max(self._next, *(position + 1 for position in self._positions))
        while left and left[-1] == self._next - 1:
            self._next = left.pop()
        self._left = left
        return {}

    @property
    def parts(self) -> dict[str, Any]:
        """See `StepRows`."""
        return {"rows": self}

    def state_dict(self) -> dict[str, Any]:
        """Where the rows go on."""
        return {"next": self._next, "left": list(self._left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self._next, self._left = state["next"], list(state["left"])
