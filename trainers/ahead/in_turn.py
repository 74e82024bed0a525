"""Playing and training in turn: a step plays its rows, all of them, and then learns from them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from gymnast.trainers.data.cursor import StepRows
from gymnast.trainers.rollouts.many_episodes import Rollouts
from gymnast.trainers.rollouts.schedule import Group
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.trainers.rollouts.shared import SharedRollouts
from gymnast.types import Trajectory

# From the number of a step, the first being 1, and how many rows it has.
OfStep = Callable[[int, int], RolloutSettings]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Played:
    """The episodes of a step, of all processes.

    Attributes:
        rollouts: All that were settled.
        learned_from: Of these, the groups to learn from.
        trained: The same groups as the loss sees them.
        seconds: In which they were played.
    """

    rollouts: Rollouts
    learned_from: Sequence[Group]
    trained: Sequence[Sequence[Trajectory]]
    seconds: float


class Playing(Protocol):
    """Plays the episodes of steps. Every method is a collective call."""

    @property
    def most_rows(self) -> int:
        """How many rows a step plays at most."""
        ...

    @property
    def parts(self) -> Mapping[str, Any]:
        """What belongs to a checkpoint, by name."""
        ...

    def open(self) -> Any:
        """A context manager within which steps are played."""
        ...

    def step(self, step: int, version: int, on_progress: Progress) -> Played:
        """The episodes that the next step learns from.

        Args:
            step: How many steps came before it.
            version: Of the weights.
            on_progress: Is told how many of how many episodes are complete, in this process.
        """
        ...

    def learned(self, played: Played) -> dict[str, float]:
        """Go on after they were learned from; returns metrics."""
        ...

    def renewed(self, step: int, version: int) -> None:
        """Go on with new weights, which the agents have."""
        ...


@dataclass
class InTurn:
    """Plays a step's rows when the step begins.

    Attributes:
        shared: Plays rows in all processes.
        rows: Of the steps.
        rows_per_step: How many groups a step learns from.
        of_step: How they are played.
    """

    shared: SharedRollouts
    rows: StepRows
    rows_per_step: int
    of_step: OfStep

    @property
    def most_rows(self) -> int:
        """See `Playing`."""
        return self.rows.most

    @property
    def parts(self) -> Mapping[str, Any]:
        """See `Playing`."""
        return self.rows.parts

    @contextmanager
    def open(self) -> Iterator[None]:
        """Nothing goes on between steps."""
        yield

    def step(self, step: int, version: int, on_progress: Progress) -> Played:
        """See `Playing`."""
        started, number = time.perf_counter(), step + 1
        rows = self.rows.offer(step)
        settings = self.of_step(number, len(rows))
        rollouts = self.shared.collect(rows, settings, f"step {number}", on_progress=on_progress)
        learned_from = rollouts.to_learn_from[: self.rows_per_step]
        return Played(rollouts, learned_from, learned_from, time.perf_counter() - started)

    def learned(self, played: Played) -> dict[str, float]:
        """See `Playing`."""
        return self.rows.played({group.row_index: group.rewards for group in played.rollouts})

    def renewed(self, step: int, version: int) -> None:
        """Nothing is under way."""
