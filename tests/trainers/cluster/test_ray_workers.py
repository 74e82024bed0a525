"""Episodes on a Ray cluster of two nodes are those that this process plays."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gymnast.agents import ScriptedAgent
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import UserCodeError
from gymnast.trainers import RayWorkers, Rollouts, collect
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.types import Sampling, Trajectory

pytestmark = pytest.mark.ray


class Sums(Environment):
    """Add numbers; a row may ask for what goes wrong."""

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        await asyncio.sleep(self.row.get("wait_s", 0.0))
        return a + b

    def reward(self, episode: Any) -> float:
        if self.row.get("raises"):
            raise KeyError("no such answer")
        return float(str(self.row["answer"]) in episode.answer)


def length(trajectory: Trajectory) -> float:
    return float(len(trajectory.ids))


@pytest.fixture
def make_env(renderer: Renderer) -> Callable[[], Environment]:
    return lambda: Sums(renderer=renderer)


@pytest.fixture
def agent(say: Callable[..., list[int]]) -> ScriptedAgent:
    return ScriptedAgent([say("", ("add", {"a": 2, "b": 3})), say("It is 5.")])


def timeless(rollouts: Rollouts) -> list[list[Trajectory]]:
    """Groups without what a clock measured."""
    return [
        [
            replace(t, metrics={k: v for k, v in t.metrics.items() if not k.startswith("time/")})
            for t in group
        ]
        for group in rollouts
    ]


ROWS: list[dict[str, Any]] = [{"prompt": f"{i}: 2 + 3?", "answer": 5 + i % 2} for i in range(6)]
SETTINGS: dict[str, Any] = {"group_size": 3, "sampling": Sampling(max_new_tokens=64), "seed": 7}


def test_workers_play_what_this_process_plays(
    two_nodes: str, make_env: Callable[[], Environment], agent: ScriptedAgent
) -> None:
    settings = SETTINGS | {"rewards": [Reward("length", length, 0.5)]}
    here = asyncio.run(collect(make_env, agent, ROWS, **settings))
    with RayWorkers(2, address=two_nodes) as workers:
        places = {each.started.place.node for each in workers.all() if each.started}
        there = asyncio.run(collect(make_env, agent, ROWS, **settings, workers=workers))
    assert timeless(here) == timeless(there)
    assert there.metrics["episodes/finished"] == 18
    assert len(places) <= 2


def test_an_error_of_the_users_code_arrives_with_its_hook_row_and_traceback(
    two_nodes: str, make_env: Callable[[], Environment], agent: ScriptedAgent
) -> None:
    rows = [{"prompt": "2 + 3?", "answer": 5, "raises": True}]
    with pytest.raises(UserCodeError, match="no such answer") as caught:
        asyncio.run(
            collect(make_env, agent, rows, **SETTINGS, workers=RayWorkers(address=two_nodes))
        )
    error = caught.value
    assert error.hook == "reward" and error.row["raises"] is True
    assert isinstance(error.__cause__, KeyError)
    (note,) = error.__cause__.__notes__
    assert "worker" in note and "test_ray_workers.py" in note and "in reward" in note
