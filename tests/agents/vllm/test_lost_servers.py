"""Servers that are killed, stopped or out of memory amid a step: no episode is lost or doubled.

Two servers that were started serve all tests of this file: what is killed is started again, with
the weights that it began with, and has those of now before it is asked.
"""

import asyncio
import os
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import torch

from gymnast.agents import PolicyWeights, VLLMAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.vllm.launch import Launched
from gymnast.envs import Environment, Renderer
from gymnast.errors import NoServers
from gymnast.trainers import Trainer, collect, load_rollouts
from gymnast.types import Sampling, Trajectory
from vllm_fixtures import Serve

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
ROWS = [{"prompt": f"Count to {number}."} for number in range(8)]
MEMBERS = 4
SAMPLING = Sampling(max_new_tokens=64)
BACK_S = 400.0


class Plain(Environment):
    """Nothing to do but answer."""

    def reward(self, episode: Any) -> float:
        return float(len(episode.answer) % 2)


@pytest.fixture(scope="module")
def pair(serve: Serve) -> Launched:
    return serve(servers=2)


@pytest.fixture
def urls(pair: Launched) -> list[str]:
    """Of both servers, which answer."""
    for url in pair.urls:
        until = time.monotonic() + BACK_S
        while not answers(url):
            assert time.monotonic() < until, f"{url} is not back"
            time.sleep(0.5)
    return list(pair.urls)


@pytest.fixture
def agent(urls: Sequence[str]) -> Iterator[VLLMAgent]:
    agent = VLLMAgent(urls, request_timeout_s=90.0)
    agent.update_weights(policy(seed=1), 3)
    yield agent
    agent.close()


def policy(seed: int) -> PolicyWeights:
    return PolicyWeights(tiny_model(seed=seed).to(torch.bfloat16))


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


def processes(url: str) -> list[psutil.Process]:
    """The processes of a server: the one that listens, and what it started."""
    port = int(url.rpartition(":")[2])
    for process in psutil.process_iter():
        try:
            listening = {c.laddr.port for c in process.net_connections() if c.status == "LISTEN"}
        except psutil.Error:
            continue
        if port in listening and process.uids().real == os.getuid():
            return [process, *process.children(recursive=True)]
    raise AssertionError(f"nothing listens at {url}")


def workers(url: str) -> list[psutil.Process]:
    """Those that have the model."""
    return [each for each in processes(url) if "Worker" in each.name() or "Engine" in each.name()]


@contextmanager
def killed(url: str) -> Iterator[None]:
    processes(url)[0].kill()
    yield


@contextmanager
def out_of_memory(url: str) -> Iterator[None]:
    """What takes the memory is killed, as the system does it."""
    max(workers(url), key=lambda each: each.memory_info().rss).kill()
    yield


@contextmanager
def stopped(url: str) -> Iterator[None]:
    all_of_it = processes(url)
    for each in all_of_it:
        each.suspend()
    yield
    for each in all_of_it:
        each.resume()


@contextmanager
def engine_stopped(url: str) -> Iterator[None]:
    """The server still says that it is healthy."""
    engine = workers(url)
    for each in engine:
        each.suspend()
    assert answers(url)
    yield
    for each in engine:
        each.resume()


def play(tokenizer: Any, agent: VLLMAgent, amid: Callable[[], None]) -> list[Trajectory]:
    """Play all rows, and do something amid."""
    doing = threading.Timer(0.5, amid)
    doing.start()
    groups = asyncio.run(
        collect(
            *(lambda: Plain(renderer=Renderer(tokenizer)), agent, ROWS),
            group_size=MEMBERS,
            sampling=SAMPLING,
        )
    )
    doing.join()
    counts = Counter((group.row_index, len(group)) for group in groups)
    assert counts == {(row, MEMBERS): 1 for row in range(len(ROWS))}
    assert groups.metrics["episodes/left_out"] == groups.metrics["episodes/retried"] == 0
    return [trajectory for group in groups for trajectory in group]


@pytest.mark.parametrize("fault", [killed, out_of_memory, stopped, engine_stopped])
def test_a_lost_server_costs_no_episode(
    fault: Callable[[str], Any], agent: VLLMAgent, urls: Sequence[str], tokenizer: Any
) -> None:
    breaking = fault(urls[0])
    trajectories = play(tokenizer, agent, breaking.__enter__)
    versions = {span.version for trajectory in trajectories for span in trajectory.versions}
    assert versions == {3}
    lost = agent.metrics()
    assert lost["servers/lost"] == 1
    assert lost["servers/requests"] == len(trajectories)
    agent.update_weights(policy(seed=2), 4)  # the lost server does not get them now
    breaking.__exit__(None, None, None)
    until = time.monotonic() + BACK_S
    while True:
        assert time.monotonic() < until, "one server alone answers"
        again = play(tokenizer, agent, lambda: None)
        assert {span.version for trajectory in again for span in trajectory.versions} == {4}
        metrics = agent.metrics()
        if metrics["servers/requests/0"] > 0 < metrics["servers/requests/1"]:
            break


class KillsAll:
    """Kills the servers once the second step is played."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        if step == 2 and self._urls:
            for url in self._urls:
                processes(url)[0].kill()
            self._urls = ()


def test_without_servers_a_run_ends_with_a_checkpoint_and_one_sentence(
    urls: Sequence[str], tokenizer: Any, tmp_path: Path
) -> None:
    trainer = Trainer(
        *(tiny_model().to(torch.bfloat16), tokenizer, Plain, ROWS),
        agent=VLLMAgent(urls, lost_after_s=5.0),
        sampling=SAMPLING,
        group_size=MEMBERS,
        rows_per_step=len(ROWS),
        steps=50,
        output_dir=tmp_path,
        observer=cast(Any, KillsAll(urls)),
    )
    with pytest.raises(NoServers, match=r"none came back within 5 s \(lost_after_s\)") as raised:
        trainer.train()
    trained = [(each.name, each.group, each.member) for each in load_rollouts(tmp_path)]
    last = max(trained)[0]
    members = [(row, member) for row in range(len(ROWS)) for member in range(MEMBERS)]
    steps = [f"step_{step:05}" for step in range(1, int(last.removeprefix("step_")) + 1)]
    assert trained == [(step, *member) for step in steps for member in members]
    assert f"checkpoints/{last}" in "".join(raised.value.__notes__)
