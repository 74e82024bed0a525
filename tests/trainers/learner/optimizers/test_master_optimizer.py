"""AdamW over float32 master weights: small updates count, and a saved state goes on exactly."""

import io
from typing import Any

import pytest
import torch

from gymnast.errors import ModelError
from gymnast.trainers.learner.optimizers.by_name import named_optimizer
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer


def parameter(value: Any, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(value, dtype=dtype))


def take_step(
    optimizer: MasterOptimizer, gradients: list[torch.Tensor], max_norm: float = 1e9
) -> float:
    for weight, gradient in zip(optimizer.parameters, gradients, strict=True):
        weight.grad = gradient.to(weight.dtype, copy=True)
    norm = optimizer.gather_gradients()
    optimizer.step(norm, max_norm)
    return norm.item()


def test_bfloat16_weights_take_updates_too_small_for_bfloat16() -> None:
    ours, plain = parameter([1.0], torch.bfloat16), parameter([1.0], torch.bfloat16)
    optimizer = MasterOptimizer([ours], learning_rate=1e-4)
    adamw = torch.optim.AdamW([plain], lr=1e-4, weight_decay=0.0)
    for _ in range(100):
        take_step(optimizer, [torch.ones(1)])
        plain.grad = torch.ones_like(plain)
        adamw.step()
    assert plain.item() == 1.0  # a thousandth of a weight is below bfloat16's 8 bits
    assert ours.item() == pytest.approx(0.99, abs=0.004)
    assert optimizer.master[0].item() == pytest.approx(0.99, abs=1e-5)
    assert ours.dtype is torch.bfloat16


def test_a_model_without_trainable_weights_is_refused() -> None:
    frozen = parameter([1.0])
    frozen.requires_grad_(False)
    with pytest.raises(ModelError, match="no weight of the model requires gradients"):
        MasterOptimizer([frozen], learning_rate=1e-4)


def test_float32_weights_are_their_own_masters() -> None:
    weight = parameter([1.0, -2.0])
    optimizer = MasterOptimizer([weight], learning_rate=0.1)
    assert optimizer.master[0] is weight
    take_step(optimizer, [torch.tensor([3.0, -5.0])])
    # Adam's first step goes by the learning rate against the gradient's sign.
    torch.testing.assert_close(weight.detach(), torch.tensor([0.9, -1.9]))


def test_frozen_weights_stay() -> None:
    frozen = parameter([1.0])
    frozen.requires_grad = False
    optimizer = MasterOptimizer([frozen, parameter([1.0])], learning_rate=0.1, weight_decay=0.5)
    take_step(optimizer, [torch.ones(1)])
    assert frozen.item() == 1.0 and len(optimizer.master) == 1


def test_a_weight_without_a_gradient_stays() -> None:
    used, unused = parameter([1.0], torch.bfloat16), parameter([1.0], torch.bfloat16)
    optimizer = MasterOptimizer([used, unused], learning_rate=0.1)
    used.grad = torch.ones_like(used)
    optimizer.step(optimizer.gather_gradients(), 1.0)
    assert unused.item() == 1.0 and used.item() != 1.0


def test_the_norm_is_that_of_all_gradients_and_longer_ones_are_scaled_down() -> None:
    weights = [parameter([0.0]), parameter([0.0, 0.0], torch.bfloat16)]
    clipped, free = (MasterOptimizer(weights, learning_rate=0.0) for _ in range(2))
    gradients = [torch.tensor([3.0]), torch.tensor([0.0, 4.0])]
    assert take_step(clipped, gradients, max_norm=1.0) == pytest.approx(5.0)
    assert take_step(free, gradients, max_norm=10.0) == pytest.approx(5.0)
    first_moments = [
        [state["exp_avg"] for state in optimizer.state_dict()["states"].values()]
        for optimizer in (clipped, free)
    ]
    for small, whole in zip(*first_moments, strict=True):
        torch.testing.assert_close(small, whole / 5, rtol=1e-4, atol=0)


def test_the_learning_rate_warms_up_linearly() -> None:
    weight = parameter([0.0])
    optimizer = MasterOptimizer([weight], learning_rate=0.4, warmup_steps=3)
    places = []
    for _ in range(5):
        take_step(optimizer, [torch.ones(1)])
        places.append(weight.item())
    steps = [before - after for before, after in zip([0.0, *places], places, strict=False)]
    assert steps == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4], rel=1e-4)


def test_zero_grad_drops_all_gradients() -> None:
    weights = [parameter([1.0]), parameter([1.0], torch.bfloat16)]
    optimizer = MasterOptimizer(weights, learning_rate=0.1)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.gather_gradients()
    weights[1].grad = torch.ones_like(weights[1])
    optimizer.zero_grad()
    assert all(weight.grad is None for weight in [*weights, *optimizer.master])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_state_goes_on_exactly(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(20, generator=generator)
    gradients = [torch.randn(20, generator=generator) for _ in range(6)]

    def fresh() -> MasterOptimizer:
        weight = torch.nn.Parameter(start.to(dtype))
        return MasterOptimizer([weight], learning_rate=1e-2, weight_decay=0.1, warmup_steps=4)

    uninterrupted = fresh()
    for gradient in gradients:
        take_step(uninterrupted, [gradient])

    killed = fresh()
    for gradient in gradients[:3]:
        take_step(killed, [gradient])
    file = io.BytesIO()
    torch.save(killed.state_dict(), file)
    file.seek(0)
    take_step(killed, [gradients[5]])  # what happens later is not in the file

    resumed = fresh()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for gradient in gradients[3:]:
        take_step(resumed, [gradient])
    assert resumed.steps == uninterrupted.steps == 6
    assert torch.equal(resumed.parameters[0], uninterrupted.parameters[0])
    assert torch.equal(resumed.master[0], uninterrupted.master[0])


def test_a_saved_state_goes_on_with_the_settings_of_now() -> None:
    def after_one_more_step(saved_with: float, goes_on_with: float) -> torch.Tensor:
        before = MasterOptimizer([parameter([2.0])], learning_rate=0.1, weight_decay=saved_with)
        take_step(before, [torch.zeros(1)])
        before.master[0].data.fill_(2.0)
        after = MasterOptimizer([parameter([2.0])], learning_rate=0.1, weight_decay=goes_on_with)
        after.load_state_dict(before.state_dict())
        take_step(after, [torch.zeros(1)])
        return after.parameters[0].detach()

    assert after_one_more_step(0.0, 0.5).item() == pytest.approx(2.0 * (1 - 0.1 * 0.5))
    assert after_one_more_step(0.5, 0.0).item() == 2.0


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_every_implementation_of_adamw_goes_on_from_a_saved_state(options: Any) -> None:
    named, gradient = named_optimizer({"name": "adamw", **options}), torch.tensor([0.5, -3.0])
    straight, cut = parameter([1.0, -2.0]), parameter([1.0, -2.0])
    whole = MasterOptimizer([straight], learning_rate=0.1, named=named)
    first = MasterOptimizer([cut], learning_rate=0.1, named=named)
    take_step(whole, [gradient])
    take_step(first, [gradient])
    second = MasterOptimizer([cut], learning_rate=0.1, named=named)
    second.load_state_dict(first.state_dict())
    for optimizer in (whole, second):
        take_step(optimizer, [2 * gradient])
    assert torch.equal(straight, cut)


@pytest.mark.gpu
def test_a_step_on_cuda_makes_nothing_of_the_size_of_all_weights() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    shape, count = (2**20,), 32
    weights = [
        torch.nn.Parameter(torch.ones(shape, dtype=torch.bfloat16, device="cuda"))
        for _ in range(count)
    ]
    optimizer = MasterOptimizer(weights, learning_rate=1e-3)
    for _ in range(2):  # the first makes the moments
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        norm = optimizer.gather_gradients()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        optimizer.step(norm, 1.0)
        taken = torch.cuda.max_memory_allocated() - before
    assert taken < 0.5 * count * shape[0]
