"""Log-probabilities in chunks equal those of a plain head, and so do their gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.learner.memory.estimate import LOGIT_BYTES
from gymnast.trainers.learner.memory.trace import AllocationTrace, live_bytes
from gymnast.trainers.learner.policy.head import Head
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


@settings(max_examples=80, deadline=None)
@given(
    tokens=st.integers(1, 20),
    at_once=st.integers(1, 25),
    vocabulary=st.sampled_from([2, 11, 300]),
    biased=st.booleans(),
    frozen=st.booleans(),
    unused=st.booleans(),
    trained=st.booleans(),
    plainly=st.booleans(),
)
def test_entropies_and_gradients_are_autograds(
    device: torch.device,
    tokens: int,
    at_once: int,
    vocabulary: int,
    biased: bool,
    frozen: bool,
    unused: bool,
    trained: bool,
    plainly: bool,
) -> None:
    draw = torch.Generator().manual_seed(tokens)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).double().to(device)

    hidden = drawn(tokens, WIDTH).requires_grad_()
    weight = drawn(vocabulary, WIDTH).requires_grad_(not frozen)
    bias = drawn(vocabulary).requires_grad_() if biased else None
    targets = torch.randint(vocabulary, (tokens,), generator=draw).to(device)
    no_tokens = torch.tensor([vocabulary - 1], device=device) if unused else None
    found = token_logprobs(
        hidden,
        weight,
        bias,
        targets,
        scale=0.7,
        at_once=at_once,
        entropies=True,
        entropy_gradients=trained,
        unused=no_tokens,
        plain=plainly,
    )
    logits = torch.nn.functional.linear(hidden, weight, bias) * 0.7
    if no_tokens is not None:
        logits = logits.index_fill(-1, no_tokens, -1e9)
    logprobs = logits.log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    entropies = entropies if trained else entropies.detach()
    expected = torch.stack([logprobs.gather(-1, targets[:, None])[:, 0], entropies])
    torch.testing.assert_close(found, expected)
    slopes = drawn(2, tokens)
    slopes[:, tokens // 2] = 0.0
    inputs = [each for each in (hidden, weight, bias) if each is not None and each.requires_grad]
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, slopes),
        torch.autograd.grad(expected, inputs, slopes),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


class Products(TorchDispatchMode):
    """Counts matrix products while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += name in ("mm", "addmm", "addmm_", "matmul")
        return func(*args, **(kwargs or {}))


def products(
    frozen: bool, dtype: torch.dtype = torch.float32, with_gradient: bool = True, **arguments: Any
) -> tuple[int, int]:
    """Count the products of a forward and of a backward pass over one tile."""
    hidden = torch.randn(8, WIDTH, dtype=dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype).requires_grad_(not frozen)
    targets = torch.arange(8)
    forward, backward = Products(), Products()
    with torch.set_grad_enabled(with_gradient), forward:
        found = token_logprobs(hidden, weight, None, targets, scale=1.0, at_once=8, **arguments)
    if not with_gradient:
        return forward.count, 0
    with backward:
        found.sum().backward()
    return forward.count, backward.count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_head_saves_a_product(dtype: torch.dtype) -> None:
    assert products(frozen=False, dtype=dtype) == (1, 3)
    assert products(frozen=True, dtype=dtype) == (2, 0)
    assert products(frozen=True, dtype=dtype, entropies=True) == (2, 0)
    assert products(frozen=True, dtype=dtype, plain=True) == (1, 2)


def test_without_gradients_a_frozen_head_is_one_product() -> None:
    assert products(frozen=True, with_gradient=False) == (1, 0)
    assert products(frozen=True, entropies=True, entropy_gradients=True) == (1, 2)


def rounded_in_chunks(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, slopes: torch.Tensor
) -> list[torch.Tensor]:
    """Compute the gradients of a plain head in its own precision, 20 positions at a time."""
    gradients = [torch.zeros_like(hidden), torch.zeros_like(weight)]
    for at in range(0, len(hidden), 20):
        part = slice(at, at + 20)
        logits = (hidden[part] @ weight.t()).float()
        probabilities = (logits - logits.logsumexp(-1, keepdim=True)).exp()
        own = torch.nn.functional.one_hot(targets[part], len(weight))
        of_logits = (slopes[part, None] * (own - probabilities)).to(hidden.dtype)
        gradients[0][part] = of_logits @ weight
        gradients[1] += of_logits.t() @ hidden[part]
    return gradients


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("size", [0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_are_as_near_float64_as_a_plain_heads(
    device: torch.device, dtype: torch.dtype, size: float, frozen: bool
) -> None:
    """Of flat distributions, and of peaked ones that the logits' own rounding spoils."""
    draw = torch.Generator().manual_seed(0)
    tokens, vocabulary, width = 300, 2000, 64
    weight = torch.randn(vocabulary, width, generator=draw) * size / width**0.5
    targets = torch.randint(vocabulary, (tokens,), generator=draw)
    toward = torch.nn.functional.normalize(weight[targets], dim=-1) * width**0.5
    hidden = 0.3 * torch.randn(tokens, width, generator=draw)
    hidden += toward * torch.rand(tokens, 1, generator=draw)
    slopes = torch.randn(tokens, generator=draw) / tokens
    hidden, weight, targets, slopes = (
        each.to(device) for each in (hidden.to(dtype), weight.to(dtype), targets, slopes)
    )

    def computed(kind: torch.dtype) -> list[torch.Tensor]:
        inputs = [each.to(kind, copy=True) for each in (hidden, weight)]
        inputs[0].requires_grad_()
        inputs[1].requires_grad_(not frozen)
        found = token_logprobs(inputs[0], inputs[1], None, targets, scale=1.0, at_once=20)
        trained = [each for each in inputs if each.requires_grad]
        return list(torch.autograd.grad(found, trained, slopes.to(found.dtype)))

    exact, found = computed(torch.float64), computed(dtype)
    before = rounded_in_chunks(hidden, weight, targets, slopes)

    def distance(gradient: torch.Tensor, exact: torch.Tensor) -> float:
        return float((gradient.double() - exact).norm() / exact.norm())

    for mine, theirs, reference in zip(found, before, exact, strict=False):
        # Sums of float32 differ by their order, and half precision by luck.
        assert distance(mine, reference) < 1.05 * distance(theirs, reference) + 2e-7


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_broken_state_is_seen(dtype: torch.dtype, frozen: bool) -> None:
    hidden = torch.randn(3, WIDTH, dtype=dtype)
    hidden[1] = torch.nan
    hidden.requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype).requires_grad_(not frozen)
    found = token_logprobs(hidden, weight, None, torch.tensor([0, 1, 2]), scale=1.0, at_once=3)
    assert found.isnan().tolist() == [False, True, False]
    found.nansum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isnan().all(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("trained", [False, True], ids=["measured", "trained"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tensors_of_a_call_are_as_estimated(dtype: torch.dtype, trained: bool) -> None:
    tokens, vocabulary, at_once = 600, 5000, 100
    hidden = torch.randn(tokens, 8, dtype=dtype).requires_grad_()
    weight = torch.randn(vocabulary, 8, dtype=dtype).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,))
    with AllocationTrace(torch.device("cpu")) as trace:
        found = token_logprobs(
            hidden,
            weight,
            None,
            targets,
            scale=1.0,
            at_once=at_once,
            entropies=True,
            entropy_gradients=trained,
        )
        found.sum().backward()
    peak = int(live_bytes(torch.tensor(trace.sizes).numpy(), trace.events).max())
    estimate = LOGIT_BYTES * at_once * vocabulary
    small = 4 * (weight.nbytes + hidden.nbytes)  # gradients and what has a number for a position
    assert estimate * (0.7 if dtype == torch.float32 else 0.9) < peak < estimate + small


def head_of(frozen: bool) -> tuple[Head, torch.Tensor, torch.Tensor]:
    model = tiny_model().requires_grad_(not frozen)
    hidden = torch.randn(6, model.config.hidden_size)
    return Head(model, temperature=0.7, unused_ids=[3]), hidden, torch.arange(4, 10)


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("name", ["logprobs", "logprobs_and_entropies"])
def test_a_head_computes_the_same_plainly(name: str, frozen: bool) -> None:
    head, hidden, targets = head_of(frozen)
    found = []
    for plain in (False, True):
        head.plain = plain
        state = hidden.clone().requires_grad_()
        result = getattr(head, name)(state, targets)
        (gradient,) = torch.autograd.grad(result.sin().sum(), state)
        found.append((result.detach(), gradient))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_heads_entropies_have_no_tensor_for_autograd() -> None:
    """Neither logits nor their log-softmax are kept: the peak is that of the log-probabilities."""
    head, _, _ = head_of(frozen=False)
    assert head.is_matrix
    hidden = torch.randn(2000, tiny_model().config.hidden_size).requires_grad_()
    targets = torch.arange(4, 104).repeat(20)
    peaks = []
    for entropies in (False, True):
        with AllocationTrace(torch.device("cpu")) as trace:
            if entropies:
                found = head.logprobs_and_entropies(hidden, targets)
            else:
                found = head.logprobs(hidden, targets, entropies=True)
            found.sum().backward()
        peaks.append(live_bytes(torch.tensor(trace.sizes).numpy(), trace.events).max())
    assert peaks[1] < 1.3 * peaks[0]
