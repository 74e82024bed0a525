"""The auxiliary loss of a router is no part of what is trained on, and the user is told so."""

import asyncio
from typing import Any

import pytest
import torch

from gymnast.agents import TransformersAgent
from gymnast.trainers.learner.model_checks import leaves_out
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Sampling, Span, StopReason, Trajectory
from model_families import tiny

PROMPT = list(range(3, 23))


def sampled(model: Any) -> Trajectory:
    agent = TransformersAgent(model)
    done = asyncio.run(agent.generate(PROMPT, Sampling(max_new_tokens=12, seed=0)))
    return Trajectory(
        ids=PROMPT + done.ids,
        action_mask=[0] * 20 + [1] * 12,
        logprobs=[0.0] * 20 + done.logprobs,
        prompt_length=20,
        turns=[Span(20, 32)],
        turn_rewards=[0.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_gradients_are_the_same_with_and_without_it(family: str) -> None:
    outcomes = []
    for asked in (False, True):
        model = tiny(family, output_router_logits=asked, router_aux_loss_coef=10.0)
        trajectory = sampled(model)
        batch = micro_batch([CreditedTrajectory(trajectory, torch.ones(1))], model.device)
        Policy(model).train()(batch).sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        outcomes.append([torch.tensor(trajectory.logprobs), *gradients])
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_a_configuration_that_asks_for_it_is_answered() -> None:
    asking = tiny("mixtral", output_router_logits=True, router_aux_loss_coef=0.02)
    assert "router_aux_loss_coef 0.02): the loss that is trained on is" in leaves_out(asking)
    assert not leaves_out(tiny("mixtral"))
    assert not leaves_out(tiny("llama"))
