"""The schedule keeps order and limits, hands over each group once, and counts every episode."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.trainers.rollouts.metrics import Counts
from gymnast.trainers.rollouts.schedule import Group, Schedule
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.types import Sampling, Span, StopReason, Trajectory


def trajectory(row_index: int, member: int) -> Trajectory:
    """One whose ids say whose it is."""
    return Trajectory(
        ids=[row_index, member],
        action_mask=[0, 1],
        logprobs=[0.0, 0.0],
        prompt_length=1,
        turns=[Span(1, 2)],
        turn_rewards=[0.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )


@dataclass
class Players:
    """Plays episodes that each take so many turns of the loop; 0 leaves one out."""

    plan: Sequence[int]
    group_size: int
    begun: list[tuple[int, int]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    async def play(self, row_index: int, member: int) -> Trajectory | None:
        turns = self.plan[row_index * self.group_size + member]
        self.begun.append((row_index, member))
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        for _ in range(turns):
            await asyncio.sleep(0)
        self.running -= 1
        return trajectory(row_index, member) if turns else None


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_row_has_its_group_once_and_no_limit_is_passed(data: st.DataObject) -> None:
    group_size, concurrency = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    most, rows = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 12))
    plan = data.draw(
        st.lists(st.integers(0, 6), min_size=rows * group_size, max_size=rows * group_size)
    )
    pauses = data.draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows))
    players, counts = Players(plan, group_size), Counts()
    limits = RolloutSettings(
        group_size=group_size,
        sampling=Sampling(),
        concurrency=concurrency,
        max_waiting_groups=most,
    )
    live: list[int] = []

    async def run() -> list[Group]:
        schedule = Schedule(players.play, rows, limits, counts, live.append)
        schedule.start()
        groups: list[Group] = []
        while (group := await schedule.next_group()) is not None:
            groups.append(group)
            for _ in range(pauses[len(groups) - 1]):
                await asyncio.sleep(0)
            open_rows = {row_index for row_index, _ in players.begun} - {
                g.row_index for g in groups
            }
            assert len(open_rows) <= most + concurrency  # waiting, and under way
        await schedule.stop()
        return groups

    groups = asyncio.run(run())
    assert sorted(group.row_index for group in groups) == list(range(rows))
    for group in groups:
        start = group.row_index * group_size
        kept = [m for m in range(group_size) if plan[start + m]]
        assert [t.ids for t in group] == [[group.row_index, member] for member in kept]
    assert players.begun == [divmod(number, group_size) for number in range(rows * group_size)]
    assert players.most_running <= concurrency
    assert counts.finished == rows * group_size
    assert live[-1] == 0 and max(live) <= concurrency


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 6), st.integers(0, 8))
def test_a_deadline_leaves_out_exactly_what_has_no_trajectory(
    group_size: int, concurrency: int, rows: int, quick: int
) -> None:
    """The first `quick` episodes end at once; all others never do."""
    counts = Counts()

    async def play(row_index: int, member: int) -> Trajectory | None:
        if row_index * group_size + member >= quick:
            await asyncio.Event().wait()
        return trajectory(row_index, member)

    async def run() -> list[Group]:
        limits = RolloutSettings(
            group_size=group_size,
            sampling=Sampling(),
            concurrency=concurrency,
            max_waiting_groups=2,
            deadline_s=0.005,
        )
        schedule = Schedule(play, rows, limits, counts)
        schedule.start()
        groups = []
        while (group := await schedule.next_group()) is not None:
            groups.append(group)
        await schedule.stop()
        return groups

    groups = asyncio.run(run())
    indices = [group.row_index for group in groups]
    assert sorted(indices) == list(range(len(groups)))  # those that had begun, each once
    finished = sum(map(len, groups))
    assert finished + counts.left_out_for["deadline"] == counts.finished == rows * group_size


def test_what_an_episode_raises_stops_the_others_at_once() -> None:
    cancelled = []

    async def play(row_index: int, member: int) -> Trajectory | None:
        if row_index == 1:
            raise ZeroDivisionError
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(row_index)
            raise
        return None

    async def run() -> None:
        limits = RolloutSettings(group_size=1, sampling=Sampling(), concurrency=3)
        schedule = Schedule(play, 100, limits, Counts())
        schedule.start()
        for _ in range(5):
            await asyncio.sleep(0)
        assert cancelled == [0, 2]  # before anyone asks for a group
        with pytest.raises(ZeroDivisionError):
            await schedule.next_group()
        await schedule.stop()

    asyncio.run(run())
