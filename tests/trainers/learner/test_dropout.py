"""Dropout and noise of a model's configuration: a policy is trained as it samples, without them."""

import math
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from gymnast.trainers import make_algorithm
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.update import UpdateSettings, update
from model_families import tiny
from sampled_groups import KeepsGradients, forward_logprobs, just_sampled

# What acts in training mode, in each family's configuration by default or set here.
NOISY: dict[str, dict[str, Any]] = {
    "gpt2": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3},
    "opt": {"dropout": 0.3, "layerdrop": 0.3},
    "seed_oss": {"attention_dropout": 0.3, "residual_dropout": 0.3},
    "biogpt": {"hidden_dropout_prob": 0.3, "layerdrop": 0.3, "activation_dropout": 0.3},
    "ctrl": {"resid_pdrop": 0.3, "embd_pdrop": 0.3},
    "gpt_bigcode": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3},
    "mixtral": {"router_jitter_noise": 0.3},
}
CHECKPOINTED = sorted(set(NOISY) - {"ctrl"})  # which cannot be


@pytest.mark.parametrize(
    ("family", "checkpointing"),
    [*((family, False) for family in NOISY), *((family, True) for family in CHECKPOINTED)],
)
def test_a_step_has_the_gradient_of_the_forward_that_sampled(
    family: str, checkpointing: bool
) -> None:
    model = tiny(family, **NOISY[family])
    groups = just_sampled(model, tokens=8)
    total, count = torch.zeros(()), 0
    for group in groups:
        for trajectory, advantage in zip(group, (-0.5, 0.5, -0.5, 0.5), strict=True):
            own = forward_logprobs(model, trajectory.ids)[trajectory.prompt_length :]
            total, count = total - advantage * own.sum(), count + len(own)
    expected = torch.autograd.grad(total / count, list(model.parameters()), allow_unused=True)
    optimizer = KeepsGradients(model.parameters(), learning_rate=0.0)
    # Ratios to what was sampled, and hardly any room for them: 1e-3.
    algorithm = make_algorithm(
        "dr_grpo", aggregation="token_mean", old_logprobs="engine", clip_low=1e-3, clip_high=1e-3
    )
    settings = UpdateSettings(algorithm, math.inf, 2048)
    policy = Policy(model, activations="recompute" if checkpointing else "keep")
    metrics = update(policy, optimizer, groups, settings, Accelerator()).metrics
    assert metrics["clipped"] == 0
    ours = torch.cat([gradient.flatten() for gradient in optimizer.gradients])
    theirs = torch.cat([gradient.flatten() for gradient in expected if gradient is not None])
    assert (ours - theirs).norm() < 1e-4 * theirs.norm()


def test_a_model_that_comes_in_training_mode_leaves_it() -> None:
    model = tiny("gpt2", **NOISY["gpt2"]).train()
    policy = Policy(model).train()
    assert not any(module.training for module in model.modules())
    assert policy.training
