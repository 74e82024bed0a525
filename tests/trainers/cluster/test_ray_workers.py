"""Episodes on a Ray cluster of two nodes are those that this process plays."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gymnast.agents import ScriptedAgent
from gymnast.envs import Environment
from gymnast.errors import UserCodeError
from gymnast.trainers import RayWorkers, collect
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.types import Sampling, Trajectory
from ray_fixtures import timeless

pytestmark = pytest.mark.ray

ROWS: list[dict[str, Any]] = [{"prompt": f"{i}: 2 + 3?", "answer": 5 + i % 2} for i in range(6)]
SETTINGS: dict[str, Any] = {"group_size": 3, "sampling": Sampling(max_new_tokens=64), "seed": 7}


def length(trajectory: Trajectory) -> float:
    return float(len(trajectory.ids))


def test_workers_play_what_this_process_plays(
    two_nodes: str, sums: Callable[[], Environment], adding: ScriptedAgent
) -> None:
    settings = SETTINGS | {"rewards": [Reward("length", length, 0.5)]}
    here = asyncio.run(collect(sums, adding, ROWS, **settings))
    with RayWorkers(2, address=two_nodes) as workers:
        there = asyncio.run(collect(sums, adding, ROWS, **settings, workers=workers))
    assert timeless(here) == timeless(there)
    assert there.metrics["episodes/finished"] == 18


def test_an_error_of_the_users_code_arrives_with_its_hook_row_and_traceback(
    two_nodes: str, sums: Callable[[], Environment], adding: ScriptedAgent
) -> None:
    rows = [{"prompt": "2 + 3?", "answer": 5, "raises": True}]
    with pytest.raises(UserCodeError, match="no such answer") as caught:
        asyncio.run(collect(sums, adding, rows, **SETTINGS, workers=RayWorkers(address=two_nodes)))
    error = caught.value
    assert error.hook == "reward" and error.row["raises"] is True
    assert isinstance(error.__cause__, KeyError)
    (note,) = error.__cause__.__notes__
    assert "worker" in note and "ray_fixtures.py" in note and "in reward" in note
