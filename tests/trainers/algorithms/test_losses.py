"""Each loss by hand on four tokens, and its gradient against one derived independently."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from gymnast.trainers.algorithms.kl import DIVERGENCES
from gymnast.trainers.algorithms.losses import (
    LOSSES,
    TokenLosses,
    cispo,
    clipped,
    gspo,
    likelihood,
    reinforce,
    two_sided,
)

RATIO = torch.tensor([1.0, 1.5, 0.5, 1.5])
ADVANTAGES = torch.tensor([2.0, 2.0, -2.0, -2.0])
ZEROS = torch.zeros(4)


# --- By hand


def test_the_clip_by_hand_on_four_tokens() -> None:
    result = clipped(RATIO.log(), ZEROS, ADVANTAGES, clip_low=0.2, clip_high=0.3)
    torch.testing.assert_close(result.losses, -torch.tensor([2.0, 1.3 * 2, 0.8 * -2, 1.5 * -2]))
    torch.testing.assert_close(result.ratio, RATIO)
    assert result.clipped.tolist() == [False, True, True, False]


def test_the_third_bound_by_hand_on_four_tokens() -> None:
    ratio = torch.tensor([4.0, 1.5, 0.5, 4.0])
    result = two_sided(ratio.log(), ZEROS, ADVANTAGES, clip_bound=3.0)
    expected = -torch.tensor([1.2 * 2, 1.2 * 2, 0.8 * -2, 3.0 * -2])
    torch.testing.assert_close(result.losses, expected)
    assert result.clipped.tolist() == [True, True, True, True]
    below = two_sided(RATIO.log(), ZEROS, ADVANTAGES, clip_bound=3.0)
    torch.testing.assert_close(below.losses, clipped(RATIO.log(), ZEROS, ADVANTAGES).losses)


def test_cispo_by_hand_on_four_tokens() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    ratio = torch.tensor([1.0, 6.0, 0.1, 2.0])
    result = cispo(logprobs, logprobs - ratio.log(), ADVANTAGES, clip_low=0.5, clip_high=4.0)
    expected = -torch.tensor([1.0 * 2 * -1, 5.0 * 2 * -2, 0.5 * -2 * -3, 2.0 * -2 * -4])
    torch.testing.assert_close(result.losses, expected)
    assert result.clipped[:3].tolist() == [False, True, True]


def test_reinforce_by_hand_on_four_tokens() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    result = reinforce(logprobs, logprobs - RATIO.log(), ADVANTAGES)
    torch.testing.assert_close(result.losses, torch.tensor([2.0, 4.0, -6.0, -8.0]))
    torch.testing.assert_close(result.ratio, RATIO)
    assert not result.clipped.any()


def test_the_likelihood_by_hand_on_four_tokens() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    result = likelihood(logprobs, torch.full((4,), torch.nan), ADVANTAGES)
    torch.testing.assert_close(result.losses, torch.tensor([2.0, 4.0, -6.0, -8.0]))
    assert result.ratio.tolist() == [1.0] * 4 and not result.clipped.any()


def test_gspo_by_hand_on_four_tokens_of_two_sequences() -> None:
    ratio = torch.tensor([1.0, 4.0, 0.5, 0.5])  # geometric means 2 and 0.5
    sequences = torch.tensor([0, 0, 1, 1])
    result = gspo(ratio.log(), ZEROS, ADVANTAGES, sequences, clip_low=0.2, clip_high=0.3)
    torch.testing.assert_close(result.losses, -torch.tensor([1.3 * 2] * 2 + [0.8 * -2] * 2))
    torch.testing.assert_close(result.ratio, torch.tensor([2.0, 2.0, 0.5, 0.5]))
    assert result.clipped.all()


# --- Gradients


Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def random_inputs(seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    logprobs, sampled, advantages = (
        torch.randn(64, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    sequences = torch.randint(0, 7, (64,), generator=generator)
    return logprobs.requires_grad_(), sampled, advantages, sequences


def gradient(loss: Callable[..., TokenLosses], inputs: Inputs) -> torch.Tensor:
    logprobs = inputs[0]
    (found,) = torch.autograd.grad(loss(*inputs).losses.sum(), logprobs)
    return found


def bounded(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Where the clip of the surrogate holds, told by cases."""
    above = (advantages > 0) & (ratio > 1 + high)
    below = (advantages < 0) & (ratio < 1 - low)
    return above | below


def by_hand_clipped(logprobs: Any, sampled: Any, advantages: Any, sequences: Any) -> torch.Tensor:
    ratio = torch.exp(logprobs - sampled)
    return torch.where(bounded(ratio, advantages, 0.2, 0.2), 0.0, -ratio * advantages)


def by_hand_two_sided(logprobs: Any, sampled: Any, advantages: Any, sequences: Any) -> torch.Tensor:
    ratio = torch.exp(logprobs - sampled)
    off = bounded(ratio, advantages, 0.2, 0.2) | ((advantages < 0) & (ratio > 3))
    return torch.where(off, 0.0, -ratio * advantages)


def by_hand_cispo(logprobs: Any, sampled: Any, advantages: Any, sequences: Any) -> Any:
    return -torch.exp(logprobs - sampled).clamp(max=5.0) * advantages


def by_hand_reinforce(logprobs: Any, sampled: Any, advantages: Any, sequences: Any) -> Any:
    return -advantages


def by_hand_gspo(logprobs: Any, sampled: Any, advantages: Any, sequences: Any) -> torch.Tensor:
    result = torch.zeros_like(logprobs)
    for i in range(len(result)):
        own = sequences == sequences[i]
        ratio = torch.exp((logprobs - sampled)[own].mean())
        off = bounded(ratio, advantages[i], 3e-4, 4e-4)
        result[i] = 0.0 if off else -ratio * advantages[i]
    return result


BY_HAND = {
    "clipped": by_hand_clipped,
    "two_sided": by_hand_two_sided,
    "cispo": by_hand_cispo,
    "reinforce": by_hand_reinforce,
    "likelihood": by_hand_reinforce,
    "gspo": by_hand_gspo,
}


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("seed", range(3))
def test_gradients_in_float64_are_those_derived_by_hand(name: str, seed: int) -> None:
    inputs = random_inputs(seed)
    expected = BY_HAND[name](*(tensor.detach() for tensor in inputs))
    torch.testing.assert_close(gradient(LOSSES[name], inputs), expected)


@pytest.mark.parametrize("loss", [clipped, two_sided])
def test_gradients_are_those_of_finite_differences(loss: Callable[..., TokenLosses]) -> None:
    logprobs, sampled, advantages, _ = random_inputs()
    assert gradcheck(lambda now: loss(now, sampled, advantages).losses, (logprobs,))


def test_gspo_has_the_gradient_of_the_sequence_form() -> None:
    """Of the loss of the paper's eq. 5, a value a sequence, when its tokens share an advantage."""
    logprobs, sampled, _, sequences = random_inputs()
    of_sequence = torch.linspace(-1, 1, 7, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for number in range(7):
        own = sequences == number
        ratio = torch.exp((logprobs - sampled)[own].mean())
        clip = ratio.clamp(1 - 3e-4, 1 + 4e-4)
        total = total - torch.minimum(ratio * of_sequence[number], clip * of_sequence[number])
    (expected,) = torch.autograd.grad(total, logprobs)
    lengths = torch.bincount(sequences)
    losses = gspo(logprobs, sampled, of_sequence[sequences], sequences).losses
    (found,) = torch.autograd.grad((losses / lengths[sequences]).sum(), logprobs)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_on_policy_the_gradient_is_that_of_reinforce(name: str) -> None:
    logprobs, _, advantages, sequences = random_inputs()
    inputs = (logprobs, logprobs.detach(), advantages, sequences)
    torch.testing.assert_close(gradient(LOSSES[name], inputs), -advantages)


# --- Log-probabilities that are far apart


def column(values: Any) -> Any:
    return st.lists(values, min_size=6, max_size=6).map(torch.tensor)


logprobs_of_any_size = column(
    st.one_of(
        st.floats(-30, 0, width=32),
        st.floats(-1e30, 0, allow_subnormal=False),
        st.sampled_from([0.0, -100.0, -1e30]),
    )
)


@pytest.mark.parametrize("name", sorted(LOSSES))
@given(
    now=logprobs_of_any_size,
    sampled=logprobs_of_any_size,
    advantages=column(st.sampled_from([-1.0, 0.0, 1.0])),
)
def test_losses_and_gradients_are_finite_for_any_log_probabilities(
    name: str, now: torch.Tensor, sampled: torch.Tensor, advantages: torch.Tensor
) -> None:
    now = now.clone().requires_grad_()
    result = LOSSES[name](now, sampled, advantages, torch.tensor([0, 0, 0, 1, 1, 2]))
    (found,) = torch.autograd.grad(result.losses.sum(), now)
    assert torch.isfinite(result.losses).all() and torch.isfinite(result.ratio).all()
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
@given(now=logprobs_of_any_size, reference=logprobs_of_any_size)
def test_divergences_and_gradients_are_finite_for_any_log_probabilities(
    name: str, now: torch.Tensor, reference: torch.Tensor
) -> None:
    now = now.clone().requires_grad_()
    values = DIVERGENCES[name](now, reference)
    (found,) = torch.autograd.grad(values.sum(), now)
    assert torch.isfinite(values).all() and torch.isfinite(found).all()


@pytest.mark.parametrize(
    ("loss", "now", "sampled", "advantage", "expected"),
    [
        (two_sided, 0.0, -100.0, -1.0, 3.0),
        (clipped, 0.0, -100.0, 1.0, -1.2),
        (clipped, 0.0, -100.0, -1.0, math.exp(20)),
        (clipped, -100.0, 0.0, 1.0, -math.exp(-20)),
    ],
)
def test_a_token_a_hundred_nats_away_by_hand(
    loss: Any, now: float, sampled: float, advantage: float, expected: float
) -> None:
    """Its ratio is that of 20 nats, and has no gradient."""
    logprobs = torch.tensor([now], requires_grad=True)
    losses = loss(logprobs, torch.tensor([sampled]), torch.tensor([advantage])).losses
    assert losses.item() == pytest.approx(expected, rel=1e-5)
    assert torch.autograd.grad(losses.sum(), logprobs)[0].item() == 0.0
