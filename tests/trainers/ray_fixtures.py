"""Local Ray clusters for tests: two nodes on the loopback, and environments to play on them."""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gymnast.agents import ScriptedAgent
from gymnast.envs import Environment, Renderer, tool
from gymnast.trainers import Rollouts
from gymnast.types import Trajectory


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
        if self.row.get("kills"):
            os._exit(1)
        return a + b

    def reward(self, episode: Any) -> float:
        if self.row.get("raises"):
            raise KeyError("no such answer")
        return float(str(self.row["answer"]) in episode.answer)


@pytest.fixture
def sums(renderer: Renderer) -> Callable[[], Environment]:
    return lambda: Sums(renderer=renderer)


@pytest.fixture
def adding(say: Callable[..., list[int]]) -> ScriptedAgent:
    """An agent that calls `add` and then says "It is 5."."""
    return ScriptedAgent([say("", ("add", {"a": 2, "b": 3})), say("It is 5.")])


def timeless(rollouts: Rollouts) -> list[list[Trajectory]]:
    """Groups without what a clock measured."""
    return [[_timeless(trajectory) for trajectory in group] for group in rollouts]


def _timeless(trajectory: Trajectory) -> Trajectory:
    metrics = {k: v for k, v in trajectory.metrics.items() if not k.startswith("time/")}
    return replace(trajectory, metrics=metrics)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes; one for a file of tests."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # every address is 127.0.0.1
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_AUTH_MODE", "disabled")
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        made.add_node(**NODE)
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()
        patch.undo()


NODE = {"num_cpus": 4, "object_store_memory": 100 * 2**20}


@pytest.fixture
def two_nodes(cluster: Any) -> str:
    """The address of a cluster of two nodes."""
    return str(cluster.address)
