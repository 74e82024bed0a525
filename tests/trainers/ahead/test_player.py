"""Whatever ends when: what a step takes is within the bound, and no step starves.

Time is counted in rounds of the event loop, so every schedule that Hypothesis draws repeats.
"""

import asyncio
import random
from collections import Counter
from itertools import count
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.errors import UsageError
from gymnast.trainers.ahead.bound import staleness_metrics, within
from gymnast.trainers.ahead.player import Player, Taken
from gymnast.trainers.ahead.settings import StalenessSettings
from gymnast.trainers.ahead.watching import WatchedAgent
from gymnast.trainers.rollouts.metrics import Counts
from gymnast.trainers.rollouts.settings import DynamicSampling, RolloutSettings
from gymnast.types import Completion, Sampling, Span, StopReason, Trajectory, VersionSpan

GROUP, ROWS, STEPS = 2, 3, 8


class Agent:
    """Samples a token a round, each from the weights there are then."""

    def __init__(self) -> None:
        self.version = 0

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        spans = []
        for number in range(sampling.max_new_tokens):
            await asyncio.sleep(0)
            spans.append(VersionSpan(number, number + 1, self.version))
        length = len(spans)
        return Completion([7] * length, [-1.0] * length, "length", versions=spans)


class Episodes:
    """Turns of some tokens, with tools that take some rounds in between."""

    def __init__(self, agent: Any, draws: random.Random) -> None:
        self.agent, self.draws = agent, draws
        self.cleaned, self.begun = 0, 0

    async def play(self, row_index: int, member: int) -> Trajectory | None:
        self.begun += 1
        ids, mask = [1], [0]
        turns, versions = list[Span](), list[VersionSpan]()
        slow = self.draws.random() < 0.2
        try:
            for _ in range(self.draws.randint(1, 3)):
                for _ in range(self.draws.randint(0, 60 if slow else 6)):
                    await asyncio.sleep(0)
                length = self.draws.randint(0, 4)
                if length:
                    action = await self.agent.generate(ids, Sampling(max_new_tokens=length))
                    start = len(ids)
                    versions += [
                        VersionSpan(start + a, start + b, v) for a, b, v in action.versions
                    ]
                    ids, mask = ids + action.ids, mask + [1] * length
                turns.append(Span(len(ids) - length, len(ids)))
        finally:
            self.cleaned += 1
        reward = float(self.draws.random() < 0.5)
        return Trajectory(
            *(ids, mask, [0.0] * len(ids), 1, turns, [*[0.0] * (len(turns) - 1), reward]),
            *(StopReason.answered, True, False),
            versions=versions,
        )

    async def close_lost(self) -> None: ...

    async def close(self) -> None: ...


async def run(
    draws: random.Random, staleness: StalenessSettings, dynamic: DynamicSampling | None = None
) -> tuple[list[Taken], Episodes]:
    """Steps whose updates take some rounds."""
    agent, counts, steps = Agent(), Counts(), list[Taken]()
    watched = WatchedAgent(agent, 0)
    episodes = Episodes(watched, draws)
    played = RolloutSettings(
        group_size=GROUP,
        sampling=Sampling(),
        concurrency=draws.choice([4, 64]),
        dynamic_sampling=dynamic,
    )
    player = Player(episodes, counts, watched, count(), played, staleness)
    ahead, spare = staleness.max_staleness + 1, 4 if dynamic else 0
    await player.begin(ahead * ROWS, ahead * spare)
    for step in range(STEPS):
        steps.append(await player.take(ROWS, step))
        for _ in range(draws.randint(0, 30)):
            await asyncio.sleep(0)
        agent.version = step + 1
        for _ in range(draws.randint(0, 3)):
            await asyncio.sleep(0)
        await player.renew(step + 1)
        await player.begin(min(ahead, STEPS - step - 1) * ROWS, spare)
    await player.close()
    return steps, episodes


@settings(max_examples=40)
@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.sampled_from(["drop", "continue"]),
)
def test_what_is_taken_is_within_the_bound_and_no_step_starves(
    seed: int, most: int, on_stale: Literal["drop", "continue"]
) -> None:
    staleness = StalenessSettings(max_staleness=most, on_stale=on_stale)
    steps, episodes = asyncio.run(run(random.Random(seed), staleness))
    seen = Counter[int]()
    for version, taken in enumerate(steps):
        assert len(taken.groups) == ROWS
        for group in taken.groups:
            assert group
            trained = [within(trajectory, version - most) for trajectory in group]
            staleness_metrics([trained], version, most)  # which checks the bound
            assert on_stale == "continue" or trained == list(group)
        assert not any(taken.others)  # of whom nothing is left
        settled = [group.row_index for group in (*taken.groups, *taken.others)]
        seen.update(settled)
        assert taken.under_way == min(most, STEPS - version - 1) * ROWS
        finished = sum(len(group) for group in taken.groups)
        assert taken.complete <= taken.under_way and finished <= ROWS * GROUP
    assert set(seen.values()) == {1}  # no row is settled twice
    assert max(seen) == len(seen) - 1  # at the end none is left
    assert episodes.cleaned == episodes.begun
    stale = sum(taken.counts.left_out_for["stale"] for taken in steps)
    kept = sum(len(group) for taken in steps for group in taken.groups)
    assert stale + kept == len(seen) * GROUP


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 2))
def test_groups_without_spread_are_replaced_as_often_as_a_step_may(seed: int, most: int) -> None:
    staleness = StalenessSettings(max_staleness=most)
    steps, _ = asyncio.run(run(random.Random(seed), staleness, DynamicSampling(ROWS)))
    for taken in steps:
        assert all(group.has_spread for group in taken.groups)
        assert not any(group.has_spread and len(group) for group in taken.others)
        assert len(taken.groups) <= ROWS
        missing = ROWS - len(taken.groups)
        assert not missing or taken.under_way == taken.complete == 0
    settled = [group.row_index for t in steps for group in (*t.groups, *t.others)]
    assert len(settled) == len({*settled})


def test_an_episode_that_outgrows_the_bound_amid_its_turn_is_cancelled() -> None:
    ended: list[int] = []

    async def scenario() -> Taken:
        agent = Agent()
        watched, counts = WatchedAgent(agent, 0), Counts()

        class Endless(Episodes):
            async def play(self, row_index: int, member: int) -> Trajectory | None:
                if row_index:
                    return await super().play(row_index, member)
                try:
                    await self.agent.generate([1], Sampling(max_new_tokens=10**6))
                finally:
                    ended.append(agent.version)
                raise AssertionError("it is never over")

        episodes = Endless(watched, random.Random(0))
        played = RolloutSettings(group_size=1, sampling=Sampling())
        player = Player(
            *(episodes, counts, watched, count(), played, StalenessSettings(max_staleness=1))
        )
        await player.begin(2, 0)
        assert [group.row_index for group in (await player.take(1, 0)).groups] == [1]
        agent.version = 1
        await player.renew(1)
        await player.begin(2, 0)
        assert [group.row_index for group in (await player.take(1, 1)).groups] == [2]
        agent.version = 2
        await player.renew(2)
        await player.begin(2, 0)
        taken = await player.take(1, 2)
        await player.close()
        return taken

    taken = asyncio.run(scenario())
    assert [group.row_index for group in taken.others] == [0]
    assert taken.counts.left_out_for["stale"] == 1
    assert ended == [2]  # the version at which it was given up


def test_an_agent_that_goes_on_with_old_weights_is_told() -> None:
    async def scenario() -> None:
        watched, counts = WatchedAgent(Agent(), 0), Counts()  # whose agent gets no new weights
        played = RolloutSettings(group_size=1, sampling=Sampling())
        staleness = StalenessSettings(max_staleness=1)
        episodes = Episodes(watched, random.Random(0))
        player = Player(episodes, counts, watched, count(), played, staleness)
        await player.begin(4, 0)
        await player.renew(2)
        try:
            await player.take(4, 2)
        finally:
            await player.close()

    with pytest.raises(UsageError, match="the agent did not take the new weights"):
        asyncio.run(scenario())


@pytest.mark.parametrize("why", ["stale", "deadline"])
def test_an_episode_that_does_not_end_when_it_is_cancelled_is_left_behind(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.trainers.ahead.watching.CLEANUP_S", 0.05)

    async def scenario() -> Counts:
        watched, counts = WatchedAgent(Agent(), 0), Counts()

        class Hangs(Episodes):
            async def play(self, row_index: int, member: int) -> Trajectory | None:
                await self.agent.generate([1], Sampling(max_new_tokens=1))
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    await asyncio.sleep(60)  # a cleanup that hangs
                return None

        deadline_s = 0.05 if why == "deadline" else None
        played = RolloutSettings(group_size=1, sampling=Sampling(), deadline_s=deadline_s)
        episodes = Hangs(watched, random.Random(0))
        player = Player(
            *(episodes, counts, watched, count(), played, StalenessSettings(max_staleness=1))
        )
        await player.begin(1, 0)
        await asyncio.sleep(0.01)
        if why == "stale":
            await player.renew(2)
            await player.begin(0, 0)
        await asyncio.sleep(0.3)
        counted = counts.handed_over()
        await player.close()
        return counted

    counted = asyncio.run(scenario())
    assert counted.left_out_for[why] == 1  # type: ignore[index]
