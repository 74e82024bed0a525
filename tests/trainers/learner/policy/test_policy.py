"""The policy: checkpointed layers and heads of every kind give the same log-probabilities."""

from typing import Any

import pytest
import torch
from torch import nn

from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.micro_batches import (
    CreditedTrajectory,
    MicroBatch,
    micro_batch,
)
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Span, StopReason, Trajectory


def one_batch(device: torch.device) -> MicroBatch:
    """Three members of a group and a loner."""
    prompt = list(range(10, 50))
    samples = []
    for start, actions in ((prompt, 7), (prompt, 30), (prompt, 1), ([1, 2, 3], 5)):
        length = len(start)
        made = Trajectory(
            ids=start + [(7 * length + 3 * i) % 500 for i in range(actions)],
            action_mask=[0] * length + [1] * actions,
            logprobs=[0.0] * (length + actions),
            prompt_length=length,
            turns=[Span(length, length + actions)],
            turn_rewards=[0.0],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )
        samples.append(CreditedTrajectory(made, torch.ones(1)))
    return micro_batch(samples, device)


def outcome(policy: Policy, model: Any) -> list[torch.Tensor]:
    """Log-probabilities and gradients."""
    policy.train()
    logprobs = policy(one_batch(policy.device))
    weights = torch.arange(len(logprobs), device=policy.device)
    (logprobs * weights).sum().backward()
    return [logprobs.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": True}], ids=["own", "tied"])
def test_checkpointed_layers_give_the_same(device: torch.device, overrides: dict[str, Any]) -> None:
    model = tiny_model(**overrides).to(device)
    plain = outcome(Policy(model), model)
    model.zero_grad()
    for way in ("recompute", "offload"):  # to the host, from the host
        again = outcome(Policy(model, activations=way), model)
        model.zero_grad()
        torch.testing.assert_close(again, plain, rtol=1e-5, atol=1e-6)


def test_activations_may_be_kept_in_one_pass_and_computed_again_in_the_next() -> None:
    model = tiny_model()
    policy = Policy(model)
    plain = outcome(policy, model)
    for way in ("recompute", "keep"):
        model.zero_grad()
        policy.activations = way
        torch.testing.assert_close(outcome(policy, model), plain, rtol=1e-5, atol=1e-6)


def test_checkpointing_keeps_fewer_tensors() -> None:
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    sizes = []
    for checkpointing in (False, True):
        policy = Policy(tiny_model(), activations="recompute" if checkpointing else "keep").train()
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            policy(one_batch(policy.device))
        sizes.append(sum(kept))
    assert sizes[1] < sizes[0] / 2


class Wrapped(nn.Linear):
    """A head that is more than a matrix for all the policy knows."""


def test_other_heads_give_the_same_by_their_own_forward() -> None:
    model = tiny_model(tie_word_embeddings=False)
    plain = outcome(Policy(model, temperature=0.7), model)
    model.zero_grad()
    head = Wrapped(model.lm_head.in_features, model.lm_head.out_features, bias=False)
    head.weight = model.lm_head.weight
    model.lm_head = head
    again = outcome(Policy(model, temperature=0.7), model)
    torch.testing.assert_close(again, plain, rtol=1e-3, atol=1e-4)


def test_entropies_stand_below_the_logprobs() -> None:
    policy = Policy(tiny_model(), temperature=0.7)
    batch = one_batch(policy.device)
    logprobs, entropies = policy(batch, entropy="trained")
    torch.testing.assert_close(logprobs, policy(batch), rtol=1e-4, atol=1e-4)
    assert (entropies > 0).all()


@pytest.mark.parametrize("matrix", [True, False])
def test_measured_entropies_change_no_bit_of_logprobs_and_gradients(matrix: bool) -> None:
    model = tiny_model(tie_word_embeddings=False)
    if not matrix:
        head = Wrapped(model.lm_head.in_features, model.lm_head.out_features, bias=False)
        head.weight = model.lm_head.weight
        model.lm_head = head
    policy = Policy(model, temperature=0.7)
    batch = one_batch(policy.device)
    expected = policy(batch, entropy="trained")[1]
    found = []
    for entropy in ("none", "measured"):
        given = policy(batch, entropy=entropy)
        logprobs = given if entropy == "none" else given[0]
        gradients = torch.autograd.grad(logprobs.sin().sum(), list(model.parameters()))
        found.append([logprobs, *gradients])
    assert all(map(torch.equal, *found))
    torch.testing.assert_close(given[1], expected, rtol=1e-4, atol=1e-4)


def test_a_model_that_cannot_checkpoint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    with pytest.raises(ModelError, match="activations to keep"):
        Policy(model, activations="recompute")
