"""Kernels that are wrong, or fail, do not train; those that round otherwise do."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gymnast.agents.loading.adapters import adapter_settings, with_adapters
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.fused import has_fused_modules, use_fused_modules
from gymnast.trainers.learner.policy.kernel_check import check_kernels, choose_kernels
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.tree_attention.cpu_flash import CPUFlash
from model_families import tiny
from plain_kernels import plain_kernels


def fused_policy(model: Any = None, normalize: Any = None) -> Policy:
    """A policy over fused modules, which compute on the CPU."""
    model = tiny_model() if model is None else model
    kernels = plain_kernels()
    if normalize is not None:
        kernels = replace(kernels, normalize=normalize)
    use_fused_modules(model, kernels)
    return Policy(model)


class Scaled(torch.autograd.Function):
    """Leaves values as they are, and scales their gradient."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> Any:
        return slope * ctx.factor, None


def wrong_slope(*args: Any) -> torch.Tensor:
    function: Any = Scaled
    result: torch.Tensor = function.apply(plain_kernels().normalize(*args), 1.3)
    return result


def raising(error: Exception) -> Callable[..., torch.Tensor]:
    """A kernel that fails where gradients are computed."""

    def normalize(*args: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise error
        return plain_kernels().normalize(*args)

    return normalize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("entropy", ["measured", "trained"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt_oss", "qwen3_moe", "lfm2"])
def test_rounding_is_no_mistake(family: str, entropy: Any, dtype: torch.dtype) -> None:
    policy = fused_policy(tiny(family).to(dtype))
    agreement = check_kernels(policy, entropy=entropy)
    assert agreement.holds, agreement


def test_adapters_are_checked() -> None:
    model = with_adapters(tiny_model(), adapter_settings({"rank": 4}), seed=0)
    assert check_kernels(fused_policy(model)).holds
    agreement = check_kernels(fused_policy(model, wrong_slope))
    assert not agreement.holds
    assert "lora_B" in agreement.of  # those of A are zero


def test_a_wrong_gradient_of_a_module_is_found(caplog: pytest.LogCaptureFixture) -> None:
    policy = fused_policy(normalize=wrong_slope)
    with caplog.at_level(logging.INFO, "gymnast"):
        assert not choose_kernels(policy)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "differ from plain PyTorch" in record.message
    assert policy.plain and not has_fused_modules(policy.model)


@pytest.mark.parametrize("number", range(3), ids=["query", "key", "value"])
def test_a_wrong_gradient_of_attention_is_found(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = CPUFlash.backward

    def wrong(*args: Any) -> tuple[torch.Tensor, ...]:
        gradients = list(right(*args))
        gradients[number] = gradients[number] * 1.2
        return tuple(gradients)

    monkeypatch.setattr(CPUFlash, "backward", wrong)
    agreement = check_kernels(Policy(tiny_model()))
    assert not agreement.holds


def test_attention_that_leaves_out_a_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CPUFlash.divide

    def without_ancestors(self: CPUFlash, calls: Any, heads: int) -> Any:
        return [call for call in right(self, calls, heads) if call.first]

    monkeypatch.setattr(CPUFlash, "divide", without_ancestors)
    agreement = check_kernels(Policy(tiny_model()))
    assert agreement.worst > 10


def test_values_that_are_not_finite_are_found() -> None:
    def infinite(*args: Any) -> torch.Tensor:
        return plain_kernels().normalize(*args) * torch.inf

    agreement = check_kernels(fused_policy(normalize=infinite))
    assert not agreement.holds


def test_one_gradient_that_is_not_finite_is_found() -> None:
    def without_slope(x: torch.Tensor, weight: torch.Tensor, *others: Any) -> torch.Tensor:
        function: Any = Scaled
        return plain_kernels().normalize(x, function.apply(weight, torch.nan), *others)

    model = tiny_model(tie_word_embeddings=False)
    agreement = check_kernels(fused_policy(model, without_slope))  # those after it are right
    assert not agreement.holds
    assert "norm" in agreement.of


def test_kernels_that_fail_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    policy = fused_policy(normalize=raising(RuntimeError("no such instruction")))
    with caplog.at_level(logging.INFO, "gymnast"):
        assert not choose_kernels(policy)
    (record,) = caplog.records
    assert "RuntimeError: no such instruction" in record.message
    assert all(weight.grad is None for weight in policy.parameters())
    assert check_kernels(policy).holds


def test_a_device_without_memory_is_not_a_wrong_kernel() -> None:
    policy = fused_policy(normalize=raising(torch.OutOfMemoryError("out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        choose_kernels(policy)


def test_nothing_is_left_of_a_check(caplog: pytest.LogCaptureFixture) -> None:
    policy = fused_policy()
    policy.activations = "recompute"
    before, drawn = policy.model.state_dict(), torch.get_rng_state()
    with caplog.at_level(logging.INFO, "gymnast"):
        assert choose_kernels(policy)
    assert "agree with plain PyTorch" in caplog.text
    assert not policy.plain and has_fused_modules(policy.model)
    assert policy.activations == "recompute"
    assert all(weight.grad is None for weight in policy.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)
    after = policy.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_of_a_device_agree(dtype: torch.dtype) -> None:
    model = tiny_model().to("cuda", dtype)
    assert check_kernels(Policy(model)).holds
