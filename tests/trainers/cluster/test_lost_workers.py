"""Workers and nodes of a Ray cluster that are lost amid a collection: no episode is."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from gymnast.agents import ScriptedAgent
from gymnast.envs import Environment
from gymnast.trainers import RayWorkers, collect
from gymnast.types import Sampling
from ray_fixtures import NODE, timeless

pytestmark = pytest.mark.ray

SETTINGS: dict[str, Any] = {"group_size": 4, "sampling": Sampling(max_new_tokens=64), "seed": 7}


def rows(number: int, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"{i}: 2 + 3?", "answer": 5, **more} for i in range(number)]


def pids(workers: RayWorkers) -> list[int]:
    return [each.started.place.pid for each in workers.all() if each.started is not None]


def test_a_killed_worker_is_replaced_and_its_episodes_are_played_again(
    two_nodes: str, sums: Callable[[], Environment], adding: ScriptedAgent
) -> None:
    played = rows(16, wait_s=0.2)
    here = asyncio.run(collect(sums, adding, played, **SETTINGS))
    with RayWorkers(2, address=two_nodes) as workers:
        while len(first := pids(workers)) < 2:  # on a busy machine, one starts long after the other
            time.sleep(0.1)

        def kill(done: int, total: int) -> None:
            if done == 4 * 4:
                os.kill(first[0], signal.SIGKILL)

        playing = collect(
            *(sums, adding, played), **SETTINGS, concurrency=16, workers=workers, on_progress=kill
        )
        there = asyncio.run(playing)
        again = asyncio.run(collect(sums, adding, played[:4], **SETTINGS, workers=workers))
        assert first[0] not in pids(workers) and first[1] in pids(workers)
    assert timeless(there) == timeless(here)
    assert 0 < there.metrics["episodes/retried"] <= 16
    assert timeless(again) == timeless(here)[:4]


def test_an_episode_that_kills_every_worker_is_left_out(
    two_nodes: str, sums: Callable[[], Environment], adding: ScriptedAgent
) -> None:
    played = [*rows(1, kills=True), *rows(3)]
    there = asyncio.run(
        collect(
            *(sums, adding, played),
            **SETTINGS | {"group_size": 1},
            workers=RayWorkers(2, address=two_nodes),
        )
    )
    assert [len(group) for group in there] == [0, 1, 1, 1]
    assert there.metrics["episodes/left_out/infrastructure"] == 1


def test_nodes_may_come_and_go(
    cluster: Any, sums: Callable[[], Environment], adding: ScriptedAgent
) -> None:
    played, draws = rows(40, wait_s=0.3), random.Random(3)
    here = asyncio.run(collect(sums, adding, played, **SETTINGS))
    moments = sorted(draws.sample(range(8, 120), 2))

    def lose_a_node(done: int, total: int) -> None:
        if moments and done >= moments[0]:
            moments.pop(0)
            others = [node for node in cluster.list_all_nodes() if not node.head]
            cluster.remove_node(draws.choice(others), allow_graceful=False)
            cluster.add_node(**NODE)

    with RayWorkers(4, cpus=2, address=cluster.address) as workers:
        playing = collect(
            *(sums, adding, played),
            **SETTINGS,
            concurrency=12,
            workers=workers,
            on_progress=lose_a_node,
        )
        there = asyncio.run(playing)
    assert not moments
    assert timeless(there) == timeless(here)
    assert there.metrics["episodes/left_out"] == 0 < there.metrics["episodes/retried"]


def test_a_cancelled_collection_leaves_no_episode_running(
    two_nodes: str, sums: Callable[[], Environment], adding: ScriptedAgent
) -> None:
    async def cancelled(workers: RayWorkers) -> None:
        playing = asyncio.ensure_future(
            collect(sums, adding, rows(2, wait_s=60.0), **SETTINGS, workers=workers)
        )
        await asyncio.sleep(1.0)
        playing.cancel()
        await asyncio.wait((playing,))

    with RayWorkers(address=two_nodes) as workers:
        began = time.monotonic()
        asyncio.run(cancelled(workers))
        there = asyncio.run(collect(sums, adding, rows(2), **SETTINGS, workers=workers))
        assert time.monotonic() - began < 30.0
    assert [len(group) for group in there] == [4, 4]
