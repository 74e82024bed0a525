"""The environments that workers keep, and the sandboxes that their nodes must be able to open."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents import ScriptedAgent
from gymnast.envs import Environment, Mixture, Renderer, compose, make
from gymnast.envs.registry import find
from gymnast.errors import ConfigError
from gymnast.sandboxes import SandboxSpec
from gymnast.shared_threads import limit_threads
from gymnast.trainers import RayWorkers, collect
from gymnast.trainers.rollouts.environments import environment_factory
from gymnast.types import Sampling

pytestmark = pytest.mark.ray

SETTINGS: dict[str, Any] = {"group_size": 1, "sampling": Sampling(max_new_tokens=16)}
ROWS: list[dict[str, Any]] = [{"prompt": f"Say {i}."} for i in range(3)]


class Counting(Environment):
    """Pays as much as there were episodes in this environment."""

    played = 0
    sandbox_spec = SandboxSpec()

    async def setup(self, row: Any) -> None:
        self.played += 1
        await self.sandbox.aexec(["true"])

    def reward(self, episode: Any) -> float:
        return float(self.played)


@pytest.fixture
def talking(say: Callable[..., list[int]]) -> ScriptedAgent:
    return ScriptedAgent([say("So be it.")])


def rewards(make_env: Callable[[], Any], agent: Any, workers: RayWorkers) -> list[float]:
    playing = collect(make_env, agent, ROWS, **SETTINGS, concurrency=1, workers=workers)
    return [trajectory.reward for trajectory in asyncio.run(playing).trajectories]


def test_workers_keep_environments_with_boxes_from_one_collection_to_the_next(
    two_nodes: str, renderer: Renderer, talking: ScriptedAgent
) -> None:
    def make_env() -> Environment:
        return Counting(renderer=renderer, sandbox="local")

    with RayWorkers(1, address=two_nodes) as workers:
        assert rewards(make_env, talking, workers) == [1.0, 2.0, 3.0]
        assert rewards(make_env, talking, workers) == [4.0, 5.0, 6.0]


class Talking(Environment):
    """Has no box."""

    def reward(self, episode: Any) -> float:
        return -1.0


class Boxed(Environment):
    """Has one."""

    sandbox_spec = SandboxSpec()

    async def setup(self, row: Any) -> None:
        await self.sandbox.awrite_file("asked", row["prompt"])

    async def reward(self, episode: Any) -> float:
        return float(len(await self.sandbox.aread_file("asked")))


def test_workers_play_mixtures(two_nodes: str, tokenizer: Any, talking: ScriptedAgent) -> None:
    rows = [{"environment": name, "prompt": f"Say {name}."} for name in ("talk", "box") * 2]
    boxed = compose(Boxed, Talking)
    mixture = Mixture({Talking: 1.0, boxed: 1.0}, names=["talk", "box"], sandbox="local")
    makers = {
        "talk": partial(make, Talking, tokenizer),
        "box": partial(make, boxed, tokenizer, sandbox="local"),
    }
    with RayWorkers(1, address=two_nodes) as workers:
        for make_env in (
            environment_factory(mixture, tokenizer, 512),
            partial(Mixture.of, {"talk": 1.0, "box": 1.0}, makers),  # as a YAML makes it
        ):
            playing = collect(make_env, talking, rows, **SETTINGS, workers=workers)
            found = asyncio.run(playing)
            assert [each.reward for each in found.trajectories] == [-1.0, 8.0, -1.0, 8.0]
            assert found.metrics["environments/box/reward/mean"] == 8.0


def test_the_boxes_of_all_environments_of_a_mixture_are_tried(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Any, talking: ScriptedAgent
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    mixture = Mixture({Talking: 1, Boxed: 1}, sandbox="docker")
    rows = [{"environment": "Talking", "prompt": "Say so."}]
    make_env = environment_factory(mixture, tokenizer, 512)
    with pytest.raises(ConfigError, match=r"cannot open the sandboxes of Boxed: .* Docker"):
        asyncio.run(collect(make_env, talking, rows, **SETTINGS, workers=RayWorkers()))


def test_a_node_without_docker_says_which_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, renderer: Renderer, talking: ScriptedAgent
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")

    def make_env() -> Environment:
        return make("gymnast/Python-v0", renderer, sandbox="docker")

    with pytest.raises(ConfigError) as caught:
        rewards(make_env, talking, RayWorkers())
    said = str(caught.value)
    assert said.startswith("rollouts.backend: ray: node 127.0.0.1 (")
    assert "no Docker engine answers at unix:///nonexistent.sock" in said
    assert "Set the backend 'docker' up on that node, or keep workers off it" in said


def test_what_cannot_be_pickled_is_named(
    two_nodes: str, renderer: Renderer, talking: ScriptedAgent
) -> None:
    lock = threading.Lock()

    def make_env() -> Environment:
        with lock:
            return Counting(renderer=renderer)

    with (
        RayWorkers(1, address=two_nodes) as workers,
        pytest.raises(ConfigError, match=r"the environment cannot be sent to the workers.*lock"),
    ):
        rewards(make_env, talking, workers)


CODE = """
from gymnast.envs import Environment
from beside_polite import least

class Polite(Environment):
    def reward(self, episode):
        return least() + len(episode.turns)
"""


def test_an_environment_of_a_file_reaches_workers_that_do_not_have_it(
    two_nodes: str, tmp_path: Path, tokenizer: Any, talking: ScriptedAgent
) -> None:
    (tmp_path / "polite.py").write_text(CODE)
    (tmp_path / "beside_polite.py").write_text("def least():\n    return 10.0\n")
    cls = find(f"{tmp_path}/polite.py:Polite")
    for path in tmp_path.glob("*.py"):
        path.unlink()  # as if the worker's machine had another disk
    make_env = environment_factory(cls, tokenizer, 512)
    with RayWorkers(1, address=two_nodes) as workers:
        assert rewards(make_env, talking, workers) == [11.0, 11.0, 11.0]


def test_a_factory_that_raises_on_a_worker_raises_here(
    two_nodes: str, talking: ScriptedAgent
) -> None:
    def make_env() -> Environment:
        raise ZeroDivisionError("no environment today")

    with RayWorkers(1, address=two_nodes) as workers:
        (before,) = workers.all()
        with pytest.raises(ZeroDivisionError, match="no environment today"):
            rewards(make_env, talking, workers)
        assert workers.all() == [before]  # it is not lost


class Threaded(Environment):
    """Pays the number of the thread that its sync code runs on."""

    def setup(self, row: Any) -> None:
        time.sleep(0.5)  # so that all episodes are under way at once

    def reward(self, episode: Any) -> float:
        return float(threading.get_ident())


def test_workers_have_as_many_threads_as_this_process_may_have(
    two_nodes: str, renderer: Renderer, talking: ScriptedAgent
) -> None:
    """`trainer.max_threads`, which a trainer sets by `limit_threads`."""
    limit_threads(2)
    try:
        playing = collect(
            *(lambda: Threaded(renderer=renderer), talking, ROWS * 3),
            **SETTINGS,
            workers=RayWorkers(1, address=two_nodes),
        )
        found = asyncio.run(playing).trajectories
    finally:
        limit_threads()
    assert len(found) == 9 and len({trajectory.reward for trajectory in found}) == 2
