"""When episodes run: lazily, not far ahead of the consumer, not past a deadline, and not after."""

import asyncio
import gc
import logging
import selectors
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVarTuple, overload

import gymnasium
import numpy as np
import pytest

from gymnast.agents import ScriptedAgent, TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import ConfigError, InfrastructureError
from gymnast.trainers import Group, Rollouts, collect, stream
from gymnast.trainers.rollouts import schedule
from gymnast.trainers.rollouts.metrics import Counts
from gymnast.types import Completion, Sampling

Encode = Callable[[str], list[int]]
Say = Callable[..., list[int]]
END = "<|im_end|>"
Ts = TypeVarTuple("Ts")


class Desk(Environment):
    """Goes slow where its row says so, until the gate is opened; what happens is logged."""

    gate: threading.Event
    log: Counter[str]
    resets: list[str]

    def _at(self, place: str) -> None:
        self.log[place] += 1
        if place in (self.row.get("slow"), self.row.get("slow_too")):
            self.gate.wait(timeout=30)

    def setup(self, row: Mapping[str, Any]) -> None:
        self.resets.append(str(row["prompt"]))
        self._at("setup")

    @tool
    def look(self) -> str:
        """Look."""
        self._at("tool")
        return "seen"

    @tool
    async def call(self) -> str:
        """Call somebody."""
        while self.row.get("slow") == "async tool" and not self.gate.is_set():
            await asyncio.sleep(0.001)
        if self.row.get("slow") == "deaf tool":
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(30)
        return "called"

    def reward(self, episode: Any) -> float:
        self._at("reward")
        return 1.0

    def cleanup(self) -> None:
        self._at("cleanup")

    def close(self) -> None:
        self.log["close"] += 1
        super().close()


class Passing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Does nothing, and so makes `rollout` drive the environment on a thread."""


class Making:
    """Makes desks with one gate and one log."""

    def __init__(self, renderer: Renderer, **settings: Any) -> None:
        self.renderer, self.settings = renderer, settings
        self.gate, self.log = threading.Event(), Counter[str]()
        self.resets: list[str] = []
        self.made = 0

    def __call__(self) -> Desk:
        self.made += 1
        env = Desk(self.renderer, **self.settings)
        env.gate, env.log, env.resets = self.gate, self.log, self.resets
        return env


@pytest.fixture
def make_env(renderer: Renderer) -> Iterator[Making]:
    making = Making(renderer, context_length=2000)
    yield making
    making.gate.set()


@pytest.fixture
def script(say: Say) -> list[list[int]]:
    return [say("", ("look", {}), ("call", {})), say("Done.")]


def prompts(count: int, **first: Any) -> list[dict[str, Any]]:
    """Rows r0, r1, ...; the first has the special columns."""
    return [{"prompt": f"r{i}", **(first if i == 0 else {})} for i in range(count)]


def gather(make_env: Any, agent: Any, rows: Any, **settings: Any) -> Rollouts:
    settings.setdefault("group_size", 2)
    settings.setdefault("sampling", Sampling())
    return asyncio.run(collect(make_env, agent, rows, **settings))


async def settled(log: Callable[[], Any]) -> None:
    """Wait until nothing has changed for a while."""
    before, same = log(), 0
    while same < 20:
        await asyncio.sleep(0.005)
        before, same = (log(), same + 1) if log() == before else (log(), 0)


async def others_running() -> set[str]:
    """The tasks beside this one."""
    await asyncio.sleep(0)
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


# --- Lazily


class LongTable(Sequence[Mapping[str, Any]]):
    """A million rows that notes which were looked up."""

    def __init__(self) -> None:
        self.looked_up: set[int] = set()

    def __len__(self) -> int:
        return 1_000_000

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: Any) -> Any:
        self.looked_up.add(index)
        return {"prompt": f"r{index}"}


def test_a_million_rows_begin_one_by_one(make_env: Making, script: list[list[int]]) -> None:
    rows, tasks = LongTable(), []

    async def first_three() -> list[int]:
        groups = stream(
            make_env,
            ScriptedAgent(script),
            rows,
            group_size=4,
            sampling=Sampling(),
            concurrency=8,
            max_waiting_groups=1,
        )
        async with aclosing(groups):
            taken = []
            async for group in groups:
                taken.append(group.row_index)
                tasks.append(len(asyncio.all_tasks()))
                if len(taken) == 3:
                    return taken
        raise AssertionError("the stream ended")

    taken = asyncio.run(first_three())
    assert max(tasks) <= 1 + 8
    assert rows.looked_up == set(range(len(rows.looked_up)))
    assert max(taken) < len(rows.looked_up) <= 3 + 1 + 8 / 4 + 1
    assert make_env.made <= 8


def test_rows_begin_in_their_order_and_a_place_is_never_left_empty(
    make_env: Making, script: list[list[int]]
) -> None:
    rows = prompts(4, slow="tool")

    async def scenario() -> None:
        groups = stream(
            make_env,
            ScriptedAgent(script),
            rows,
            group_size=2,
            sampling=Sampling(),
            concurrency=3,
            max_waiting_groups=2,
        )
        async with aclosing(groups):
            seen = [(await anext(groups)).row_index for _ in range(3)]
            assert seen == [1, 2, 3]  # through the one place that the slow two left
            make_env.gate.set()
            assert (await anext(groups)).row_index == 0

    asyncio.run(scenario())
    begun = [int(name[1:]) for name in make_env.resets]
    assert begun.count(0) == 2  # at once, each on a thread of its own
    assert [row for row in begun if row] == [1, 1, 2, 2, 3, 3]


# --- Backpressure


@pytest.mark.parametrize("most", [1, 3])
def test_no_row_begins_while_enough_groups_wait_for_the_consumer(
    most: int, make_env: Making, script: list[list[int]]
) -> None:
    begun: list[int] = []

    async def scenario() -> set[int]:
        groups = stream(
            make_env,
            ScriptedAgent(script),
            prompts(20),
            group_size=1,
            sampling=Sampling(),
            concurrency=1,
            max_waiting_groups=most,
        )
        seen = set()
        async for group in groups:
            seen.add(group.row_index)
            await settled(lambda: len(make_env.resets))
            begun.append(len(set(make_env.resets)))
        return seen

    assert asyncio.run(scenario()) == set(range(20))
    # So many are taken, so many wait, and none is under way.
    assert begun == [min(taken + most, 20) for taken in range(1, 21)]


def test_the_loop_goes_on_while_the_consumer_is_busy(
    make_env: Making, script: list[list[int]]
) -> None:
    """The groups after the first are finished without anyone asking for them."""

    async def scenario() -> None:
        groups = stream(
            make_env, ScriptedAgent(script), prompts(5), group_size=2, sampling=Sampling()
        )
        async with aclosing(groups):
            await anext(groups)
            await settled(lambda: make_env.log["reward"])
            assert make_env.log["reward"] == 10

    asyncio.run(scenario())


class Selections(selectors.DefaultSelector):
    """Counts how often the event loop waits for something: once in each of its turns."""

    count = 0

    def select(self, timeout: float | None = None) -> Any:
        self.count += 1
        return super().select(timeout)


def test_nothing_is_polled_while_episodes_wait(make_env: Making, script: list[list[int]]) -> None:
    """All wait in threads: the event loop runs only what this test schedules itself."""
    selections = Selections()

    async def scenario() -> int:
        collecting = asyncio.create_task(
            collect(
                make_env,
                ScriptedAgent(script),
                [{"prompt": "r", "slow": "tool"}] * 8,
                group_size=2,
                sampling=Sampling(),
            )
        )
        while make_env.log["tool"] < 16:
            await asyncio.sleep(0.005)
        before = selections.count
        await asyncio.sleep(0.1)
        turns = selections.count - before
        make_env.gate.set()
        await collecting
        return turns

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selections)) as runner:
        assert 0 < runner.run(scenario()) <= 5


# --- A deadline


class AdjustableClock(asyncio.SelectorEventLoop):
    """An event loop whose time a test can put forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def gather_until(finished: int, make_env: Any, agent: Any, rows: Any, **settings: Any) -> Rollouts:
    """Collect until so many episodes are over; then the deadline comes."""
    counts = Counts()
    clock = AdjustableClock()
    given = {"group_size": 2, "sampling": Sampling(), **settings}

    async def scenario() -> Rollouts:
        collecting = asyncio.create_task(
            collect(make_env, agent, rows, deadline_s=1000.0, counts=counts, **given)
        )
        while counts.finished < finished:
            await asyncio.sleep(0.005)
        clock.ahead_s = 1000.0
        return await collecting

    with asyncio.Runner(loop_factory=lambda: clock) as runner:
        return runner.run(scenario())


@pytest.mark.parametrize("place", ["setup", "tool", "async tool", "reward"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["awaited", "wrapped"])
def test_what_has_not_finished_by_the_deadline_is_left_out_and_counted(
    place: str, wrapped: bool, make_env: Making, script: list[list[int]]
) -> None:
    make: Any = (lambda: Passing(make_env())) if wrapped else make_env
    rollouts = gather_until(4, make, ScriptedAgent(script), prompts(3, slow=place))
    assert [len(group) for group in rollouts] == [0, 2, 2]
    assert rollouts.metrics["episodes/left_out/deadline"] == 2
    assert rollouts.metrics["episodes/left_out"] == 2
    assert rollouts.metrics["episodes/finished"] == 4
    assert rollouts.metrics["episodes/retried"] == 0


def test_rows_that_had_not_begun_by_the_deadline_are_left_out_too(
    make_env: Making, script: list[list[int]]
) -> None:
    """The slow row takes both places; its second group has one member begun."""
    counts = Counts()

    async def scenario() -> list[Group]:
        groups = stream(
            make_env,
            ScriptedAgent(script),
            [{"prompt": "r", "slow": "async tool"}] * 1000,
            group_size=2,
            sampling=Sampling(),
            concurrency=3,
            deadline_s=0.2,
            counts=counts,
        )
        return [group async for group in groups]

    groups = asyncio.run(scenario())
    assert sorted((group.row_index, len(group)) for group in groups) == [(0, 0), (1, 0)]
    assert counts.left_out_for == {"deadline": 2000}
    assert counts.finished == 2000


def test_a_group_cut_by_the_deadline_keeps_the_members_that_finished(
    make_env: Making, encode: Encode
) -> None:
    class SlowSecond:
        """Answers the first call once all three are made, and no other."""

        def __init__(self) -> None:
            self.calls = 0
            self.all_called = asyncio.Event()

        async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
            self.calls += 1
            first = self.calls == 1
            if self.calls == 3:
                self.all_called.set()
            await (self.all_called if first else asyncio.Event()).wait()
            ids = encode("Done." + END)
            return Completion(ids, [0.0] * len(ids), "stop")

    rollouts = gather_until(1, make_env, SlowSecond(), prompts(1), group_size=3)
    assert [len(group) for group in rollouts] == [1]
    assert rollouts.metrics["episodes/left_out/deadline"] == 2
    assert make_env.log["cleanup"] == make_env.log["setup"] == 3


def test_a_deadline_that_is_not_reached_changes_nothing(
    make_env: Making, script: list[list[int]]
) -> None:
    timers: list[asyncio.TimerHandle] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_at(
            self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Any = None
        ) -> asyncio.TimerHandle:
            timers.append(super().call_at(when, callback, *args, context=context))
            return timers[-1]

    with asyncio.Runner(loop_factory=Loop) as runner:
        rollouts = runner.run(
            collect(
                make_env,
                ScriptedAgent(script),
                prompts(3),
                group_size=2,
                sampling=Sampling(),
                deadline_s=1000.0,
            )
        )
    assert [len(group) for group in rollouts] == [2, 2, 2]
    assert rollouts.metrics["episodes/left_out"] == 0
    assert timers and all(timer.cancelled() for timer in timers)


def test_reasons_are_counted_separately(make_env: Making, script: list[list[int]]) -> None:
    class Mixed(Desk):
        def reward(self, episode: Any) -> float:
            if self.row.get("raises"):
                raise KeyError("typo")
            if self.row.get("breaks"):
                raise InfrastructureError("lost")
            return super().reward(episode)

    def make() -> Mixed:
        env = Mixed(make_env.renderer, context_length=2000)
        env.gate, env.log, env.resets = make_env.gate, make_env.log, make_env.resets
        return env

    rows = [
        {"prompt": "slow", "slow": "async tool"},
        {"prompt": "typo", "raises": True},
        {"prompt": "lost", "breaks": True},
        {"prompt": "long " * 3000},
        {"prompt": "well"},
    ]
    rollouts = gather_until(
        4, make, ScriptedAgent(script), rows, max_failed_episodes=9, group_size=1
    )
    assert [len(group) for group in rollouts] == [0, 0, 0, 0, 1]
    counted = {k: v for k, v in rollouts.metrics.items() if "left_out" in k or "skipped" in k}
    assert counted == {
        "episodes/left_out": 3,
        "episodes/left_out/deadline": 1,
        "episodes/left_out/infrastructure": 1,
        "episodes/left_out/user_code": 1,
        "episodes/left_out/no_request": 0,
        "episodes/left_out/reward": 0,
        "episodes/left_out/no_reward": 0,
        "episodes/left_out/stale": 0,
        "episodes/rows_skipped": 1,
    }


# --- Cancelling leaves nothing behind


def test_a_deadline_frees_the_places_of_the_engine_at_once(renderer: Renderer) -> None:
    """One samples and three wait for its place; afterwards the engine computes for none of them."""
    agent = TransformersAgent(tiny_model(), max_batch=1)
    env: Any = Environment.from_tools([], reward=lambda episode: 0.0)

    async def scenario() -> Rollouts:
        found = await collect(
            lambda: env(renderer),
            agent,
            [{"prompt": "Go."}],
            group_size=4,
            sampling=Sampling(max_new_tokens=1900),
            deadline_s=0.2,
        )
        before = agent.tokens_pushed
        await agent.generate([5, 6, 7], Sampling(max_new_tokens=4))
        assert agent.tokens_pushed - before < 50
        settled_at = agent.tokens_pushed
        await asyncio.sleep(0.05)
        assert agent.tokens_pushed == settled_at
        return found

    rollouts = asyncio.run(scenario())
    assert rollouts.metrics["episodes/left_out/deadline"] == 4


@pytest.mark.parametrize("place", ["setup", "tool", "async tool", "reward"])
def test_a_cancelled_episode_leaves_no_task_thread_or_environment(
    place: str, make_env: Making, script: list[list[int]]
) -> None:
    gc.collect()
    before = set(threading.enumerate())

    async def scenario() -> set[str]:
        agent, rows = ScriptedAgent(script), prompts(3, slow=place)
        await collect(make_env, agent, rows, group_size=2, sampling=Sampling(), deadline_s=1.0)
        return await others_running()

    assert asyncio.run(scenario()) == set()
    assert make_env.log["setup"] == make_env.log["cleanup"] == 6  # also before the tool returns
    assert make_env.log["close"] == make_env.made
    make_env.gate.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "gymnast-Desk":
            thread.join(timeout=30)
            assert not thread.is_alive()


def test_an_environment_amid_a_step_on_a_thread_is_closed_when_the_step_ends(
    encode: Encode,
) -> None:
    """Nothing else touches a foreign environment while its `step` hangs, and nobody waits."""
    gate, closed, log = threading.Event(), threading.Event(), []

    class Foreign(gymnasium.Env[Any, Any]):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.array([1, 2, 3]), {"stop_ids": [9]}

        def step(self, action: Any) -> Any:
            log.append("step begins")
            gate.wait(timeout=30)
            log.append("step ends")
            return np.array([4]), 0.0, True, False, {}

        def close(self) -> None:
            log.append("closed")
            closed.set()

    rollouts = gather(
        Foreign, ScriptedAgent([[5, 9]]), [{"any": "row"}], group_size=1, deadline_s=0.2
    )
    assert rollouts.metrics["episodes/left_out/deadline"] == 1
    assert log == ["step begins"]
    gate.set()
    assert closed.wait(timeout=30)
    assert log == ["step begins", "step ends", "closed"]


def test_a_cleanup_that_hangs_is_not_waited_for_without_end(
    make_env: Making,
    script: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(schedule, "CLEANUP_S", 0.1)
    with caplog.at_level(logging.WARNING):
        rows = prompts(2, slow="tool", slow_too="cleanup")
        rollouts = gather(make_env, ScriptedAgent(script), rows, deadline_s=1.0)
    assert [len(group) for group in rollouts] == [0, 2]
    assert rollouts.metrics["episodes/left_out/deadline"] == 2
    assert "row 0, member 1: cancelled, and did not end" in caplog.text


def test_a_tool_that_swallows_its_cancellation_does_not_keep_its_episode_going(
    make_env: Making, script: list[list[int]]
) -> None:
    rollouts = gather(make_env, ScriptedAgent(script), prompts(2, slow="deaf tool"), deadline_s=1.0)
    assert [len(group) for group in rollouts] == [0, 2]
    assert make_env.log["reward"] == 2


def test_what_an_agent_cancels_by_itself_counts_as_infrastructure(
    make_env: Making, encode: Encode
) -> None:
    class Dropping:
        async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
            raise asyncio.CancelledError

    rollouts = gather(make_env, Dropping(), prompts(1))
    assert rollouts.metrics["episodes/left_out/infrastructure"] == 2


# --- What cannot work


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"concurrency": 0}, "concurrency: must be >= 1, got 0"),
        ({"group_size": 0}, "group_size: must be >= 1, got 0"),
        ({"deadline_s": 0.0}, "deadline_s: must be > 0, got 0"),
        ({"deadline_s": float("nan")}, "deadline_s: must be > 0, got nan"),
    ],
)
def test_limits_that_let_nothing_run_are_refused(
    settings: dict[str, Any], message: str, make_env: Making, script: list[list[int]]
) -> None:
    with pytest.raises(ConfigError, match=message):
        gather(make_env, ScriptedAgent(script), prompts(1), **settings)
    assert make_env.made == 0
