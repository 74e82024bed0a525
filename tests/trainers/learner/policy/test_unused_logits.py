"""Ids that are no tokens have no share in what the learner computes, as they have none in sampling.

The model would rather sample them than any other.
"""

from typing import Any, Literal

import pytest
import torch
from accelerate import Accelerator

from gymnast.agents.models.float32_head import use_float32_head
from gymnast.trainers.algorithms.algorithm import make_algorithm
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.learner.policy.head import TeacherStates
from gymnast.trainers.learner.policy.micro_batches import (
    CreditedTrajectory,
    MicroBatch,
    micro_batch,
)
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.types import Span, StopReason, Trajectory
from model_families import tiny
from padded_vocabulary import LOGITS, UNUSED, padded_model, prefer_unused, tokenizer_with_holes
from sampled_groups import just_sampled

PROMPT = [5, 6, 7, 300]
TOKENS = [each for each in range(LOGITS) if each not in UNUSED]
TEMPERATURE = 0.8
HEADS = ["float32", "float32_head", "bfloat16"]


def make(path: str, head: str = "float32") -> Any:
    """A model that is packed or padded, its head in float32 over bfloat16 where that is asked."""
    if path == "packed":
        model = padded_model()
    else:
        model = prefer_unused(tiny("lfm2", vocab_size=LOGITS))
    if head != "float32":
        model = model.to(torch.bfloat16)
    if head == "float32_head":
        use_float32_head(model)
    return model


def every_token() -> MicroBatch:
    """After the same prompt, each token once."""
    samples = [
        Trajectory(
            ids=[*PROMPT, token],
            action_mask=[0] * len(PROMPT) + [1],
            logprobs=[0.0] * (len(PROMPT) + 1),
            prompt_length=len(PROMPT),
            turns=[Span(len(PROMPT), len(PROMPT) + 1)],
            turn_rewards=[0.0],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )
        for token in TOKENS
    ]
    credited = [CreditedTrajectory(each, torch.ones(1)) for each in samples]
    return micro_batch(credited, torch.device("cpu"))


def expected(model: Any, temperature: float = TEMPERATURE) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of all tokens [V] after the prompt, and their entropy, by a forward."""
    logits = model(torch.tensor([PROMPT])).logits[0, -1, TOKENS].float() / temperature
    logprobs = logits.log_softmax(-1)
    return logprobs, -(logprobs.exp() * logprobs).sum()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("path", ["packed", "padded"])
def test_the_probabilities_of_the_tokens_sum_to_one(path: str, head: str) -> None:
    model = make(path, head)
    total: dict[str, float] = {}
    for name, unused in {"masked": UNUSED, "unmasked": []}.items():
        policy = Policy(model, unused_ids=unused)
        assert policy.path == path
        with torch.no_grad():
            total[name] = float(policy(every_token()).exp().sum())
    assert total["masked"] == pytest.approx(1.0, abs=1e-5 if head == "float32" else 1e-2)
    assert total["unmasked"] < 0.95


@pytest.mark.parametrize("entropy", ["none", "measured", "trained"])
@pytest.mark.parametrize("path", ["packed", "padded"])
def test_logprobs_entropies_and_gradients_are_of_the_distribution_over_the_tokens(
    path: str, entropy: Literal["none", "measured", "trained"]
) -> None:
    model = make(path)
    weights = torch.linspace(-1.0, 1.0, len(TOKENS))
    logprobs, entropies = expected(model)
    loss = (weights * logprobs).sum() + (entropies if entropy == "trained" else 0.0)
    theirs = torch.autograd.grad(loss, [*model.parameters()])
    policy = Policy(model, temperature=TEMPERATURE, unused_ids=UNUSED)
    found = policy(every_token(), entropy=entropy)
    ours = found if entropy == "none" else found[0]
    torch.testing.assert_close(ours, logprobs, rtol=0, atol=1e-4)
    loss = (weights * ours).sum()
    if entropy != "none":
        torch.testing.assert_close(found[1], entropies.expand(len(TOKENS)), rtol=0, atol=1e-4)
    if entropy == "trained":
        loss = loss + found[1].mean()
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    for one, other in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("path", ["packed", "padded"])
def test_a_reference_and_a_teacher_leave_them_out_too(path: str) -> None:
    model = make(path)
    logprobs, entropies = expected(model)
    reference = Reference(model, temperature=TEMPERATURE, unused_ids=UNUSED)
    batch = every_token()
    torch.testing.assert_close(reference.logprobs(batch), logprobs.detach(), rtol=0, atol=1e-4)

    def divergences(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        return (ours.exp() * (ours - theirs)).sum(dim=-1)

    taught = torch.ones(len(TOKENS))
    states = TeacherStates(reference.hidden(batch), reference.logits, divergences, taught)
    policy = Policy(model, temperature=TEMPERATURE, unused_ids=UNUSED)
    found = policy(batch, teacher=states)
    everywhere = torch.stack([logprobs, entropies.expand(len(TOKENS)), logprobs * 0.0, logprobs])
    torch.testing.assert_close(found, everywhere, rtol=0, atol=1e-4)
    found.sum().backward()
    for weight in model.parameters():
        assert weight.grad is None or weight.grad.isfinite().all()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("path", ["packed", "padded"])
def test_the_first_step_finds_what_the_engine_sampled_with(path: str, head: str) -> None:
    model = make(path, head)
    groups = just_sampled(model, tokenizer=tokenizer_with_holes())
    settings = UpdateSettings(make_algorithm("grpo"), 1.0, 2048)
    difference = {}
    for name, unused in {"unmasked": [], "masked": UNUSED}.items():
        optimizer = MasterOptimizer(model.parameters(), learning_rate=0.0)
        policy = Policy(model, unused_ids=unused)
        metrics = update(policy, optimizer, groups, settings, Accelerator()).metrics
        difference[name] = metrics["engine/logprob_difference"]
    assert difference["masked"] < (1e-5 if head == "float32" else 0.02)
    assert difference["unmasked"] > 10 * difference["masked"]


def test_a_batch_without_unused_ids_changes_no_bit() -> None:
    model = padded_model()
    with_none, plain = Policy(model, unused_ids=[LOGITS, LOGITS + 1]), Policy(model)
    assert torch.equal(with_none(every_token()), plain(every_token()))
