"""`deterministic`: every batch is a function of the data alone, whatever the clock says."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from gymnast.agents import Agent, ScriptedAgent, TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import ConfigError, InfrastructureError
from gymnast.sandboxes import SandboxSpec
from gymnast.trainers import Group, Rollouts, collect, stream
from gymnast.trainers.rollouts.rounds import Rounds
from gymnast.types import Completion, Sampling

Encode = Callable[[str], list[int]]
Requests = Sequence[tuple[list[int], Sampling]]
END = "<|im_end|>"
SHORT = Sampling(max_new_tokens=6)


class Restless(Environment):
    """Everything takes a random time, and some rows go wrong."""

    def setup(self, row: Mapping[str, Any]) -> None:
        time.sleep(random.random() * 0.005)
        self.max_turns = row.get("turns", 3)

    @tool
    def wait(self, tag: int = 0) -> str:
        """Wait on a thread."""
        time.sleep(random.random() * 0.02)
        if self.row.get("breaks") and tag < 3:
            raise InfrastructureError("lost")
        return f"waited {tag}"

    @tool
    async def wait_on_the_loop(self, tag: int = 0) -> str:
        """Wait on the event loop."""
        await asyncio.sleep(random.random() * 0.02)
        return f"waited {tag}"

    def reward(self, episode: Any) -> float:
        if self.row.get("raises"):
            raise KeyError("typo")
        return float(len(episode.tool_calls))


def some_call(text: str) -> list[dict[str, Any]]:
    """A parser to whom all that a random model says is a call."""
    name = "wait" if len(text) % 2 else "wait_on_the_loop"
    return [{"name": name, "arguments": {"tag": len(text) % 7}}]


class Recording:
    """Hands requests on and keeps those of each `generate_all`."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.rounds: list[list[tuple[list[int], int | None]]] = []
        self.single_calls = 0

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        self.single_calls += 1
        found: Completion = await self.agent.generate(context_ids, sampling)
        return found

    async def generate_all(self, requests: Requests) -> list[Completion]:
        self.rounds.append([(list(ids), sampling.seed) for ids, sampling in requests])
        if hasattr(self.agent, "generate_all"):
            found: list[Completion] = await self.agent.generate_all(requests)
            return found
        return [await self.agent.generate(*request) for request in requests]


@pytest.fixture
def make_env(tokenizer: Any) -> Callable[[], Restless]:
    renderer = Renderer(tokenizer, parser=some_call)
    return lambda: Restless(renderer, context_length=500)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(seed=5)


def gather(make_env: Any, agent: Agent, rows: Any, **settings: Any) -> Rollouts:
    settings.setdefault("group_size", 1)
    settings.setdefault("sampling", SHORT)
    settings.setdefault("deterministic", True)
    return asyncio.run(collect(make_env, agent, rows, **settings))


def content(groups: Sequence[Group]) -> list[Any]:
    """Everything but what a clock measured."""
    return [
        (group.row_index, [(t.ids, t.logprobs, t.turn_rewards, t.stop_reason) for t in group])
        for group in sorted(groups, key=lambda group: group.row_index)
    ]


# --- A seeded run repeats


def test_two_runs_are_equal_bit_for_bit_however_long_tools_take(
    make_env: Callable[[], Restless], model: Any
) -> None:
    """Sixteen at once of forty, on a real model; some break, some raise, some are skipped."""
    rows: list[dict[str, Any]] = [{"prompt": f"row {i}", "turns": 1 + i % 4} for i in range(10)]
    rows[3]["breaks"] = rows[5]["raises"] = True
    rows[7]["prompt"] = "word " * 3000

    def run() -> tuple[Any, Any, dict[str, float], int]:
        agent = Recording(TransformersAgent(model))
        settings: dict[str, Any] = {"group_size": 4, "concurrency": 16, "max_failed_episodes": 4}
        found = gather(make_env, agent, rows, **settings)
        counts = {k: v for k, v in found.metrics.items() if k.startswith("episodes/")}
        assert agent.single_calls == 0
        return content(found), agent.rounds, counts, agent.agent.tokens_pushed

    first, second = run(), run()
    assert first == second
    _, _, counts, _ = first
    assert counts["episodes/retried"] > 0
    assert counts["episodes/finished"] == 32 - counts["episodes/left_out/infrastructure"]
    assert counts["episodes/left_out/user_code"] == 4
    assert counts["episodes/rows_skipped"] == 1


@pytest.mark.parametrize(("concurrency", "rows"), [(2, 2), (2, 1), (1, 2)])
def test_a_round_that_would_wait_for_ever_for_boxes_is_refused(
    tokenizer: Any, model: Any, concurrency: int, rows: int
) -> None:
    """Who has a box waits for the round, and the round for who waits for a box."""

    class Boxed(Environment):
        sandbox_spec = SandboxSpec()

    def make_env() -> Boxed:
        sandbox = {"backend": "local", "max_boxes": 1}
        return Boxed(Renderer(tokenizer), max_turns=1, sandbox=sandbox)

    async def play() -> Rollouts:
        return await asyncio.wait_for(
            collect(
                make_env,
                TransformersAgent(model),
                [{"prompt": f"row {i}"} for i in range(rows)],
                group_size=1,
                sampling=SHORT,
                concurrency=concurrency,
                deterministic=True,
            ),
            60,
        )

    if min(concurrency, rows) == 1:
        assert len(asyncio.run(play()).trajectories) == rows
    else:
        with pytest.raises(ConfigError, match=r"max_boxes: 1.* concurrency to 1, or .* to 2"):
            asyncio.run(play())


def test_a_slow_consumer_changes_nothing(make_env: Callable[[], Restless], model: Any) -> None:
    rows = [{"prompt": f"row {i}", "turns": 1 + i % 3} for i in range(8)]

    async def taken(pause_s: float) -> tuple[Any, Any]:
        agent = Recording(TransformersAgent(model))
        groups = stream(
            make_env,
            agent,
            rows,
            group_size=2,
            sampling=SHORT,
            concurrency=4,
            max_waiting_groups=1,
            deterministic=True,
        )
        found = []
        async for group in groups:
            found.append(group)
            await asyncio.sleep(pause_s)
        return content(found), agent.rounds

    assert asyncio.run(taken(0.0)) == asyncio.run(taken(0.03))


# --- What a round is


def test_a_round_has_a_request_of_every_live_episode_in_the_order_of_contexts_and_seeds(
    make_env: Callable[[], Restless], encode: Encode
) -> None:
    """Episode i has 1 + i % 3 turns; four at once; a place that gets free is filled in time."""
    rows = [{"prompt": f"row {i}", "turns": 1 + i % 3} for i in range(9)]
    agent = Recording(ScriptedAgent(lambda ids: encode("call" + END)))
    gather(make_env, agent, rows, concurrency=4)
    expected, waiting, live = [], [1 + i % 3 for i in range(9)], list[int]()
    while waiting or live:
        while waiting and len(live) < 4:
            live.append(waiting.pop(0))
        expected.append(len(live))
        live = [turns - 1 for turns in live if turns > 1]
    assert [len(requests) for requests in agent.rounds] == expected
    assert all(requests == sorted(requests) for requests in agent.rounds)
    assert agent.single_calls == 0


def test_members_of_one_row_are_told_apart_by_their_seeds(
    make_env: Callable[[], Restless], encode: Encode
) -> None:
    agent = Recording(ScriptedAgent(lambda ids: encode("call" + END)))
    gather(make_env, agent, [{"prompt": "row", "turns": 1}], group_size=5)
    (requests,) = agent.rounds
    assert len({tuple(ids) for ids, _ in requests}) == 1
    assert len({seed for _, seed in requests}) == 5


def test_an_agent_that_takes_single_requests_gets_each_and_answers_each(
    make_env: Callable[[], Restless], encode: Encode
) -> None:
    """What one request raises is that episode's alone."""
    said = encode("call" + END)

    class Single:
        calls = together = at_once = 0

        async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
            self.calls += 1
            fails = self.calls == 2
            self.together += 1
            await asyncio.sleep(0)
            self.at_once = max(self.at_once, self.together)
            await asyncio.sleep(0)
            self.together -= 1
            if fails:
                raise InfrastructureError("this one is lost")
            return Completion(said, [0.0] * len(said), "stop")

    agent = Single()
    rows = [{"prompt": f"row {i}", "turns": 1} for i in range(3)]
    rollouts = gather(make_env, agent, rows)
    assert [len(group) for group in rollouts] == [1, 1, 1]
    assert rollouts.metrics["episodes/retried"] == 1
    assert (agent.at_once, agent.calls) == (3, 4)


def test_an_agent_that_is_lost_amid_a_round_is_asked_again(
    make_env: Callable[[], Restless], encode: Encode
) -> None:
    class Flaky(Recording):
        async def generate_all(self, requests: Requests) -> list[Completion]:
            found = await super().generate_all(requests)
            if len(self.rounds) == 1:
                raise InfrastructureError("the server is gone")
            return found

    agent = Flaky(ScriptedAgent(lambda ids: encode("call" + END)))
    rows = [{"prompt": f"row {i}", "turns": 1} for i in range(3)]
    rollouts = gather(make_env, agent, rows)
    assert [len(group) for group in rollouts] == [1, 1, 1]
    assert rollouts.metrics["episodes/retried"] == 3
    assert [len(requests) for requests in agent.rounds] == [3, 3]


@pytest.mark.parametrize("method", ["generate", "generate_all"])
def test_an_agent_that_cancels_its_own_work_counts_as_infrastructure(
    method: str, make_env: Callable[[], Restless]
) -> None:
    class Dropping:
        async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
            raise asyncio.CancelledError

    async def generate_all(requests: Requests) -> list[Completion]:
        raise asyncio.CancelledError

    agent = Dropping()
    if method == "generate_all":
        agent.generate_all = generate_all  # type: ignore[attr-defined]
    rollouts = gather(make_env, agent, [{"prompt": f"row {i}"} for i in range(3)])
    assert rollouts.metrics["episodes/left_out/infrastructure"] == 3


def test_the_wait_for_a_round_is_waiting_and_not_the_models_time(
    make_env: Callable[[], Restless], encode: Encode
) -> None:
    class Late(Restless):
        def setup(self, row: Mapping[str, Any]) -> None:
            self.max_turns = 1
            time.sleep(row["wait_s"])

    renderer = make_env().renderer
    rows = [{"prompt": "quick", "wait_s": 0.0}, {"prompt": "slow", "wait_s": 1.0}]
    agent = ScriptedAgent(lambda ids: encode("call" + END))
    ((quick,), (slow,)) = gather(lambda: Late(renderer), agent, rows)
    assert quick.metrics["time/waiting_s"] > slow.metrics["time/waiting_s"]
    assert slow.metrics["time/environment_s"] >= 1.0


# --- Ending early


class Endless:
    """Never answers, and counts how many rounds are under way and were cancelled."""

    begun = cancelled = 0

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        raise AssertionError("not in a round")

    async def generate_all(self, requests: Requests) -> list[Completion]:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError


async def others_running() -> set[str]:
    await asyncio.sleep(0)
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def test_a_deadline_cancels_the_round_under_way(make_env: Callable[[], Restless]) -> None:
    agent = Endless()

    async def scenario() -> tuple[Rollouts, set[str]]:
        rollouts = await collect(
            make_env,
            agent,
            [{"prompt": "row"}] * 5,
            group_size=2,
            sampling=SHORT,
            concurrency=4,
            deadline_s=0.5,
            deterministic=True,
        )
        return rollouts, await others_running()

    rollouts, running = asyncio.run(scenario())
    assert rollouts.metrics["episodes/left_out/deadline"] == 10
    assert (agent.begun, agent.cancelled, running) == (1, 1, set())


def test_a_deadline_that_comes_while_a_round_is_gathered_begins_no_round(
    make_env: Callable[[], Restless],
) -> None:
    gate = threading.Event()

    class Stuck(Restless):
        def setup(self, row: Mapping[str, Any]) -> None:
            if row["stuck"]:
                gate.wait(timeout=30)

    renderer = make_env().renderer
    agent = Endless()
    rows = [{"prompt": "row", "stuck": i == 2} for i in range(3)]
    rollouts = gather(lambda: Stuck(renderer), agent, rows, deadline_s=0.5)
    gate.set()
    assert rollouts.metrics["episodes/left_out/deadline"] == 3
    assert agent.begun == 0


def test_a_call_that_is_cancelled_before_its_round_is_left_out_of_it() -> None:
    agent = Recording(ScriptedAgent(lambda ids: [7]))

    async def scenario() -> list[Completion]:
        rounds = Rounds(agent)
        rounds.expect(3)
        calls = [asyncio.create_task(rounds.generate([n], Sampling(seed=n))) for n in (1, 2)]
        await asyncio.sleep(0)
        calls[0].cancel()
        last = asyncio.create_task(rounds.generate([3], Sampling(seed=3)))
        await asyncio.sleep(0)
        assert agent.rounds == []  # of three live ones, one has gone
        rounds.expect(2)
        return [await calls[1], await last]

    assert [completion.ids for completion in asyncio.run(scenario())] == [[7], [7]]
    assert agent.rounds == [[([2], 2), ([3], 3)]]


# --- Without it


def test_without_deterministic_every_request_goes_to_the_agent_as_it_comes(
    tokenizer: Any, encode: Encode
) -> None:
    """One tool is slow until all other episodes are over, which no round would survive."""
    over = threading.Event()

    class Slow(Environment):
        ended = 0

        @tool
        def wait(self) -> str:
            """Wait."""
            if self.row["prompt"] == "row 0":
                assert over.wait(timeout=30), "the others waited for this one"
            return "waited"

        def reward(self, episode: Any) -> float:
            Slow.ended += 1
            if Slow.ended == 3:
                over.set()
            return 1.0

    renderer = Renderer(tokenizer, parser=lambda text: [{"name": "wait", "arguments": {}}])
    agent = Recording(ScriptedAgent(lambda ids: encode("call" + END)))
    rows = [{"prompt": f"row {i}"} for i in range(4)]
    rollouts = gather(lambda: Slow(renderer, max_turns=3), agent, rows, deterministic=False)
    assert [len(group) for group in rollouts] == [1, 1, 1, 1]
    assert (agent.rounds, agent.single_calls) == ([], 12)
