"""Log-probabilities in chunks equal those of a plain head, and so do their gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.trainers.learner.policy.token_logprobs import token_logprobs

WIDTH, VOCABULARY = 5, 11


def plain(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias) * scale
    return torch.log_softmax(logits, dim=-1).gather(-1, targets[:, None])[:, 0]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 25),
    st.booleans(),
    st.sampled_from([1.0, 0.3]),
    st.booleans(),
)
def test_they_equal_a_plain_heads(
    device: torch.device, tokens: int, at_once: int, biased: bool, scale: float, frozen: bool
) -> None:
    draw = torch.Generator().manual_seed(tokens)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).double().to(device)

    hidden = drawn(tokens, WIDTH).requires_grad_()
    weight = drawn(VOCABULARY, WIDTH).requires_grad_(not frozen)
    bias = drawn(VOCABULARY).requires_grad_() if biased else None
    targets = torch.randint(VOCABULARY, (tokens,), generator=draw).to(device)
    trained = [t for t in (hidden, weight, bias) if t is not None and t.requires_grad]
    ours = token_logprobs(hidden, weight, bias, targets, scale=scale, at_once=at_once)
    theirs = plain(hidden, weight, bias, targets, scale)
    torch.testing.assert_close(ours, theirs)
    slope = drawn(tokens)
    for mine, other in zip(
        torch.autograd.grad(ours, trained, slope),
        torch.autograd.grad(theirs, trained, slope),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


def test_no_tokens_have_no_gradient() -> None:
    hidden, weight = torch.zeros(0, WIDTH, requires_grad=True), torch.zeros(VOCABULARY, WIDTH)
    logprobs = token_logprobs(
        hidden, weight, None, torch.zeros(0, dtype=torch.long), scale=1.0, at_once=4
    )
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert logprobs.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_float32(device: torch.device, dtype: torch.dtype) -> None:
    hidden, weight = (torch.randn(n, WIDTH).to(device, dtype) for n in (3, VOCABULARY))
    targets = torch.tensor([0, 5, 10], device=device)
    ours = token_logprobs(hidden, weight, None, targets, scale=1.0, at_once=2)
    assert ours.dtype == torch.float32
    expected = plain(hidden.float(), weight.float(), None, targets, 1.0)
    torch.testing.assert_close(ours, expected, rtol=0.02, atol=0.02)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.integers(1, 25), st.sampled_from([1e-3, 1.0, 1e3]))
def test_entropies_are_those_of_the_distributions_and_change_nothing(
    device: torch.device, tokens: int, at_once: int, size: float
) -> None:
    draw = torch.Generator().manual_seed(tokens)
    hidden = (size * torch.randn(tokens, WIDTH, generator=draw)).to(device).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, generator=draw).to(device)
    targets = torch.randint(VOCABULARY, (tokens,), generator=draw).to(device)
    alone = token_logprobs(hidden, weight, None, targets, scale=1.0, at_once=at_once)
    logprobs, entropies = token_logprobs(
        hidden, weight, None, targets, scale=1.0, at_once=at_once, entropies=True
    )
    assert torch.equal(logprobs, alone)
    gradients = [torch.autograd.grad(each.sin().sum(), hidden)[0] for each in (logprobs, alone)]
    assert torch.equal(*gradients)
    expected = torch.distributions.Categorical(logits=hidden @ weight.t()).entropy()
    atol = max(1e-4, 1e-6 * size)  # float32 holds logits of this size to so many digits
    torch.testing.assert_close(entropies, expected.detach(), rtol=1e-4, atol=atol)
    assert (entropies > -atol).all()
