"""What a gradient loses when it is added up over many micro-batches in bfloat16: nothing."""

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from gymnast.trainers.algorithms.algorithm import make_algorithm
from gymnast.trainers.algorithms.losses import LOSSES
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.update import UpdateSettings, update
from sampled_groups import Groups, KeepsGradients, bfloat16_model, short_groups


def gradient(model: Any, groups: Groups, tokens_per_microbatch: int) -> torch.Tensor:
    optimizer = KeepsGradients(model.parameters(), learning_rate=0.0)
    algorithm = make_algorithm("dr_grpo", loss="reinforce")
    settings = UpdateSettings(algorithm, math.inf, tokens_per_microbatch)
    metrics = update(Policy(model), optimizer, groups, settings, Accelerator()).metrics
    assert metrics["updates/taken"] == 1
    return torch.cat([gradient.flatten().double() for gradient in optimizer.gradients])


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def test_many_micro_batches_in_bfloat16_give_the_sum_of_their_gradients() -> None:
    groups, model = short_groups()[:16], bfloat16_model()
    expected = torch.stack([gradient(model, [group], 2048) for group in groups]).mean(0)
    assert apart(gradient(model, groups, 12), expected) < 1e-6


def test_many_micro_batches_in_bfloat16_are_as_near_to_float32_as_one() -> None:
    """Added up in bfloat16, they were half as far again: 1.6% for 1.0%."""
    groups, model = short_groups(), bfloat16_model()
    expected = gradient(bfloat16_model().float(), groups, 2048)
    one, many = (apart(gradient(model, groups, tokens), expected) for tokens in (2048, 1))
    assert many < 1.1 * one < 0.02


def test_what_an_error_left_of_a_step_is_not_in_the_next_one() -> None:
    groups, model = short_groups()[:4], bfloat16_model()
    expected = gradient(model, groups, 12)
    optimizer = KeepsGradients(model.parameters(), learning_rate=0.0)
    calls: list[int] = []

    def breaks_off(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError
        return LOSSES["reinforce"](*given)

    whole = make_algorithm("dr_grpo", loss="reinforce")
    for algorithm in (replace(whole, loss=breaks_off), whole):
        settings = UpdateSettings(algorithm, math.inf, 12)
        with suppress(ZeroDivisionError):
            update(Policy(model), optimizer, groups, settings, Accelerator())
    assert len(calls) == 3
    found = torch.cat([kept.flatten().double() for kept in optimizer.gradients])
    assert torch.equal(found, expected)


def test_one_micro_batch_keeps_its_gradient_in_the_weights_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing in float32 stands beside the passes then."""
    calls: list[int] = []
    add = KeepsGradients.add_gradients

    def counted(optimizer: KeepsGradients) -> None:
        calls.append(1)
        add(optimizer)

    monkeypatch.setattr(KeepsGradients, "add_gradients", counted)
    gradient(bfloat16_model(), short_groups(), 2048)
    assert len(calls) == 1, "at the optimizer's step"
