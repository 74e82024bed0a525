"""A head in float32 over a bfloat16 model: exact logits, the same when sampling and training."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gymnast.agents import TransformersAgent, load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models import float32_head
from gymnast.agents.models.float32_head import Float32Head, use_float32_head
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.saving.run_folder import save_model
from gymnast.types import Sampling, Span, StopReason, Trajectory


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabulary of a tiny model in several blocks."""
    monkeypatch.setattr(float32_head, "BLOCK_BYTES", 100_000)


def half_precision_model(**overrides: Any) -> Any:
    model = tiny_model(**overrides)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return model


@pytest.mark.parametrize("bias", [True, False])
def test_logits_and_gradients_are_those_of_float32_copies(bias: bool) -> None:
    torch.manual_seed(0)
    head = nn.Linear(64, 1000, bias=bias, dtype=torch.bfloat16)
    wide = copy.deepcopy(head).float()
    head.__class__ = Float32Head
    hidden = torch.randn(2, 3, 64, dtype=torch.bfloat16, requires_grad=True)
    given = hidden.detach().float().requires_grad_()
    ours, theirs = head(hidden), wide(given)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs)
    F.cross_entropy(ours.flatten(0, 1), torch.arange(6)).backward()
    F.cross_entropy(theirs.flatten(0, 1), torch.arange(6)).backward()
    pairs = [(hidden, given), *zip(head.parameters(), wide.parameters(), strict=True)]
    for mine, other in pairs:
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(mine.grad.float(), other.grad.bfloat16().float())


def sampled(model: Any) -> Trajectory:
    context = list(range(10, 40))
    agent = TransformersAgent(model)
    with agent.awake():
        done = asyncio.run(agent.generate(context, Sampling(max_new_tokens=32, seed=1)))
    return Trajectory(
        ids=context + done.ids,
        action_mask=[0] * 30 + [1] * 32,
        logprobs=[0.0] * 30 + done.logprobs,
        prompt_length=30,
        turns=[Span(30, 62)],
        turn_rewards=[0.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )


@pytest.mark.parametrize("entropy", ["none", "measured", "trained"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_engine_and_the_trainer_compute_the_same_product(tied: bool, entropy: str) -> None:
    """Where layers change nothing, and so round nothing, nothing is left of the mismatch."""
    mismatch, error = [], []
    for wide in (False, True):
        model = half_precision_model(num_hidden_layers=1, tie_word_embeddings=tied)
        model.model.norm.weight.data.fill_(2.0)
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.data.zero_()
        if wide:
            use_float32_head(model)
        episode = CreditedTrajectory(sampled(model), torch.ones(1))
        batch = micro_batch([episode], model.device)
        logprobs = Policy(model)(batch, entropy=entropy)
        logprobs = logprobs if entropy == "none" else logprobs[0]
        exact = exact_logprobs(model, batch)
        mismatch.append((logprobs - batch.sampled_logprobs).abs().max().item())
        error.append((logprobs - exact).abs().max().item())
    assert max(error[1], mismatch[1]) < 1e-5
    assert error[0] > 1e-3


def exact_logprobs(model: Any, batch: Any) -> torch.Tensor:
    """In float64, from the hidden states of the model."""
    with torch.no_grad():
        hidden = model.model(torch.tensor(batch.packed.ids)[None]).last_hidden_state[0].double()
        logits = hidden[batch.predicted_from] @ model.lm_head.weight.double().t()
        return torch.log_softmax(logits, -1).gather(-1, batch.targets[:, None])[:, 0].float()


def test_the_policys_gradients_are_those_of_a_float32_head() -> None:
    gradients = []
    for own_forward in (False, True):
        model = half_precision_model(tie_word_embeddings=False)
        batch = micro_batch([CreditedTrajectory(sampled(model), torch.ones(1))], model.device)
        use_float32_head(model)
        policy = Policy(model)
        (policy(batch, entropy="trained")[0] if own_forward else policy(batch)).mean().backward()
        gradients.append([p.grad.float() for p in model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        # bfloat16 rounds to 1 in 256, and in another order on another CPU.
        assert (ours - theirs).norm() <= 0.02 * theirs.norm()


def test_a_loaded_model_with_adapters_is_saved_as_a_plain_one(tmp_path: Path) -> None:
    model, tokenizer = load_model("tiny:", dtype="bfloat16", float32_head=True, lora={"rank": 2})
    assert copy.deepcopy(model)(torch.tensor([[5, 6]])).logits.dtype == torch.float32
    save_model(model, tokenizer, tmp_path / "saved")
    plain, _ = load_model(str(tmp_path / "saved"))
    assert type(plain.lm_head) is nn.Linear
    assert plain.dtype == plain(torch.tensor([[5, 6]])).logits.dtype == torch.bfloat16


def test_a_head_that_is_no_matrix_is_refused() -> None:
    model = tiny_model(tie_word_embeddings=False)
    model.lm_head = nn.Sequential(model.lm_head)
    with pytest.raises(ModelError, match="its head is Sequential"):
        use_float32_head(model)
