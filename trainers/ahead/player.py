"""Plays the rows of one process beside training; everything here runs on the background's loop.

    begin    so many groups may be under way
    take     wait for complete groups, and hand the oldest over
    renew    there are new weights: what has outgrown the bound is given up

Which episode runs when is decided in `trainers/rollouts/schedule.py`. A group is settled when it is
taken; a complete one that waits may outgrow the bound.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from gymnast.errors import UsageError
from gymnast.trainers.ahead.bound import oldest, token_versions
from gymnast.trainers.ahead.settings import StalenessSettings
from gymnast.trainers.ahead.watching import UnderWay, WatchedAgent
from gymnast.trainers.rollouts.episodes import Players
from gymnast.trainers.rollouts.metrics import Counts, LeftOut
from gymnast.trainers.rollouts.schedule import Group, Schedule
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.types import Trajectory


@dataclass
class Taken:
    """What a process hands over for a step; `row_index` of its groups is their position.

    Attributes:
        groups: To learn from.
        others: Settled as well, with nothing to learn from: without spread, or outgrown.
        counts: What happened since the step before.
        under_way: How many groups have begun, or wait to, and are not taken.
        complete: How many of these are complete.
    """

    groups: list[Group] = field(default_factory=list)
    others: list[Group] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    under_way: int = 0
    complete: int = 0


class Player:
    """Plays rows, and hands complete groups over.

    Args:
        players: Play episodes, by the positions of rows.
        counts: Where they count.
        agent: What they sample with.
        positions: Of the rows to play, in their order, without end.
        settings: How they are played.
        staleness: What may be learned from.
    """

    def __init__(
        self,
        players: Players,
        counts: Counts,
        agent: WatchedAgent,
        positions: Iterator[int],
        settings: RolloutSettings,
        staleness: StalenessSettings,
    ) -> None:
        self._players, self._agent, self._counts = players, agent, counts
        self._positions, self._next = list[int](), positions
        self._staleness, self._deadline_s = staleness, settings.deadline_s
        self._ends: dict[int, float] = {}  # of deadlines, by position
        self._outgrown = Counter[int]()  # episodes, by position
        self._under_way = UnderWay(self._given_up)
        self._complete: list[Group] = []
        self._others: list[Group] = []
        self._received = 0
        waiting = replace(settings, deadline_s=None, max_waiting_groups=sys.maxsize)
        self._schedule = Schedule(self._play, 0, waiting, self._counts)

    async def begin(self, groups: int, spare: int) -> None:
        """Let rows begin until so many groups are under way.

        Args:
            groups: How many.
            spare: How many more rows may replace groups without spread until the next call.
        """
        more = groups - self._to_come - len(self._complete)
        self._schedule.allow(max(0, more), spare)

    async def renew(self, version: int) -> None:
        """Sample from new weights; give up what the next update may not learn from."""
        self._agent.version = version
        if self._staleness.on_stale == "drop":
            self._under_way.drop_outgrown(version - self._staleness.max_staleness)

    async def take(
        self, groups: int, version: int, on_progress: Callable[[int], object] = int
    ) -> Taken:
        """Wait for so many complete groups, and settle the oldest of them.

        There may be fewer, where no more are under way.

        Args:
            groups: How many.
            version: Of the weights before the update.
            on_progress: Is told how many there are.

        Raises:
            UsageError: The agent does not sample from the new weights.
            Exception: What an episode raised.
        """
        least, dropped = version - self._staleness.max_staleness, -self._to_come
        self._complete = [group for group in self._complete if self._keeps(group, least)]
        on_progress(len(self._complete))
        while self._schedule.has_waiting or len(self._complete) < groups:
            group = await self._schedule.next_group()
            if group is None:
                break
            self._received += 1
            group.row_index = self._position(group.row_index)
            self._ends.pop(group.row_index, None)
            if not group.has_spread:
                self._others.append(group)
            elif self._keeps(group, least):
                self._complete.append(group)
            elif (dropped := dropped + 1) > 0:  # more than there were before the new weights
                raise UsageError(
                    f"max_staleness: rows that begin after version {version} of the weights was "
                    "handed over are sampled by versions beyond the bound: the agent did not take "
                    "the new weights, though its update_weights returned"
                )
            on_progress(len(self._complete))
        await self._players.close_lost()
        self._complete.sort(key=lambda group: (oldest(group) or 0, group.row_index))
        taken = Taken(self._complete[:groups], self._others, self._counts.handed_over())
        self._complete, self._others = self._complete[groups:], []
        taken.complete = len(self._complete)
        taken.under_way = self._to_come + taken.complete
        return taken

    async def close(self) -> None:
        """Cancel what is under way, wait until it has cleaned up, and close the environments."""
        await self._schedule.stop()
        await self._players.close()

    @property
    def _to_come(self) -> int:
        """How many groups are to come of the rows that may be played."""
        return self._schedule.rows_to_play - self._received

    def _position(self, number: int) -> int:
        """Of a row that the schedule plays."""
        while len(self._positions) <= number:
            self._positions.append(next(self._next))
        return self._positions[number]

    async def _play(self, number: int, member: int) -> Trajectory | None:
        position, end = self._position(number), None
        if self._deadline_s is not None:
            now = asyncio.get_running_loop().time()
            end = self._ends.setdefault(position, now + self._deadline_s)
        return await self._under_way.play(self._players.play(position, member), position, end)

    def _given_up(self, why: LeftOut, position: int) -> None:
        self._counts.left_out_for[why] += 1
        self._outgrown[position] += why == "stale"

    def _keeps(self, group: Group, least: int) -> bool:
        """Whether there is anything to learn from a group; if it has outgrown the bound, another.

        What is dropped is left out of it.
        """
        versions = [token_versions(trajectory) for trajectory in group]
        fresh = [not len(v) or v.min() >= least for v in versions]
        if self._staleness.on_stale == "continue":  # an older one tells how good the others are
            fresh = [any(not len(v) or v.max() >= least for v in versions)] * len(group)
        for _ in range(fresh.count(False)):
            self._given_up("stale", group.row_index)
        group[:] = [each for each, stays in zip(group, fresh, strict=True) if stays]
        outgrown = self._outgrown.pop(group.row_index, 0)
        if group or not outgrown:
            return True
        self._others.append(group)
        self._schedule.allow(1)
        return False
