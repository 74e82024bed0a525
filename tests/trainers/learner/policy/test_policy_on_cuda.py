"""The policy's forward pass on a CUDA device: nothing on the CPU meets it, nothing waits for it.

Shapes alone are computed (`fake_cuda.py`), so no GPU is needed; the values are those of the tests
marked `gpu`.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from fake_cuda import fake_cuda, moved
from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.learner.policy import head, policy
from gymnast.trainers.learner.policy.micro_batches import (
    CreditedTrajectory,
    MicroBatch,
    micro_batch,
)
from gymnast.trainers.learner.tree_attention import level_sums
from gymnast.types import Span, StopReason, Trajectory

SHAPE = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
WINDOWS = Gemma2Config(**SHAPE, sliding_window=20, attn_logit_softcapping=2.0)
MODELS: dict[str, Callable[[], Any]] = {
    "plain": tiny_model,
    "windows and softcaps": lambda: Gemma2ForCausalLM(WINDOWS),
}


def trajectory(answer: int) -> Trajectory:
    ids = [*range(1, 31), *[5] * answer]
    mask = [0] * 30 + [1] * answer
    return Trajectory(
        ids=ids,
        action_mask=mask,
        logprobs=[-float(bit) for bit in mask],
        prompt_length=30,
        turns=[Span(30, len(ids))],
        turn_rewards=[0.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )


def batch_here() -> MicroBatch:
    """Two trajectories of one prompt."""
    episodes = [CreditedTrajectory(trajectory(n), torch.ones(1)) for n in (3, 9)]
    return micro_batch(episodes, torch.device("cpu"))


def there(batch: MicroBatch) -> MicroBatch:
    """The same on the device."""
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    on_device: dict[str, Any] = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
        for name, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor)
    }
    return replace(batch, **on_device)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("plain", torch.bfloat16), ("windows and softcaps", torch.float32)]
)
def test_a_forward_pass_stays_on_the_device(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These look at logits, once for a model.
    monkeypatch.setattr(policy, "check_model", lambda model: 0)
    monkeypatch.setattr(head.Head, "_choose", lambda self: None)
    monkeypatch.setattr(level_sums, "has_kernels", lambda device: False)  # Triton needs values
    with torch.device("meta"):
        model: Any = MODELS[kind]().to(dtype).eval()
    here = batch_here()
    with fake_cuda():
        made = policy.Policy(moved(model))
        batch = there(here)
        logprobs = made(batch)
        assert (logprobs.shape, logprobs.device.type) == ((12,), "cuda")
        assert made(batch, entropy="trained").shape == (2, 12)
