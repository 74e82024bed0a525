"""Boxes are killed, paused and removed, engines stopped and started, while episodes run.

No hang, no wrong reward, no leak, and every episode accounted for.
"""

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine_fixtures import OwnEngine
from gymnast.agents import ScriptedAgent
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import SandboxDead
from gymnast.sandboxes import Sandbox, SandboxPool, SandboxSpec
from gymnast.sandboxes.docker.engine import ENGINE_ERRORS, engine_client
from gymnast.trainers import Rollouts, collect
from gymnast.types import Sampling, StopReason
from pool_fixtures import eventually, local_workers

Encode = Callable[[str], list[int]]
Write = Callable[..., str]
END = "<|im_end|>"
HANG_S = 400.0


class Squares(Environment):
    """Squares a number that is only in the episode's own box."""

    def __init__(self, *arguments: Any, pool: SandboxPool, ended: list[int], **own: Any) -> None:
        super().__init__(*arguments, **own)
        self.pool, self.ended = pool, ended
        self.box: Sandbox | None = None

    async def setup(self, row: Mapping[str, Any]) -> None:
        self.box = await self.pool.atake()
        assert "fresh" in await self._run("'number' in globals() or print('fresh')")
        await self._run(f"number = {row['number']}")

    @tool
    async def square(self) -> str:
        """Square the number."""
        return await self._run("import time; time.sleep(0.02); print(number ** 2)")

    async def _run(self, code: str) -> str:
        assert self.box is not None
        result = await self.box.apython(code)
        if result.verdict in ("dead", "timeout"):
            raise SandboxDead(f"{result.verdict}: {result.stderr}")
        return result.stdout

    def reward(self, episode: Any) -> float:
        (call,) = episode.tool_calls
        answers = [m["content"] for m in episode.messages if m["role"] == "tool"]
        assert call.name == "square"
        return float(answers == [f"{self.row['number'] ** 2}\n"])

    async def cleanup(self) -> None:
        box, self.box = self.box, None
        if box is not None:
            await box.aclose()
        self.ended.append(1)


class Chaos:
    """Harms something at random, again and again, while its block runs."""

    def __init__(self, harm: Callable[[random.Random], object], every_s: float) -> None:
        self._harm, self._every_s = harm, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done = 0

    def _run(self) -> None:
        chance = random.Random(0)
        while not self._over.wait(chance.uniform(0, 2 * self._every_s)):
            self.done += bool(self._harm(chance))

    def __enter__(self) -> "Chaos":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def run_episodes(renderer: Renderer, encode: Encode, write_call: Write) -> Callable[..., Rollouts]:
    agent_turns = [encode(write_call("square") + END), encode("Done." + END)]

    def run_episodes(pool: SandboxPool, rows: int, ended: list[int]) -> Rollouts:
        async def run() -> Rollouts:
            async with asyncio.timeout(HANG_S):
                return await collect(
                    lambda: Squares(renderer, pool=pool, ended=ended, context_length=2000),
                    ScriptedAgent(agent_turns),
                    [{"prompt": f"Row {n}.", "number": 1000 + n} for n in range(rows)],
                    group_size=4,
                    sampling=Sampling(),
                    concurrency=16,
                )

        return asyncio.run(run())

    return run_episodes


def check_accounts(rollouts: Rollouts, episodes: int) -> None:
    """Every episode is there with the reward it must have, or was left out and counted."""
    finished = [trajectory for group in rollouts for trajectory in group]
    metrics = rollouts.metrics
    assert all(t.reward == 1.0 and t.stop_reason is StopReason.answered for t in finished)
    assert len(finished) + metrics["episodes/left_out"] == episodes
    assert metrics["episodes/left_out"] == metrics["episodes/left_out/infrastructure"]
    assert len(finished) >= 0.8 * episodes


@pytest.fixture
def no_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test leaves no descriptors, threads, processes and files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    asyncio.run(asyncio.sleep(0))
    before = threading.active_count(), descriptors(), local_workers()
    yield
    assert eventually(lambda: threading.active_count() <= before[0])
    # A worker of an earlier test's pool may have ended in the meantime.
    assert eventually(lambda: set(local_workers()) <= set(before[2]))
    assert eventually(lambda: descriptors() <= before[1]), descriptors() - before[1]
    assert list(folder.iterdir()) == []


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def kill_a_worker(chance: random.Random) -> bool:
    workers = local_workers()
    if not workers:
        return False
    os.kill(chance.choice(workers), signal.SIGKILL)
    return True


@pytest.mark.usefixtures("no_leaks")
def test_local_workers_killed_while_episodes_run(run_episodes: Callable[..., Rollouts]) -> None:
    with SandboxPool("local", max_boxes=6) as pool:
        pool.take().close()  # a backend that has never worked is given up at its first failure
        with Chaos(kill_a_worker, 0.15) as chaos:
            rollouts = run_episodes(pool, 10, [])
        check_accounts(rollouts, 40)
        assert chaos.done > 0
        assert eventually(lambda: pool.statistics().taken == 0)


# --- Containers


@pytest.fixture
def spec(docker_image: str) -> SandboxSpec:
    return SandboxSpec(image=docker_image, timeout_s=2.0, start_timeout_s=8.0)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.sandboxes.worker.sandbox.GRACE_S", 1.0)


def own_containers() -> list[str]:
    mine = {"label": f"gymnast.owner.pid={os.getpid()}"}
    return [found["Id"] for found in engine_client().containers(all=True, filters=mine)]


def harm_a_container(chance: random.Random) -> bool:
    """Kill, pause or remove one; the engine may be down, or the container gone by then."""
    api = engine_client()
    try:
        ids = own_containers()
        if ids:
            harm = chance.choice(
                [api.kill, api.pause, lambda id: api.remove_container(id, force=True)]
            )
            harm(chance.choice(ids))
        return bool(ids)
    except ENGINE_ERRORS:
        return False


@pytest.fixture
def no_containers_left() -> Iterator[None]:
    assert own_containers() == []
    engine_client().close()  # its idle connections are no leak
    yield
    assert eventually(lambda: own_containers() == []), own_containers()
    engine_client().close()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.usefixtures("short_grace", "no_leaks", "no_containers_left")
def test_containers_killed_paused_and_removed_while_200_episodes_run(
    run_episodes: Callable[..., Rollouts], spec: SandboxSpec
) -> None:
    pool = SandboxPool("docker", spec=spec, warm=8)
    with pool, Chaos(harm_a_container, 1.5) as chaos:
        check_accounts(run_episodes(pool, 50, []), 200)
        assert chaos.done > 5
    assert eventually(lambda: pool.statistics().living == 0)


class Interruptions:
    """Stops the engine when so many episodes have ended, and starts it again a while later."""

    def __init__(self, engine: OwnEngine, ended: list[int]) -> None:
        self._engine, self._ended = engine, ended
        self._left = [(50, signal.SIGKILL), (100, signal.SIGTERM), (150, signal.SIGKILL)]
        self.done = 0

    def __call__(self, chance: random.Random) -> bool:
        if not self._left or len(self._ended) < self._left[0][0]:
            return False
        self._engine.stop(self._left.pop(0)[1])
        threading.Event().wait(1.0)
        self._engine.start()
        self.done += 1
        return True


@pytest.fixture
def engine_host(own_engine: OwnEngine, monkeypatch: pytest.MonkeyPatch) -> OwnEngine:
    monkeypatch.setenv("DOCKER_HOST", own_engine.address)
    return own_engine


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.usefixtures("short_grace", "engine_host", "no_leaks", "no_containers_left")
def test_the_engine_is_stopped_and_started_while_200_episodes_run(
    run_episodes: Callable[..., Rollouts], spec: SandboxSpec, own_engine: OwnEngine
) -> None:
    ended: list[int] = []
    interruptions = Interruptions(own_engine, ended)
    pool = SandboxPool("docker", spec=spec, warm=8)
    with pool, Chaos(interruptions, 0.02):
        check_accounts(run_episodes(pool, 50, ended), 200)
        assert interruptions.done == 3
        assert pool.statistics().failures > 0
    assert eventually(lambda: pool.statistics().living == 0)
