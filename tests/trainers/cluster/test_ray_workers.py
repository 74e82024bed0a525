"""Episodes on a Ray cluster of two nodes are those that this process plays."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import gymnasium
import pytest

from gymnast.agents import ScriptedAgent, TransformersAgent, load_model
from gymnast.commands.output import print_traceback
from gymnast.envs import Environment, Renderer
from gymnast.errors import UserCodeError
from gymnast.trainers import DynamicSampling, RayWorkers, collect, stream
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.types import Completion, Sampling, Trajectory
from ray_fixtures import timeless

pytestmark = pytest.mark.ray

ROWS: list[dict[str, Any]] = [{"prompt": f"{i}: 2 + 3?", "answer": 5 + i % 2} for i in range(6)]
SETTINGS: dict[str, Any] = {"group_size": 3, "sampling": Sampling(max_new_tokens=64), "seed": 7}


@pytest.fixture(scope="module")
def workers(cluster: Any) -> Iterator[RayWorkers]:
    """Two workers for all tests of this file."""
    with RayWorkers(2, address=cluster.address) as started:
        yield started


def length(trajectory: Trajectory) -> float:
    return float(len(trajectory.ids))


def test_workers_play_what_this_process_plays(
    workers: RayWorkers, sums: Callable[[], Environment], adding: ScriptedAgent
) -> None:
    settings = SETTINGS | {"rewards": [Reward("length", length, 0.5)]}
    here = asyncio.run(collect(sums, adding, ROWS, **settings))
    there = asyncio.run(collect(sums, adding, ROWS, **settings, workers=workers))
    assert timeless(here) == timeless(there)
    assert there.metrics["episodes/finished"] == 18


def test_an_error_of_the_users_code_arrives_with_its_hook_row_and_traceback(
    workers: RayWorkers,
    sums: Callable[[], Environment],
    adding: ScriptedAgent,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"prompt": "2 + 3?", "answer": 5, "raises": True}]
    with pytest.raises(UserCodeError, match="no such answer") as caught:
        asyncio.run(collect(sums, adding, rows, **SETTINGS, workers=workers))
    error = caught.value
    assert error.hook == "reward" and error.row["raises"] is True
    assert isinstance(error.__cause__, KeyError)
    (note,) = error.__cause__.__notes__
    assert "worker" in note and "ray_fixtures.py" in note and "in reward" in note
    print_traceback(error)  # as the command line does
    assert "in reward" in capsys.readouterr().err


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_agent_of_this_process_is_asked_by_the_workers(
    workers: RayWorkers, sums: Callable[[], Environment], deterministic: bool
) -> None:
    model, tokenizer = load_model("tiny:")
    settings = SETTINGS | {"sampling": Sampling(max_new_tokens=12), "deterministic": deterministic}
    here = asyncio.run(collect(sums, TransformersAgent(model, tokenizer), ROWS, **settings))
    agent = TransformersAgent(model, tokenizer)
    there = asyncio.run(collect(sums, agent, ROWS, **settings, workers=workers))
    for ours, theirs in zip(here.trajectories, there.trajectories, strict=True):
        assert ours.ids == theirs.ids and ours.messages == theirs.messages
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=0.0 if deterministic else 1e-4)


class Customer(Environment):
    """The agent plays the customer as well, and two critics who speak at once."""

    async def respond(self, message: Any) -> Any:
        talk: list[Any] = [{"role": "system", "content": "You are a customer."}]
        talk += [{"role": "user", "content": message["content"]}]
        said = await asyncio.gather(self.ask_agent(talk), self.ask_agent(talk[1:]))
        return [{"role": "user", "content": said[0]["content"]}]

    def reward(self, episode: Any) -> float:
        return float(len(episode.turns))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("stays", [False, True], ids=["sent", "asked"])
def test_hooks_on_workers_ask_the_agent(
    workers: RayWorkers, renderer: Renderer, *, stays: bool, wrapped: bool, deterministic: bool
) -> None:
    def make_env() -> Any:
        env = Customer(renderer, max_turns=2)
        return gymnasium.wrappers.OrderEnforcing(env) if wrapped else env

    agent = Echo(renderer, threading.Lock() if stays else None)  # a lock cannot be sent
    settings = SETTINGS | {"deterministic": deterministic}
    here = asyncio.run(collect(make_env, agent, ROWS, **settings))
    there = asyncio.run(collect(make_env, agent, ROWS, **settings, workers=workers))
    assert timeless(here) == timeless(there)
    assert all(len(each.turns) == 2 for each in there.trajectories)
    assert len({each.messages[2]["content"] for each in there.trajectories}) == 18


class Echo:
    """Says the seed of each request, which differs from message to message."""

    def __init__(self, renderer: Renderer, kept: Any) -> None:
        self.renderer, self.kept = renderer, kept

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        message = {"role": "assistant", "content": f"{len(context_ids)} {sampling.seed}"}
        ids = self.renderer.encode(message)
        return Completion(ids, [0.0] * len(ids), "stop")


def test_what_holds_here_holds_on_workers(
    workers: RayWorkers, sums: Callable[[], Environment], adding: ScriptedAgent
) -> None:
    """Dynamic sampling, too many failures, skipped rows, a deadline; the workers go on."""
    raising = [{"prompt": "2 + 3?", "answer": 5, "raises": True}, *ROWS]
    too_long = [{"prompt": "2 + 3? " * 5000, "answer": 5}, *ROWS]
    slow = [{"prompt": "2 + 3?", "answer": 5, "wait_s": 60.0}, *ROWS]
    cases: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
        (ROWS, {"dynamic_sampling": DynamicSampling(2, lambda group: group[0].reward == 0.0)}),
        (raising, {"max_failed_episodes": 3}),
        (too_long, {}),
        (slow, {"deadline_s": 3.0}),
        (ROWS, {}),
    ]
    for rows, more in cases:
        here = asyncio.run(collect(sums, adding, rows, **SETTINGS, **more))
        there = asyncio.run(collect(sums, adding, rows, **SETTINGS, **more, workers=workers))
        assert timeless(there) == timeless(here)
        counted = {k for k in here.metrics if not k.startswith("time/")}
        assert {k: there.metrics[k] for k in counted} == {k: here.metrics[k] for k in counted}


def test_a_stream_that_is_closed_early_ends_its_episodes(
    workers: RayWorkers, sums: Callable[[], Environment], adding: ScriptedAgent
) -> None:
    async def first() -> int:
        async with aclosing(stream(sums, adding, ROWS * 50, **SETTINGS, workers=workers)) as groups:
            async for group in groups:
                return len(group)
        return 0

    assert asyncio.run(first()) == 3
    assert asyncio.run(first()) == 3
