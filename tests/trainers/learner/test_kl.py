"""Divergence from a reference: its estimators by hand, and the reference itself."""

from typing import Any

import pytest
import torch

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.algorithms.kl import DIVERGENCES, k1, k2, k3
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.types import Span, StopReason, Trajectory

P = torch.tensor([0.5, 0.25, 0.5, 0.1])
Q = torch.tensor([0.5, 0.5, 0.25, 0.2])


def test_the_estimators_by_hand_on_four_tokens() -> None:
    logs = (P.log(), Q.log())
    two = torch.tensor(2.0).log().item()
    torch.testing.assert_close(k1(*logs), torch.tensor([0.0, -two, two, -two]))
    torch.testing.assert_close(k2(*logs), torch.tensor([0.0, 1.0, 1.0, 1.0]) * two**2 / 2)
    torch.testing.assert_close(k3(*logs), torch.tensor([0.0, 1 - two, -0.5 + two, 1 - two]))


def two_distributions() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    return logits[0].requires_grad_(), torch.log_softmax(logits[1], dim=0)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_are_the_divergence_on_average(name: str) -> None:
    logits, reference = two_distributions()
    logprobs = torch.log_softmax(logits, dim=0)
    exact = (logprobs.exp() * (logprobs - reference)).sum()
    mean = (logprobs.exp() * DIVERGENCES[name](logprobs, reference)).sum()
    torch.testing.assert_close(mean, exact)


def test_the_gradient_of_k2_is_that_of_the_divergence_and_that_of_k1_zero_on_average() -> None:
    logits, reference = two_distributions()
    logprobs = torch.log_softmax(logits, dim=0)
    exact = (logprobs.exp() * (logprobs - reference)).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)

    def mean_gradient(name: str) -> torch.Tensor:
        """Tokens are drawn first: the gradient is of the estimate alone."""
        mean = (logprobs.exp().detach() * DIVERGENCES[name](logprobs, reference)).sum()
        (found,) = torch.autograd.grad(mean, logits, retain_graph=True)
        return found

    torch.testing.assert_close(mean_gradient("k2"), expected)
    torch.testing.assert_close(mean_gradient("k1"), torch.zeros_like(expected))


def a_batch() -> Any:
    trajectory = Trajectory(
        ids=list(range(10, 30)),
        action_mask=[0] * 10 + [1] * 10,
        logprobs=[0.0] * 20,
        prompt_length=10,
        turns=[Span(10, 20)],
        turn_rewards=[0.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )
    return micro_batch([CreditedTrajectory(trajectory, torch.zeros(1))], torch.device("cpu"))


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["frozen copy", "base under adapters"])
def test_the_reference_is_the_model_before_training(
    lora: dict[str, Any] | None, tokenizer: Any
) -> None:
    model, _ = load_model("tiny:", lora=lora, tokenizer=tokenizer)
    policy, batch = Policy(model), a_batch()
    before = policy(batch).detach()
    reference = Reference(model)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.1)
    torch.testing.assert_close(reference.logprobs(batch), before)
    assert (policy(batch) - before).abs().max() > 1e-3
    assert not reference.logprobs(batch).requires_grad


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["frozen copy", "adapters"])
def test_a_refreshed_reference_is_the_policy_as_it_was_then(
    lora: dict[str, Any] | None, tokenizer: Any
) -> None:
    model, _ = load_model("tiny:", lora=lora, tokenizer=tokenizer)
    policy, batch, reference = Policy(model), a_batch(), Reference(model)

    def move() -> torch.Tensor:
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:
                    weight.add_(torch.randn_like(weight) * 0.1)
            moved: torch.Tensor = policy(batch)
            return moved

    then = move()
    reference.refresh()
    state = reference.state_dict()
    now = move()
    torch.testing.assert_close(reference.logprobs(batch), then)
    assert torch.equal(policy(batch), now)  # computing the reference leaves the policy as it is
    with torch.no_grad():
        assert (now - then).abs().max() > 1e-3
    reference.refresh()
    torch.testing.assert_close(reference.logprobs(batch), now)
    reference.load_state_dict(state)  # a refresh changed nothing of what was saved
    torch.testing.assert_close(reference.logprobs(batch), then)
    assert all(weight.grad is None for weight in model.parameters())


def test_the_state_of_a_reference_that_was_never_refreshed_is_empty() -> None:
    reference, batch = Reference(tiny_model()), a_batch()
    before = reference.logprobs(batch)
    assert reference.state_dict() == {"refreshed": {}}
    reference.load_state_dict({"refreshed": {}})
    assert torch.equal(reference.logprobs(batch), before)


def test_entropies_come_with_the_logprobs_and_carry_their_gradient() -> None:
    model = tiny_model().double()
    policy, batch = Policy(model, temperature=0.7), a_batch()
    logprobs, entropies = policy(batch, entropy="trained")
    torch.testing.assert_close(logprobs, policy(batch).float())
    ids = torch.tensor(batch.packed.ids)[None]
    everything = torch.log_softmax(model(input_ids=ids).logits[0, 9:19].float() / 0.7, dim=-1)
    expected = -(everything.exp() * everything).sum(dim=-1)
    torch.testing.assert_close(entropies, expected, rtol=1e-4, atol=1e-5)
    weights = list(model.parameters())
    found = torch.autograd.grad(entropies.sum(), weights)
    for ours, theirs in zip(found, torch.autograd.grad(expected.sum(), weights), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
