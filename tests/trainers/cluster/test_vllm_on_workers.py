"""Ray workers that ask a real vLLM server themselves: what they play, and after new weights."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.agents import PolicyWeights, VLLMAgent, load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.trainers import RayWorkers, Rollouts, Trainer, collect, load_rollouts
from gymnast.types import Sampling

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

ROWS: list[dict[str, Any]] = [{"prompt": f"{i}: 2 + 3?", "answer": 5} for i in range(4)]
SETTINGS: dict[str, Any] = {"group_size": 3, "sampling": Sampling(max_new_tokens=16), "seed": 7}


def other_model(seed: int) -> Any:
    """All weights are others than those that the server was started with."""
    model = tiny_model()
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + torch.randn_like(weight))
    return model


@pytest.fixture
def agent(vllm_float32_url: str) -> Iterator[VLLMAgent]:
    with closing(VLLMAgent([vllm_float32_url])) as agent:
        yield agent


def versions(rollouts: Rollouts) -> set[int]:
    return {span.version for each in rollouts.trajectories for span in each.versions}


def test_workers_play_what_this_process_plays_before_and_after_new_weights(
    agent: VLLMAgent, two_nodes: str, sums: Callable[[], Environment]
) -> None:
    played = []
    with RayWorkers(2, address=two_nodes) as workers:
        for version in (1, 2):
            agent.update_weights(PolicyWeights(other_model(version)), version)
            here = asyncio.run(collect(sums, agent, ROWS, **SETTINGS))
            assert agent.metrics()["servers/requests"] >= 12
            there = asyncio.run(collect(sums, agent, ROWS, **SETTINGS, workers=workers))
            assert agent.metrics()["servers/requests"] == 0  # the workers ask
            assert versions(here) == versions(there) == {version}
            for ours, theirs in zip(here.trajectories, there.trajectories, strict=True):
                assert ours.ids == theirs.ids and ours.messages == theirs.messages
                assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
            played.append([each.ids for each in there.trajectories])
    assert len(played[0]) == 12 and played[0] != played[1]


def test_a_run_hands_its_weights_to_the_server_that_its_workers_ask(
    vllm_float32_url: str, two_nodes: str, tmp_path: Path
) -> None:
    model, tokenizer = load_model("tiny:")
    trainer = Trainer(
        *(model, tokenizer, "gymnast/Arithmetic-v0"),
        [{"prompt": f"{i} times 3?", "answer": str(3 * i)} for i in range(8)],
        agent={"backend": "vllm", "urls": [vllm_float32_url]},
        rollouts_backend="ray",
        rollouts_workers=2,
        rollouts_address=two_nodes,
        steps=3,
        rows_per_step=2,
        group_size=2,
        learning_rate=1e-3,
        sampling=Sampling(max_new_tokens=12),
        output_dir=tmp_path,
        observer=None,
    )
    assert isinstance(trainer.agent, VLLMAgent)
    with closing(trainer.agent):
        trainer.train()
    for step in (1, 2, 3):
        played = load_rollouts(tmp_path, step=step)
        found = {span.version for each in played for span in each.trajectory.versions}
        assert len(played) == 4 and found == {step - 1}
