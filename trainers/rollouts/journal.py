"""A journal of episodes: those that were played before are not played again.

What a journal is kept in is not known here: `trainers/saving/episode_journal.py` has one on a disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gymnast.trainers.rollouts.episodes import Players
from gymnast.types import Trajectory


class Journal(Protocol):
    """Knows the episodes of a collection that are over."""

    def find(self, row_index: int, member: int) -> Trajectory | None:
        """The trajectory of an episode that was played before; None if it is to be played.

        Args:
            row_index: Among the rows of all processes.
            member: Of the row's group.
        """
        ...

    def add(self, row_index: int, member: int, trajectory: Trajectory | None) -> None:
        """Keep an episode that has just ended; None: it was left out."""
        ...


@dataclass(frozen=True)
class JournaledPlayers:
    """Players who play only what is not in a journal, and write down what they play.

    Attributes:
        players: Who play.
        journal: What they write in.
        seed_indices: For each of their rows, its index among the rows of all processes.
    """

    players: Players
    journal: Journal
    seed_indices: Sequence[int] | Mapping[int, int]

    async def play(self, row_index: int, member: int) -> Trajectory | None:
        """See `Players`."""
        place = (self.seed_indices[row_index], member)
        if (before := self.journal.find(*place)) is not None:
            return before
        trajectory = await self.players.play(row_index, member)
        self.journal.add(*place, trajectory)
        return trajectory

    async def close_lost(self) -> None:
        """See `Players`."""
        await self.players.close_lost()

    async def close(self) -> None:
        """See `Players`."""
        await self.players.close()
