"""Which episode runs when: row by row, a fixed number at once, never far ahead of the consumer.

An episode begins when another one ends. A new row is held back while enough finished groups wait
to be taken. A deadline cancels what is under way. Everything is driven by tasks that end: there is
no polling, and no work that grows with the number of rows or of running tasks.

With dynamic sampling (`settings.py`), only as many rows begin as groups with spread are wanted, and
one more as soon as a group is found without spread, while rows are left.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymnast.trainers.rollouts.metrics import Counts
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.types import Trajectory
from gymnast.visible import visible_logger

# Seconds that a cancelled episode has to clean up before it is left behind.
CLEANUP_S = 10.0
logger = visible_logger(__name__)

Play = Callable[[int, int], Coroutine[Any, Any, Trajectory | None]]
_Task = asyncio.Task[Trajectory | None]


class Group(list[Trajectory]):
    """The trajectories of one row; fewer than `group_size` where episodes were left out.

    Attributes:
        row_index: Which of the rows they belong to.
        has_spread: False where dynamic sampling found nothing to learn from them.
    """

    def __init__(
        self, row_index: int, trajectories: Sequence[Trajectory] = (), *, has_spread: bool = True
    ) -> None:
        super().__init__(trajectories)
        self.row_index, self.has_spread = row_index, has_spread

    @property
    def rewards(self) -> list[float]:
        """Of the episodes."""
        return [trajectory.reward for trajectory in self]

    def __repr__(self) -> str:
        rewards = ", ".join(f"{trajectory.reward:g}" for trajectory in self[:8])
        more = ", ..." if len(self) > 8 else ""
        return f"<Group row_index={self.row_index} episodes={len(self)} rewards=[{rewards}{more}]>"


@dataclass
class _OpenGroup:
    """A group some of whose episodes are not over."""

    missing: int
    members: dict[int, Trajectory] = field(default_factory=dict)


class Schedule:
    """Runs episodes and puts their groups together.

        schedule = Schedule(play, rows, settings, counts)
        schedule.start()
        while (group := await schedule.next_group()) is not None:
            ...
        await schedule.stop()

    Args:
        play: Plays an episode, given its row index and member.
        rows: How many rows there are.
        settings: How many episodes there are and may be under way, and the deadline.
        counts: Where to count finished episodes, and those that the deadline left out.
        on_live: Is told how many episodes are live whenever that changes: those under way and
            those about to begin, min(concurrency, episodes that are not over).
    """

    def __init__(
        self,
        play: Play,
        rows: int,
        settings: RolloutSettings,
        counts: Counts,
        on_live: Callable[[int], None] | None = None,
    ) -> None:
        self._play, self._settings, self._counts = play, settings, counts
        self._on_live = on_live
        self._rows, self._rows_to_play = rows, settings.rows_at_first(rows)
        self._begun = self._over = 0  # of these
        self._running: dict[_Task, tuple[int, int]] = {}
        self._open: dict[int, _OpenGroup] = {}
        self._waiting: deque[Group] = deque()
        self._error: BaseException | None = None
        self._stopped = self._too_late = False
        self._changed = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []

    def start(self) -> None:
        """Begin the first episodes; the deadline counts from here."""
        if self._settings.deadline_s is not None:
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(self._settings.deadline_s, self._expire))
        self._fill()

    def allow(self, rows: int, spare: int | None = None) -> None:
        """Let more rows begin.

        Args:
            rows: How many.
            spare: How many beyond may replace groups without spread; None: as many as before.
        """
        self._rows_to_play += rows
        self._rows = self._rows + rows if spare is None else self._rows_to_play + spare
        self._fill()

    @property
    def rows_to_play(self) -> int:
        """How many rows have begun or may begin, replacements included."""
        return self._rows_to_play

    @property
    def has_waiting(self) -> bool:
        """Whether there is a finished group that `next_group` has not returned yet."""
        return bool(self._waiting)

    async def next_group(self) -> Group | None:
        """The next finished group, or None after the last one.

        Raises:
            Exception: What an episode raised; the others are cancelled.
        """
        while self._error is None and not self._waiting and not self._finished:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        if not self._waiting:
            return None
        group = self._waiting.popleft()
        self._fill()
        return group

    async def stop(self) -> None:
        """Cancel what is under way, and wait until it has cleaned up."""
        self._halt()
        while self._running:
            self._changed.clear()
            await self._changed.wait()
        for timer in self._timers:
            timer.cancel()

    @property
    def _episodes(self) -> int:
        """How many there are, as far as it is known yet."""
        return self._rows_to_play * self._settings.group_size

    @property
    def _finished(self) -> bool:
        return not self._running and (self._stopped or self._begun == self._episodes)

    def _fill(self) -> None:
        """Begin as many episodes as may run."""
        settings = self._settings
        while (
            not self._stopped
            and self._begun < self._episodes
            and len(self._running) < settings.concurrency
        ):
            row_index, member = divmod(self._begun, settings.group_size)
            if member == 0:
                if len(self._waiting) >= settings.max_waiting_groups:
                    break
                self._open[row_index] = _OpenGroup(settings.group_size)
            task = asyncio.create_task(self._play(row_index, member))
            task.add_done_callback(self._ended)
            self._running[task] = (row_index, member)
            self._begun += 1
        if self._on_live is not None:
            self._on_live(min(settings.concurrency, self._episodes - self._over))

    def _ended(self, task: _Task) -> None:
        """Count an episode, hand its group over if that is complete, and begin another."""
        episode = self._running.pop(task, None)
        if episode is None:  # given up before
            return
        trajectory = self._result(task)
        row_index, member = episode
        group = self._open[row_index]
        group.missing -= 1
        self._over += 1
        self._counts.finished += 1
        if trajectory is not None:
            group.members[member] = trajectory
        self._hand_over_if_complete(row_index)
        self._changed.set()
        self._fill()

    def _hand_over_if_complete(self, row_index: int) -> None:
        group = self._open[row_index]
        if group.missing == 0:
            del self._open[row_index]
            members = [group.members[member] for member in sorted(group.members)]
            has_spread = self._has_spread(members)
            if not has_spread and not self._stopped and self._rows_to_play < self._rows:
                self._rows_to_play += 1
            self._waiting.append(Group(row_index, members, has_spread=has_spread))

    def _has_spread(self, members: Sequence[Trajectory]) -> bool:
        """Whether a group counts as one that is wanted; all do without dynamic sampling."""
        wanted = self._settings.dynamic_sampling
        if wanted is None or self._error is not None:
            return True
        try:
            return bool(members) and wanted.has_spread(members)
        except Exception as error:
            self._error = error
            self._halt()
            return True

    def _result(self, task: _Task) -> Trajectory | None:
        if task.cancelled() or not task.done():
            if self._too_late:
                self._counts.left_out_for["deadline"] += 1
            return None
        error = task.exception()
        if error is None:
            return task.result()
        if self._error is None:
            self._error = error
            self._halt()
        return None

    def _expire(self) -> None:
        """The deadline: what is under way is cancelled, and what has not begun is left out."""
        if self._stopped:
            return
        unbegun = self._episodes - self._begun
        self._counts.left_out_for["deadline"] += unbegun
        self._counts.finished += unbegun
        self._too_late = True
        self._halt()
        row_index, begun = divmod(self._begun, self._settings.group_size)
        if begun:  # the rest of this group does not come
            self._open[row_index].missing -= self._settings.group_size - begun
            self._hand_over_if_complete(row_index)
        self._changed.set()

    def _halt(self) -> None:
        """Begin nothing more, and cancel what is under way.

        Only once: a second cancellation would cut cleanups off.
        """
        if self._stopped:
            return
        self._stopped = True
        for task in self._running:
            task.cancel()
        self._timers.append(asyncio.get_running_loop().call_later(CLEANUP_S, self._give_up))

    def _give_up(self) -> None:
        """Cancel once more, for a `cleanup` that hangs, and wait no longer."""
        for task, (row_index, member) in list(self._running.items()):
            logger.warning("row %d, member %d: cancelled, and did not end", row_index, member)
            task.cancel()
            self._ended(task)
