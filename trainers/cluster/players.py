"""The driver's side of a collection: which worker plays an episode, and what a loss means.

An episode whose worker is lost is played again, with the same seeds, by another one.
"""

import asyncio
import itertools
import uuid
from collections import Counter
from contextlib import nullcontext
from typing import Protocol, cast

from gymnast.errors import InfrastructureError, UserCodeError
from gymnast.trainers.cluster.link import Link
from gymnast.trainers.cluster.messages import Begin, Forget, Open, Over, RowOf, Thing
from gymnast.trainers.cluster.starting import Started, Starting
from gymnast.trainers.rollouts.episodes import Task
from gymnast.types import Trajectory
from gymnast.visible import visible_logger

# How many workers an episode may lose: one that takes all of a machine's memory loses each. In its
# last try no other such episode is played, so that it alone is to blame.
MOST_LOST = 4
logger = visible_logger(__name__)


class Crew(Protocol):
    """The workers of a cluster; `RayWorkers`."""

    def all(self) -> list[Starting]:
        """Those that there are, or that are being started."""
        ...

    def replace(self, lost: Starting, error: Exception) -> Starting:
        """Another one in place of a lost one.

        Raises:
            InfrastructureError: Too many in a row were lost before they could play.
        """
        ...


class RemotePlayers:
    """Plays the episodes of one collection on the workers of a cluster.

    Args:
        crew: The workers.
        task: What is played.
        things: What every worker needs once.
        opened: How the collection begins.
        asked: Whether workers ask the driver's agent.
    """

    def __init__(
        self, crew: Crew, task: Task, things: list[Thing], opened: Open, *, asked: bool
    ) -> None:
        self._crew, self._task, self._things, self._opened = crew, task, things, opened
        self._agent = task.agent if asked else None
        self._name = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._left: Counter[int] = Counter()  # episodes of a row that are not over
        self._links: list[Link] = []
        self._error: Exception | None = None
        self._joined, self._alone = asyncio.Event(), asyncio.Lock()
        self._joining: set[asyncio.Task[None]] = set()
        for worker in crew.all():
            self._join(worker)

    async def play(self, row_index: int, member: int) -> Trajectory | None:
        """See `Episodes.play`."""
        task = self._task
        if row_index not in self._left:
            self._left[row_index] = task.settings.group_size
        try:
            if row_index in task.counts.rows_skipped:
                return None
            return await self._played(row_index, member)
        finally:
            self._forget(row_index)

    async def close_lost(self) -> None:
        """Nothing is to be done: workers do it when they forget a row."""

    async def close(self) -> None:
        """End the collection in all workers."""
        for task in self._joining:
            task.cancel()
        links, self._links = self._links, []
        await asyncio.gather(*(link.close() for link in links))

    async def _played(self, row_index: int, member: int) -> Trajectory | None:
        """What an episode came to; None, too, if too many workers were lost with it."""
        for lost in range(MOST_LOST):
            self._task.counts.retried += lost > 0
            async with self._alone if lost == MOST_LOST - 1 else nullcontext():
                link = await self._idlest()
                self._send_row(link, row_index)
                over = await link.play(Begin(next(self._numbers), row_index, member))
            if over is not None:
                return self._counted(over, link.place)
        logger.warning(
            "row %d, member %d is left out: %d workers were lost while they played it",
            *(row_index, member, MOST_LOST),
        )
        self._task.counts.left_out_for["infrastructure"] += 1
        return None

    async def _idlest(self) -> Link:
        """The worker with the fewest episodes; waits until there is one."""
        while self._error is None:
            here = [link for link in self._links if not link.lost]
            if here:
                return min(here, key=lambda link: link.load)
            self._joined.clear()
            await self._joined.wait()
        raise self._error

    def _join(self, worker: Starting) -> None:
        """Have a worker play once it has started."""
        if worker.started is not None:
            self._link(worker, worker.started)
            return
        task = asyncio.create_task(self._await_start(worker))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _await_start(self, worker: Starting) -> None:
        try:
            started = await worker.start()
        except InfrastructureError as error:
            self._replace(worker, error)
        except Exception as error:
            self._error = error
            self._joined.set()
        else:
            self._link(worker, started)

    def _link(self, worker: Starting, started: Started) -> None:
        link = Link(started, self._name, self._agent, lambda error: self._replace(worker, error))
        for thing in self._things:
            if thing.key not in started.known:
                link.post(thing)
        link.post(self._opened)
        self._links.append(link)
        self._joined.set()

    def _replace(self, lost: Starting, error: Exception) -> None:
        self._links = [link for link in self._links if not link.lost]
        try:
            self._join(self._crew.replace(lost, error))
        except InfrastructureError as hopeless:
            self._error = hopeless
            self._joined.set()

    def _send_row(self, link: Link, row_index: int) -> None:
        if row_index not in link.rows:
            link.rows.add(row_index)
            row, seed_index = self._task.rows[row_index], self._task.seed_indices[row_index]
            link.post(RowOf(row_index, row, seed_index))

    def _forget(self, row_index: int) -> None:
        """Have workers forget a row whose last episode is over."""
        self._left[row_index] -= 1
        if self._left[row_index] == 0:
            for link in self._links:
                if row_index in link.rows:
                    link.rows.remove(row_index)
                    link.post(Forget(row_index))

    def _counted(self, over: Over, place: str) -> Trajectory | None:
        """The trajectory of an episode that is over, once all is counted that it came to."""
        if over.error is not None:
            raise over.error.raised(place)
        counts, own = self._task.counts, over.counts
        counts.retried += own.retried
        counts.left_out_for += own.left_out_for
        counts.rows_skipped |= own.rows_skipped
        counts.user_errors += [cast(UserCodeError, e.raised(place)) for e in over.user_errors]
        if len(counts.user_errors) > self._task.settings.max_failed_episodes:
            raise counts.user_errors[0]
        return over.trajectory
