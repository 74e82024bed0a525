"""Experts that a real vLLM server chose are chosen again in training, as the engine's are."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gymnast.agents import Agent, TransformersAgent, VLLMAgent
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import ConfigError
from gymnast.trainers import Trainer, rollout
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Sampling, ToolCall, Trajectory
from vllm_fixtures import mixture


class Desk(Environment):
    """Answers whatever is said, until the turns are used up."""

    @tool
    def repeat(self, times: int = 1) -> str:
        """Say a word some times."""
        return "word " * times

    def reward(self, episode: Any) -> float:
        return 0.0


def episodes(agent: Agent) -> list[Trajectory]:
    def everything_is_a_call(text: str) -> list[ToolCall]:
        return [ToolCall("", "repeat", {"times": len(text) % 5})]

    async def play() -> list[Trajectory]:
        desks = (
            Desk(Renderer(tiny_tokenizer(), parser=everything_is_a_call), max_turns=3)
            for _ in range(4)
        )
        return await asyncio.gather(
            *(
                rollout(desk, agent, {"prompt": "Go."}, sampling=Sampling(max_new_tokens=8, seed=i))
                for i, desk in enumerate(desks)
            )
        )

    return asyncio.run(play())


@torch.no_grad()
def difference(model: Any, played: list[Trajectory]) -> float:
    """The largest between the sampled log-probabilities and the trainer's, in nats."""
    batch = micro_batch([CreditedTrajectory(t, torch.ones(3)) for t in played], model.device)
    replayed = Policy(model, replay_routing=True)(batch)
    return float((replayed - batch.sampled_logprobs).abs().max())


@pytest.mark.vllm
def test_the_trainer_agrees_with_a_server_as_with_the_engine(vllm_experts: VLLMAgent) -> None:
    model = mixture()
    here = TransformersAgent(model, tiny_tokenizer(), context_length=1024, keep_experts=True)
    theirs, ours = episodes(vllm_experts), episodes(here)
    shifted = []
    for each in theirs:
        assert len(each.turns) == 3
        assert each.experts is not None
        known = (each.experts >= 0).all(axis=(1, 2))
        assert known.tolist() == [place < each.turns[-1].end - 1 for place in range(len(each.ids))]
        others = np.where(each.experts < 0, -1, (each.experts + 1) % 8)
        shifted.append(replace(each, experts=others))
    assert difference(model, ours) < 1e-4
    assert difference(model, theirs) < 1e-4
    assert difference(model, shifted) > 0.01  # what is replayed is what is computed with


@pytest.mark.vllm
def test_an_agent_that_was_not_told_to_keep_experts_is_refused(vllm_experts: VLLMAgent) -> None:
    agent = VLLMAgent(vllm_experts.urls)
    said = "replay_routing: VLLMAgent does not say .*: make it with experts_of=model"
    with pytest.raises(ConfigError, match=said):
        trainer(agent)
    agent.close()


def trainer(agent: Any, **settings: Any) -> Trainer:
    return Trainer(
        *(mixture(), tiny_tokenizer(), Desk, [{"prompt": "Go."}]),
        agent=agent,
        replay_routing=True,
        observer=None,
        **settings,
    )


@pytest.mark.vllm
def test_a_run_learns_until_there_are_new_weights_which_a_cpu_does_not_take(
    vllm_experts: VLLMAgent,
) -> None:
    run = trainer(
        {"backend": "vllm", "urls": vllm_experts.urls},
        sampling=Sampling(max_new_tokens=4),
        rows_per_step=1,
        group_size=2,
        steps=1,
    )
    with pytest.raises(ConfigError, match="on a CPU does not take new weights for experts"):
        run.train()
    assert isinstance(run.agent, VLLMAgent)
    run.agent.close()
