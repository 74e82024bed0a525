"""How far an evaluation is: its episodes are counted as they end, or as a journal has them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gymnast.trainers.base.observer import Groups
from gymnast.trainers.rollouts.journal import Journal
from gymnast.types import Trajectory


@dataclass(frozen=True)
class SoFar:
    """What an evaluation has played so far, in this process.

    Attributes:
        over: Episodes that are over, with those that were left out.
        total: Of how many.
        before: How many of them were played before the evaluation went on.
        reward: The mean reward of those that finished; None before the first one has.
        cost: What they have cost, where an endpoint has a price.
    """

    over: int
    total: int
    before: int = 0
    reward: float | None = None
    cost: float = 0.0


class EvaluationObserver(Protocol):
    """Is told how an evaluation on its own goes."""

    def on_resumed(self, before: int, total: int) -> None:
        """It goes on: so many of all its episodes were played before."""
        ...

    def on_episode(self, so_far: SoFar) -> None:
        """An episode is over, or was played before."""
        ...

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """The evaluation is over; see `gymnast.trainers.base.observer.Observer`."""
        ...


class Progress:
    """Counts the episodes of all environments of an evaluation.

    Args:
        total: How many this process plays.
        observer: Is told of each; None: nobody is.
    """

    def __init__(self, total: int, observer: EvaluationObserver | None) -> None:
        self._total, self._observer = total, observer
        self._over = self._before = self._finished = 0
        self._reward = self._cost = 0.0

    def count(self, trajectory: Trajectory | None, *, before: bool) -> None:
        """Count an episode that is over; None: it was left out."""
        self._over += 1
        self._before += before
        if trajectory is not None:
            self._finished += 1
            self._reward += trajectory.reward
            self._cost += trajectory.metrics.get("chat/cost", 0.0)
        if self._observer is not None:
            mean = self._reward / self._finished if self._finished else None
            so_far = SoFar(self._over, self._total, self._before, mean, self._cost)
            self._observer.on_episode(so_far)


@dataclass(frozen=True)
class Watched:
    """A journal whose episodes are counted, or none in its place.

    Attributes:
        progress: Counts them.
        journal: Has those that were played before, and gets the others.
    """

    progress: Progress
    journal: Journal | None = None

    def find(self, row_index: int, member: int) -> Trajectory | None:
        """See `Journal`."""
        if self.journal is None:
            return None
        found = self.journal.find(row_index, member)
        if found is not None:
            self.progress.count(found, before=True)
        return found

    def add(self, row_index: int, member: int, trajectory: Trajectory | None) -> None:
        """See `Journal`."""
        if self.journal is not None:
            self.journal.add(row_index, member, trajectory)
        self.progress.count(trajectory, before=False)
