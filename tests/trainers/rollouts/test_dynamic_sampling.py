"""Groups without spread are replaced by further rows, and nothing waits for them."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents import ScriptedAgent, TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer
from gymnast.errors import ConfigError
from gymnast.trainers import DynamicSampling, Rollouts, collect
from gymnast.trainers.rollouts.metrics import Counts
from gymnast.trainers.rollouts.schedule import Group, Schedule
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.types import Sampling, Span, StopReason, Trajectory

Encode = Callable[[str], list[int]]


class Hopeless(Environment):
    """Every second row never pays; the others pay for an answer of odd length."""

    def setup(self, row: Mapping[str, Any]) -> None:
        time.sleep(random.random() * 0.005)

    def reward(self, episode: Any) -> float:
        time.sleep(random.random() * 0.02)
        return 0.0 if self.row["hopeless"] else float(len(episode.answer) % 2)


ROWS = [{"prompt": str(number), "hopeless": number % 2 == 0} for number in range(12)]


def trajectory(row_index: int, member: int, reward: float) -> Trajectory:
    """One whose ids say whose it is."""
    return Trajectory(
        ids=[row_index, member],
        action_mask=[0, 1],
        logprobs=[0.0, 0.0],
        prompt_length=1,
        turns=[Span(1, 2)],
        turn_rewards=[reward],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )


def limits(groups: int, group_size: int = 2, **settings: Any) -> RolloutSettings:
    wanted = DynamicSampling(groups)
    return RolloutSettings(
        group_size=group_size, sampling=Sampling(), dynamic_sampling=wanted, **settings
    )


async def all_groups(schedule: Schedule) -> list[Group]:
    schedule.start()
    groups = []
    while (group := await schedule.next_group()) is not None:
        groups.append(group)
    await schedule.stop()
    return groups


def needed(spread: Sequence[bool], wanted: int) -> int:
    """How many of the rows it takes, in their order, until so many have spread."""
    found = 0
    for number, has_spread in enumerate(spread):
        if found == wanted:
            return number
        found += has_spread
    return len(spread)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_first_rows_with_spread_are_played_in_whatever_order_they_finish(
    data: st.DataObject,
) -> None:
    group_size, concurrency = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 9))
    spread = data.draw(st.lists(st.booleans(), max_size=14))
    wanted, most_waiting = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 4))
    episodes = len(spread) * group_size
    plan = data.draw(st.lists(st.integers(0, 6), min_size=episodes, max_size=episodes))
    begun: list[tuple[int, int]] = []
    running, live = [0], list[int]()

    async def play(row_index: int, member: int) -> Trajectory:
        begun.append((row_index, member))
        running[0] += 1
        assert running[0] <= concurrency
        for _ in range(plan[row_index * group_size + member]):
            await asyncio.sleep(0)
        running[0] -= 1
        return trajectory(row_index, member, float(spread[row_index] and member == 0))

    counts = Counts()
    played = limits(wanted, group_size, concurrency=concurrency, max_waiting_groups=most_waiting)

    async def run() -> list[Group]:
        return await all_groups(Schedule(play, len(spread), played, counts, live.append))

    groups = asyncio.run(run())
    rows = needed(spread, wanted)
    assert sorted(group.row_index for group in groups) == list(range(rows))  # each once
    assert begun == [divmod(number, group_size) for number in range(rows * group_size)]
    assert all(group.has_spread == spread[group.row_index] for group in groups)
    assert all(len(group) == group_size for group in groups)
    assert counts.finished == rows * group_size
    assert live[-1] == 0 and max(live) <= min(concurrency, wanted * group_size)


def test_a_row_that_takes_long_holds_up_no_replacement() -> None:
    """Row 0 ends only when the replacements of all others have been played."""

    async def run() -> list[int]:
        last_replacement = asyncio.Event()

        async def play(row_index: int, member: int) -> Trajectory:
            if row_index == 0:
                await last_replacement.wait()
            if row_index == 5:
                last_replacement.set()
            return trajectory(row_index, member, float(row_index in (0, 5) and member))

        schedule = Schedule(play, 20, limits(2), Counts())
        groups = await asyncio.wait_for(all_groups(schedule), timeout=30)
        return [group.row_index for group in groups]

    assert asyncio.run(run()) == [1, 2, 3, 4, 5, 0]


def test_empty_groups_are_replaced_and_those_of_one_episode_too() -> None:
    async def play(row_index: int, member: int) -> Trajectory | None:
        left_out = row_index == 0 or (row_index == 1 and member == 1)
        return None if left_out else trajectory(row_index, member, float(member))

    async def run() -> list[Group]:
        return await all_groups(Schedule(play, 20, limits(2), Counts()))

    groups = sorted(asyncio.run(run()), key=lambda group: group.row_index)
    assert [(len(group), group.has_spread) for group in groups] == [
        (0, False),
        (1, False),
        (2, True),
        (2, True),
    ]


def test_nothing_is_replaced_after_the_deadline() -> None:
    """Row 0 is found without spread in time, and its replacement never ends."""

    async def play(row_index: int, member: int) -> Trajectory:
        if row_index:
            await asyncio.Event().wait()
        return trajectory(row_index, member, 1.0)

    counts = Counts()

    async def run() -> list[Group]:
        played = limits(2, deadline_s=0.05, concurrency=3)
        return await all_groups(Schedule(play, 20, played, counts))

    groups = asyncio.run(run())
    assert sorted(group.row_index for group in groups) == [0, 1, 2]
    assert counts.left_out_for["deadline"] == 4 and counts.finished == 6


def test_what_the_rule_raises_ends_the_collection() -> None:
    def broken(group: Any) -> bool:
        raise ConfigError("algorithm.estimator: gave nothing")

    async def play(row_index: int, member: int) -> Trajectory:
        return trajectory(row_index, member, 0.0)

    async def run() -> None:
        played = RolloutSettings(
            group_size=2, sampling=Sampling(), dynamic_sampling=DynamicSampling(2, broken)
        )
        await asyncio.wait_for(all_groups(Schedule(play, 9, played, Counts())), timeout=30)

    with pytest.raises(ConfigError, match="gave nothing"):
        asyncio.run(run())


def test_collect_plays_as_many_rows_as_it_takes_and_counts_them(
    renderer: Renderer, encode: Encode
) -> None:
    begun: Counter[str] = Counter()

    def answer(context_ids: list[int]) -> list[int]:
        """One character, and two for the other member of the group."""
        begun[str(context_ids)] += 1
        return encode(("a" if begun[str(context_ids)] == 1 else "ab") + "<|im_end|>")

    progress: list[tuple[int, int]] = []
    rollouts = asyncio.run(
        collect(
            lambda: Hopeless(renderer),
            ScriptedAgent(answer),
            ROWS,
            group_size=2,
            sampling=Sampling(),
            dynamic_sampling=DynamicSampling(3),
            on_progress=lambda done, total: progress.append((done, total)),
        )
    )
    assert [group.row_index for group in rollouts] == [0, 1, 2, 3, 4, 5]
    assert [group.row_index for group in rollouts.to_learn_from] == [1, 3, 5]
    named = {k: v for k, v in rollouts.metrics.items() if k.startswith("dynamic_sampling/")}
    in_vain = sum(t.action_tokens for group in rollouts[::2] for t in group)
    assert named == {
        "dynamic_sampling/rows": 6,
        "dynamic_sampling/groups_alike": 0.5,
        "dynamic_sampling/groups_replaced": 3,
        "dynamic_sampling/groups_missing": 0,
        "dynamic_sampling/tokens_in_vain": in_vain,
    }
    assert rollouts.metrics["tokens/sampled"] == 2 * in_vain  # they count as sampled
    assert progress[-1] == (12, 12) and all(done <= total for done, total in progress)


def test_deterministic_rollouts_repeat_bit_for_bit(tokenizer: Any, renderer: Renderer) -> None:
    """Whatever the clock says: rewards and setups take random times."""
    model = tiny_model()

    def play() -> Rollouts:
        return asyncio.run(
            collect(
                lambda: Hopeless(renderer),
                TransformersAgent(model, tokenizer),
                ROWS,
                group_size=3,
                sampling=Sampling(max_new_tokens=6),
                concurrency=5,
                seed=4,
                deterministic=True,
                dynamic_sampling=DynamicSampling(3),
            )
        )

    first, second = play(), play()
    assert any(not group.has_spread for group in first)
    assert [(g.row_index, g.has_spread) for g in first] == [
        (g.row_index, g.has_spread) for g in second
    ]
    assert [(t.ids, t.logprobs) for t in first.trajectories] == [
        (t.ids, t.logprobs) for t in second.trajectories
    ]
