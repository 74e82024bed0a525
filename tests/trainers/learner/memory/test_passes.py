"""Short passes tell what a long one takes, byte for byte where all do the same."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, MixtralConfig, MixtralForCausalLM

from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.learner.memory.passes import _record, measure_pass
from gymnast.trainers.learner.memory.trace import live_bytes
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.recomputation import Activations

SMALL: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": 0,
}


def truly(policy: Policy, tokens: int, *, in_one_process: bool = True) -> tuple[float, float]:
    """The peak of a real pass, and what it holds where its forward pass ends."""
    weights = [weight for weight in policy.parameters() if weight.requires_grad]
    hooks = [
        weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
        for weight in weights
        if in_one_process or weight.dtype == torch.float32
    ]
    record = _record(policy.train(), weights, tokens)
    policy.eval()
    for hook in hooks:
        hook.remove()
    live = live_bytes(record.sizes, record.events)
    return live.max(), live[record.forward - 1]


@pytest.mark.parametrize("way", ["keep", "recompute"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_peak_of_a_longer_pass_is_foretold(way: Activations, dtype: torch.dtype) -> None:
    policy = Policy(tiny_model(num_hidden_layers=2).to(dtype), activations=way)
    measured = measure_pass(policy)
    assert measured.comparable
    peak, kept = truly(policy, 500)
    assert measured.peak_bytes(500) == pytest.approx(peak, rel=0.01)
    assert measured.kept_bytes(500) == pytest.approx(kept, rel=0.01)


def test_with_several_processes_all_gradients_of_a_pass_exist() -> None:
    policy = Policy(tiny_model(num_hidden_layers=8).to(torch.bfloat16), activations="recompute")
    alone, several = measure_pass(policy), measure_pass(policy, in_one_process=False)
    peak, _ = truly(policy, 100, in_one_process=False)
    assert several.peak_bytes(100) == pytest.approx(peak, rel=0.01)
    weights = sum(weight.nbytes for weight in policy.parameters())
    assert alone.peak_bytes(100) < weights < peak


def test_recomputed_layers_take_less() -> None:
    policy = Policy(tiny_model())
    kept = measure_pass(policy).peak_bytes(4096)
    policy.activations = "recompute"
    assert measure_pass(policy).peak_bytes(4096) < kept / 2


def test_scores_that_are_kept_are_quadratic() -> None:
    policy = Policy(Gemma2ForCausalLM(Gemma2Config(**SMALL)))
    measured = measure_pass(policy)
    assert measured.peak_bytes(400) == pytest.approx(truly(policy, 400)[0], rel=0.02)
    assert measured.peak_bytes(8000) > 3 * measured.peak_bytes(4000)


def test_experts_are_foretold_as_well() -> None:
    settings = {**SMALL, "num_local_experts": 4}
    policy = Policy(MixtralForCausalLM(MixtralConfig(**settings)))
    measured = measure_pass(policy)
    assert measured.peak_bytes(500) == pytest.approx(truly(policy, 500)[0], rel=0.1)


def test_a_measurement_leaves_nothing_behind() -> None:
    model = tiny_model(num_hidden_layers=1)
    policy = Policy(model)
    before = torch.random.get_rng_state()
    measure_pass(policy)
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(before, torch.random.get_rng_state())
    assert not policy.training
    weight = next(model.parameters())
    (weight.sum() * 2).backward()
    assert weight.grad is not None and np.isclose(weight.grad.mean().item(), 2)
