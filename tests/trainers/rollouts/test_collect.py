"""Many episodes: none waits for another, failures are counted, and seeds say who sampled what."""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import gymnasium
import pytest

from gymnast.agents import Agent, ScriptedAgent, TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import DataError, InfrastructureError, UserCodeError
from gymnast.sandboxes import SandboxSpec
from gymnast.trainers import Rollouts, collect, stream
from gymnast.trainers.rollouts.metrics import Counts
from gymnast.types import Completion, Sampling, StopReason

Encode = Callable[[str], list[int]]
Say = Callable[..., list[int]]
Rows = Sequence[Mapping[str, Any]]


class Desk(Environment):
    """Whatever its row says goes slow or wrong; what happens is counted in `log`."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.log: Counter[str] = Counter()
        self.gate = threading.Event()
        self.close_called = 0

    def _at(self, place: str) -> None:
        self.log[place] += 1
        if self.row.get("slow") == place:
            assert self.gate.wait(timeout=30), "the other episodes waited for this one"
        if self.row.get("raises") == place:
            raise KeyError(f"typo in {place}")
        if self.row.get("breaks") == place:
            raise InfrastructureError(f"lost in {place}")
        if self.row.get("breaks_once") == place and self.log[f"broke {self.row['name']}"] == 0:
            self.log[f"broke {self.row['name']}"] += 1
            raise InfrastructureError(f"lost in {place}")

    def setup(self, row: Mapping[str, Any]) -> Any:
        self._at("setup")
        start = int(self.np_random.integers(10**6))
        return [
            {"role": "user", "content": f"{row['name']} {start}" + " word" * row.get("long", 0)}
        ]

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
        return "called"

    def turn_reward(self, turn: Any) -> float:
        self._at("turn_reward")
        return 0.0

    def reward(self, episode: Any) -> float:
        self._at("reward")
        return 1.0

    def cleanup(self) -> None:
        self._at("cleanup")

    def close(self) -> None:
        self.close_called += 1
        super().close()


class Making:
    """Makes environments that share a gate and a log, and keeps them."""

    def __init__(self, renderer: Renderer, **settings: Any) -> None:
        self.renderer, self.settings = renderer, settings
        self.made: list[Desk] = []
        self.gate, self.log = threading.Event(), Counter[str]()

    def __call__(self) -> Desk:
        env = Desk(self.renderer, **self.settings)
        env.gate, env.log = self.gate, self.log
        self.made.append(env)
        return env


@pytest.fixture
def make_env(renderer: Renderer) -> Iterator[Making]:
    making = Making(renderer, context_length=2000)
    yield making
    making.gate.set()


@pytest.fixture
def script(say: Say) -> list[list[int]]:
    return [say("", ("look", {}), ("call", {})), say("Done.")]


class Listening:
    """Hands completions on and keeps the sampling seeds it was asked for."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.seeds: list[int | None] = []

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        self.seeds.append(sampling.seed)
        return await self.agent.generate(context_ids, sampling)


def named(count: int, **special: Any) -> list[dict[str, Any]]:
    """Rows r0, r1, ...; the first has the special columns."""
    return [{"name": f"r{i}", **(special if i == 0 else {})} for i in range(count)]


def gather(make_env: Callable[[], Any], agent: Agent, rows: Rows, **settings: Any) -> Rollouts:
    settings.setdefault("group_size", 2)
    settings.setdefault("sampling", Sampling())
    return asyncio.run(collect(make_env, agent, rows, **settings))


async def others_running() -> set[str]:
    """The tasks beside this one."""
    await asyncio.sleep(0)
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


# --- Nobody waits


@pytest.mark.parametrize(
    "place", ["setup", "tool", "async tool", "turn_reward", "reward", "cleanup"]
)
def test_a_slow_episode_delays_no_other_and_its_group_comes_last(
    place: str, make_env: Making, script: list[list[int]]
) -> None:
    """The slow place goes on only after every other group has come."""

    async def order() -> list[int]:
        seen = []
        groups = stream(
            make_env,
            ScriptedAgent(script),
            named(4, slow=place),
            group_size=2,
            sampling=Sampling(),
            concurrency=3,
        )
        async for group in groups:
            assert len(group) == 2
            seen.append(group.row_index)
            if len(seen) == 3:
                make_env.gate.set()
        return seen

    seen = asyncio.run(order())
    assert sorted(seen[:3]) == [1, 2, 3] and seen[3] == 0


def test_a_slow_wrapped_environment_delays_no_other(
    make_env: Making, script: list[list[int]]
) -> None:
    class Passing(gymnasium.Wrapper[Any, Any, Any, Any]):
        pass

    async def order() -> list[int]:
        seen = []
        groups = stream(
            lambda: Passing(make_env()),
            ScriptedAgent(script),
            named(3, slow="tool"),
            group_size=1,
            sampling=Sampling(),
            concurrency=2,
        )
        async for group in groups:
            seen.append(group.row_index)
            if len(seen) == 2:
                make_env.gate.set()
        return seen

    assert asyncio.run(order()) == [1, 2, 0]


def test_a_slow_answer_of_the_agent_delays_no_other(
    make_env: Making, script: list[list[int]], encode: Encode
) -> None:
    scripted = ScriptedAgent(script)
    hurry = asyncio.Event()
    marker = encode("r0 ")[0:2]

    class Thinking:
        async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
            starts = range(len(context_ids) - 1)
            if any(context_ids[i : i + len(marker)] == marker for i in starts):
                await hurry.wait()
            return await scripted.generate(context_ids, sampling)

    async def order() -> list[int]:
        seen = []
        groups = stream(
            make_env, Thinking(), named(3), group_size=2, sampling=Sampling(), concurrency=6
        )
        async for group in groups:
            seen.append(group.row_index)
            if len(seen) == 2:
                hurry.set()
        return seen

    assert asyncio.run(order())[-1] == 0


def test_collect_returns_groups_in_the_order_of_the_rows(
    make_env: Making, script: list[list[int]]
) -> None:
    progress: list[tuple[int, int]] = []
    rollouts = gather(
        make_env,
        ScriptedAgent(script),
        named(5),
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert [group.row_index for group in rollouts] == [0, 1, 2, 3, 4]
    assert [[t.row["name"] for t in group] for group in rollouts] == [
        [f"r{i}"] * 2 for i in range(5)
    ]
    assert len(rollouts.trajectories) == 10
    assert progress[-1] == (10, 10) and len(progress) == 5
    assert rollouts.metrics["reward/mean"] == 1.0
    assert rollouts.metrics["episodes/finished"] == 10
    assert rollouts.metrics["episodes/turns"] == 2.0
    assert rollouts.metrics["tools/calls"] == 20
    assert rollouts.metrics["episodes/calling"] == 1.0
    assert rollouts.metrics["episodes/only_malformed"] == 0.0
    assert rollouts.metrics["episodes/stop/answered"] == 1.0
    assert rollouts.metrics["tokens/sampled"] == 10 * sum(map(len, script))


def test_episodes_without_a_call_and_with_nothing_but_malformed_ones_are_told_apart(
    make_env: Making, script: list[list[int]], encode: Callable[[str], list[int]]
) -> None:
    malformed, answer = encode("<tool_call>{oops}</tool_call><|im_end|>"), script[-1]
    for turns, calling, only_malformed in (
        ([answer], 0.0, 0.0),
        ([malformed, answer], 1.0, 1.0),
        ([malformed, *script], 1.0, 0.0),
    ):
        metrics = gather(make_env, ScriptedAgent(turns), named(2)).metrics
        assert metrics["episodes/calling"] == calling
        assert metrics["episodes/only_malformed"] == only_malformed


def test_rollouts_are_shown_to_people_in_a_line(make_env: Making, script: list[list[int]]) -> None:
    rollouts = gather(make_env, ScriptedAgent(script), named(3))
    assert re.fullmatch(
        r"<Rollouts rows=3 episodes=6 mean_reward=\S+ stop_reasons=\{answered: 6\}>", repr(rollouts)
    )
    assert re.fullmatch(r"<Group row_index=1 episodes=2 rewards=\[\S+, \S+\]>", repr(rollouts[1]))
    assert "episodes=0" in repr(Rollouts([], {}))


def test_seconds_are_means_over_episodes_and_calls_are_sums(
    make_env: Making, script: list[list[int]]
) -> None:
    rollouts = gather(make_env, ScriptedAgent(script), named(5))
    each = [trajectory.metrics for trajectory in rollouts.trajectories]
    for name in ("model", "waiting", "environment", "environment/setup", "tool/look"):
        mean = sum(metrics[f"time/{name}_s"] for metrics in each) / 10
        assert rollouts.metrics[f"time/{name}_s"] == pytest.approx(mean)
    assert rollouts.metrics["tools/calls/look"] == 10


def test_no_rows_give_no_groups(make_env: Making, script: list[list[int]]) -> None:
    assert gather(make_env, ScriptedAgent(script), []) == []
    assert make_env.made == []


# --- Environments


def test_environments_are_few_reused_cleaned_up_and_closed(
    make_env: Making, script: list[list[int]]
) -> None:
    gather(make_env, ScriptedAgent(script), named(6), concurrency=3)
    assert 1 <= len(make_env.made) <= 3
    assert [env.close_called for env in make_env.made] == [1] * len(make_env.made)
    assert make_env.log["setup"] == make_env.log["cleanup"] == 12


def test_one_environment_does_for_a_concurrency_of_one(
    make_env: Making, script: list[list[int]]
) -> None:
    gather(make_env, ScriptedAgent(script), named(3), concurrency=1)
    assert len(make_env.made) == 1


def test_every_environment_is_closed_even_when_closing_one_fails(
    renderer: Renderer, script: list[list[int]]
) -> None:
    closed = []

    class Stubborn(Desk):
        def close(self) -> None:
            super().close()
            closed.append(self)
            raise OSError("the door is stuck")

    with pytest.raises(OSError, match="the door is stuck"):
        gather(lambda: Stubborn(renderer), ScriptedAgent(script), named(2), concurrency=4)
    assert len(closed) == 4


def test_an_environment_that_cannot_be_made_stops_everything(script: list[list[int]]) -> None:
    def make_env() -> Desk:
        raise ValueError("no such game")

    with pytest.raises(ValueError, match="no such game"):
        gather(make_env, ScriptedAgent(script), named(3))


# --- Seeds


def test_members_of_a_group_start_alike_and_sample_differently(
    make_env: Making, script: list[list[int]]
) -> None:
    agent = Listening(ScriptedAgent(script))
    rollouts = gather(make_env, agent, named(3), group_size=4)
    starts = [{tuple(t.ids[: t.prompt_length]) for t in group} for group in rollouts]
    assert [len(start) for start in starts] == [1, 1, 1]
    assert [len({t.seed for t in group}) for group in rollouts] == [1, 1, 1]
    assert len({group[0].seed for group in rollouts}) == 3
    assert len(set(agent.seeds)) == len(agent.seeds) == 3 * 4 * 2


def test_seeds_derive_from_the_collections_seed_and_the_row_index_alone(
    make_env: Making, script: list[list[int]]
) -> None:
    def seeds(seed: int, concurrency: int) -> tuple[list[int | None], set[int | None]]:
        agent = Listening(ScriptedAgent(script))
        rollouts = gather(make_env, agent, named(2), seed=seed, concurrency=concurrency)
        return [group[0].seed for group in rollouts], set(agent.seeds)

    assert seeds(1, concurrency=1) == seeds(1, concurrency=8)
    environment, sampling = seeds(1, 8)
    other_environment, other_sampling = seeds(2, 8)
    assert not set(environment) & set(other_environment)
    assert not sampling & other_sampling


def test_the_same_seed_gives_the_same_trajectories(tokenizer: Any) -> None:
    def parser(text: str) -> list[dict[str, Any]]:
        return [{"name": "look", "arguments": {}}]

    making = Making(Renderer(tokenizer, parser=parser), max_turns=2)
    model = tiny_model(seed=3)

    def trajectories(seed: int) -> list[Any]:
        agent = TransformersAgent(model, max_batch=1)
        sampling = Sampling(max_new_tokens=8)
        rollouts = gather(making, agent, named(2), sampling=sampling, seed=seed, concurrency=1)
        return [(t.ids, t.logprobs, t.messages, t.seed) for t in rollouts.trajectories]

    first = trajectories(0)
    assert first == trajectories(0)
    assert first != trajectories(1)
    assert len({tuple(ids) for ids, *_ in first}) == 4


# --- What goes wrong


class Boxed(Environment):
    """Has a box, in which the policy's code runs."""

    sandbox_spec = SandboxSpec()

    @tool
    def run(self, code: str) -> str:
        """Run code."""
        return self.sandbox.python(code).verdict

    def reward(self, episode: Any) -> float:
        return 1.0


def test_a_policy_that_breaks_its_box_is_not_sampled_again(renderer: Renderer, say: Say) -> None:
    """Its episodes stay in their groups with reward 0, and nothing counts as broken but its box."""
    breaks = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    rows = [{"prompt": "Go."}] * 2
    for code, reward in ((breaks, 0.0), ("1", 1.0)):
        agent = Listening(ScriptedAgent([say("", ("run", {"code": code})), say("Done.")]))
        env = Boxed(renderer, context_length=2000, sandbox="local")
        rollouts = gather(lambda env=env: env, agent, rows, concurrency=1)  # type: ignore[misc]
        assert [[t.reward for t in group] for group in rollouts] == [[reward] * 2] * 2
        assert all(t.terminated and t.action_tokens > 0 for t in rollouts.trajectories)
        assert len(agent.seeds) == 4 * (1 + int(reward))
        metrics = rollouts.metrics
        assert metrics["episodes/retried"] == metrics["episodes/left_out"] == 0
        assert metrics["sandbox/broken"] == 1.0 - reward


@pytest.mark.parametrize("place", ["setup", "tool", "turn_reward", "reward"])
def test_what_the_infrastructure_breaks_once_is_tried_again(
    place: str, make_env: Making, script: list[list[int]]
) -> None:
    agent = Listening(ScriptedAgent(script))
    rollouts = gather(make_env, agent, named(2, breaks_once=place), group_size=1)
    assert [len(group) for group in rollouts] == [1, 1]
    assert all(t.stop_reason is StopReason.answered for t in rollouts.trajectories)
    assert rollouts.metrics["episodes/retried"] == 1
    assert rollouts.metrics["episodes/left_out"] == 0
    assert len(set(agent.seeds)) == len(agent.seeds)  # another attempt samples anew
    assert make_env.log["cleanup"] == 3


@pytest.mark.parametrize("place", ["setup", "tool", "turn_reward", "reward"])
def test_what_the_infrastructure_breaks_twice_is_left_out_and_counted(
    place: str, make_env: Making, script: list[list[int]]
) -> None:
    rollouts = gather(make_env, ScriptedAgent(script), named(3, breaks=place))
    assert [len(group) for group in rollouts] == [0, 2, 2]
    assert rollouts.metrics["episodes/retried"] == 2
    assert rollouts.metrics["episodes/left_out"] == 2
    assert rollouts.metrics["episodes/finished"] == 4


def test_an_agent_that_is_lost_counts_as_infrastructure(
    make_env: Making, script: list[list[int]]
) -> None:
    scripted = ScriptedAgent(script)
    calls = 0

    class Flaky:
        async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
            nonlocal calls
            calls += 1
            if calls == 2:  # in the middle of the first episode
                raise InfrastructureError("the server is gone")
            return await scripted.generate(context_ids, sampling)

    rollouts = gather(make_env, Flaky(), named(1), group_size=1)
    assert len(rollouts[0]) == 1
    assert rollouts.metrics["episodes/retried"] == 1
    assert make_env.log["setup"] == make_env.log["cleanup"] == 2


def test_the_users_own_error_stops_everything_with_the_first_traceback_and_its_row(
    make_env: Making, script: list[list[int]]
) -> None:
    with pytest.raises(UserCodeError, match="typo in reward") as caught:
        gather(make_env, ScriptedAgent(script), named(3, raises="reward"))
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.hook == "reward"
    assert caught.value.row["name"] == "r0"
    assert all(env.close_called for env in make_env.made)


def test_as_many_of_the_users_errors_as_allowed_are_left_out(
    make_env: Making, script: list[list[int]]
) -> None:
    rows = named(3, raises="reward")
    rollouts = gather(make_env, ScriptedAgent(script), rows, max_failed_episodes=2)
    assert [len(group) for group in rollouts] == [0, 2, 2]
    assert rollouts.metrics["episodes/left_out"] == 2
    assert rollouts.metrics["episodes/retried"] == 0
    with pytest.raises(UserCodeError):
        gather(make_env, ScriptedAgent(script), rows, max_failed_episodes=1)


def test_a_row_without_what_the_environment_needs_stops_everything(
    renderer: Renderer, script: list[list[int]]
) -> None:
    class Plain(Environment):
        """Takes the row's prompt."""

    with pytest.raises(DataError, match="no 'prompt'"):
        gather(lambda: Plain(renderer), ScriptedAgent(script), [{"question": "?"}])


def test_a_row_whose_prompt_does_not_fit_is_skipped_and_counted(
    make_env: Making, script: list[list[int]]
) -> None:
    rollouts = gather(make_env, ScriptedAgent(script), named(3, long=3000), group_size=4)
    assert [len(group) for group in rollouts] == [0, 4, 4]
    assert rollouts.metrics["episodes/rows_skipped"] == 1
    assert rollouts.metrics["episodes/left_out"] == 0


def test_a_row_that_is_skipped_is_not_tried_again_for_every_member(
    make_env: Making, script: list[list[int]]
) -> None:
    gather(make_env, ScriptedAgent(script), named(1, long=3000), group_size=8, concurrency=1)
    assert make_env.log["setup"] == 1


# --- Ending early


def test_cancelling_the_consumer_leaves_no_task_running(
    make_env: Making, script: list[list[int]]
) -> None:
    async def scenario() -> set[str]:
        consumer = asyncio.create_task(
            collect(
                make_env,
                ScriptedAgent(script),
                named(4, slow="tool"),
                group_size=2,
                sampling=Sampling(),
            )
        )
        while make_env.log["reward"] < 6:
            await asyncio.sleep(0.001)
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        return await others_running()

    assert asyncio.run(scenario()) == set()
    assert make_env.log["reward"] < 8  # the slow ones were not waited for
    assert all(env.close_called == 1 for env in make_env.made)
    make_env.gate.set()


def test_a_stream_that_is_closed_leaves_no_task_running(
    make_env: Making, script: list[list[int]]
) -> None:
    async def scenario() -> set[str]:
        groups = stream(
            make_env,
            ScriptedAgent(script),
            named(4, slow="tool"),
            group_size=2,
            sampling=Sampling(),
            concurrency=4,
        )
        async with aclosing(groups):
            assert len(await anext(groups)) == 2
        return await others_running()

    assert asyncio.run(scenario()) == set()
    assert make_env.log["reward"] < 8  # the slow ones were not waited for
    assert all(env.close_called == 1 for env in make_env.made)


def test_an_error_of_the_progress_callback_leaves_no_task_running(
    make_env: Making, script: list[list[int]]
) -> None:
    def on_progress(done: int, total: int) -> None:
        raise ZeroDivisionError

    async def scenario() -> set[str]:
        rows = named(4, slow="tool")
        with pytest.raises(ZeroDivisionError):
            await collect(
                make_env,
                ScriptedAgent(script),
                rows,
                group_size=2,
                sampling=Sampling(),
                on_progress=on_progress,
            )
        return await others_running()

    assert asyncio.run(scenario()) == set()
    assert make_env.log["reward"] < 8  # the slow ones were not waited for
    assert all(env.close_called == 1 for env in make_env.made)


def test_stream_counts_what_it_was_given_to_count(
    make_env: Making, script: list[list[int]]
) -> None:
    counts = Counts()

    async def run() -> list[int]:
        rows = [*named(2, breaks="tool"), {"name": "long", "long": 3000}]
        groups = stream(
            make_env,
            ScriptedAgent(script),
            rows,
            group_size=2,
            sampling=Sampling(),
            counts=counts,
        )
        return sorted([group.row_index async for group in groups])

    assert asyncio.run(run()) == [0, 1, 2]
    assert (counts.finished, counts.retried, counts.left_out) == (6, 2, 2)
    assert counts.rows_skipped == {2}
    assert counts.user_errors == []
