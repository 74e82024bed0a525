"""The clipped policy-gradient loss, by hand on four tokens and against float64 autograd."""

import torch

from gymnast.trainers.losses import clipped


def test_the_clip_by_hand_on_four_tokens() -> None:
    ratio = torch.tensor([1.0, 1.5, 0.5, 1.5])
    advantages = torch.tensor([2.0, 2.0, -2.0, -2.0])
    result = clipped(ratio.log(), torch.zeros(4), advantages, clip_low=0.2, clip_high=0.3)
    torch.testing.assert_close(result.losses, -torch.tensor([2.0, 1.3 * 2, 0.8 * -2, 1.5 * -2]))
    torch.testing.assert_close(result.ratio, ratio)
    assert result.clipped.tolist() == [False, True, True, False]


def test_clipped_tokens_have_no_gradient_and_others_that_of_the_ratio() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs = torch.randn(64, generator=generator, dtype=torch.float64).requires_grad_()
    sampled = torch.randn(64, generator=generator, dtype=torch.float64)
    advantages = torch.randn(64, generator=generator, dtype=torch.float64)
    result = clipped(logprobs, sampled, advantages)
    result.losses.sum().backward()
    expected = torch.where(result.clipped, 0.0, -result.ratio * advantages)
    torch.testing.assert_close(logprobs.grad, expected)


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    logprobs = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([0.5, -3.0], dtype=torch.float64)
    clipped(logprobs, logprobs.detach(), advantages).losses.sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)
