"""Which rows are played ahead of training, and which of them are settled.

The rows of a source are played in the order of their positions. A position is settled when its
group was learned from, or given up for good. In a checkpoint are those that are settled alone: a
resumed run plays the others again, the earliest first, so that no row is lost and none is learned
from twice.
"""

import copy
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gymnast.trainers.data.rows import Row, RowSource

POSITIONS = range(sys.maxsize)


class Settled:
    """The positions that are settled, alike in all processes; a part of a run's state.

    Attributes:
        first: The first position that is not settled; None before the first step.
        beyond: The settled positions after it.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.beyond: set[int] = set()

    def begin(self, position: int) -> None:
        """Settle all before a position, unless the run has begun already."""
        if self.first is None:
            self.first = position

    def settle(self, positions: Iterable[int]) -> None:
        """Settle some positions, of all processes."""
        assert self.first is not None
        self.beyond |= {*positions}
        while self.first in self.beyond:
            self.beyond.remove(self.first)
            self.first += 1

    def left(self, rows_per_step: int, process: int, processes: int) -> Iterator[int]:
        """The positions that are not settled now and that a process plays, without end.

        Args:
            rows_per_step: Of all processes; each takes every n-th row of a step.
            process: Its index.
            processes: How many there are.
        """
        assert self.first is not None
        position, beyond = self.first, {*self.beyond}
        while True:
            if position % rows_per_step % processes == process and position not in beyond:
                yield position
            position += 1

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"first": self.first, "beyond": sorted(self.beyond)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from one."""
        self.first, self.beyond = state["first"], {*state["beyond"]}


class RowsAt(Sequence[Row]):
    """The rows of a source by their positions, which have no end.

    Args:
        source: Is copied, since another thread reads it too.
    """

    def __init__(self, source: RowSource) -> None:
        self._source = copy.copy(source)

    def __getitem__(self, position: Any) -> Any:
        return self._source.row(position)

    def __len__(self) -> int:
        return len(POSITIONS)
