"""Tiles of logits: plain torch, and kernels interpreted, compiled for GPUs, and run on one."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled_kernels import CAPABILITIES, TYPES, check_resources, compiled
from gymnast.trainers.learner.policy.logit_tiles import (
    GRADIENT_BLOCK,
    GRADIENT_WARPS,
    MEASURE_BLOCK,
    MEASURE_WARPS,
    NEVER,
    Columns,
    Measures,
    differentiate,
    differentiate_plain,
    kernels_serve,
    measure,
    measure_plain,
    scratch_tiles,
)
from gymnast.trainers.learner.policy.token_logprobs import token_logprobs

# Of values of order 1, and of gradients that are stored in the type of the logits.
ROUNDING = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
STAGES = 3  # Triton's default
WIDE = re.compile(r"muli %\S+, %\S+ : i64")  # offsets of rows, in 64 bits


@dataclass(frozen=True)
class Spec:
    """The shape of a tile, and what its columns have."""

    seed: int = 0
    rows: int = 3
    vocabulary: int = 50
    dtype: torch.dtype = torch.float32
    size: float = 3.0
    scale: float = 1.0
    bias: bool = False
    unused: bool = False
    entropies: bool = True


SPECS = st.builds(
    Spec,
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 5),
    vocabulary=st.one_of(
        st.integers(2, 300),
        st.sampled_from([n + d for n in (GRADIENT_BLOCK, MEASURE_BLOCK) for d in (-1, 0, 1)]),
        st.integers(2 * MEASURE_BLOCK, 3 * MEASURE_BLOCK),
    ),
    dtype=st.sampled_from(list(TYPES)),
    size=st.sampled_from([0.01, 3.0, 30.0]),
    scale=st.sampled_from([1.0, 0.3, 1.7]),
    bias=st.booleans(),
    unused=st.booleans(),
    entropies=st.booleans(),
)


@dataclass(frozen=True)
class Case:
    """A tile of all ids, and the slopes of a loss."""

    logits: torch.Tensor
    targets: torch.Tensor
    columns: Columns
    slopes: torch.Tensor
    entropy_slopes: torch.Tensor | None

    def to(self, device: torch.device) -> "Case":
        """Copy it there."""
        bias, unused = self.columns.bias, self.columns.unused
        columns = Columns(
            self.columns.scale,
            None if bias is None else bias.to(device),
            None if unused is None else unused.to(device),
        )
        slopes = self.entropy_slopes
        return Case(
            self.logits.to(device),
            self.targets.to(device),
            columns,
            self.slopes.to(device),
            None if slopes is None else slopes.to(device),
        )


@dataclass(frozen=True)
class Found:
    """The measures of a tile and its gradients: of the loss, and of log-probabilities alone."""

    measures: Measures
    gradient: torch.Tensor
    others: torch.Tensor


def make_case(spec: Spec) -> Case:
    draw = torch.Generator().manual_seed(spec.seed)
    shape = (spec.rows, spec.vocabulary)
    unused = torch.rand(spec.vocabulary, generator=draw) < 0.3 if spec.unused else None
    targets = torch.randint(spec.vocabulary, (spec.rows,), generator=draw)
    if unused is not None:
        unused[targets] = False
    slopes = torch.randn(2, spec.rows, generator=draw)
    slopes[:, 0] = 0.0
    return Case(
        (spec.size * torch.randn(shape, generator=draw)).to(spec.dtype),
        targets,
        Columns(
            spec.scale,
            torch.randn(spec.vocabulary, generator=draw).to(spec.dtype) if spec.bias else None,
            unused,
        ),
        slopes[0],
        slopes[1] if spec.entropies else None,
    )


def by_autograd(case: Case) -> Found:
    """In float64, by autograd."""
    logits = case.logits.double().requires_grad_()
    scaled = logits if case.columns.bias is None else logits + case.columns.bias.double()
    scaled = scaled * case.columns.scale
    if case.columns.unused is not None:
        scaled = scaled.masked_fill(case.columns.unused, NEVER)
    sums = scaled.logsumexp(-1)
    all_logprobs = scaled - sums[:, None]
    logprobs = all_logprobs.gather(-1, case.targets[:, None])[:, 0]
    entropies = -(all_logprobs.exp() * all_logprobs.clamp(min=NEVER)).sum(-1)
    loss = logprobs @ case.slopes.double()
    if case.entropy_slopes is not None:
        loss = loss + entropies @ case.entropy_slopes.double()
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (others,) = torch.autograd.grad(logprobs.sum(), logits)
    others = others.scatter(-1, case.targets[:, None], 0.0)
    measures = Measures(logprobs.detach(), sums.detach(), entropies.detach())
    return Found(measures, gradient, others)


def by_kernels(case: Case, parts: int = 1) -> Found:
    """By kernels; the gradients in tiles of some columns each."""
    entropies = case.entropy_slopes is not None
    measures = measure(case.logits, case.targets, case.columns, entropies=entropies)
    gradient = []
    for block in blocks(case, parts):
        columns, tile = case.columns.part(block), case.logits[:, block].clone()
        tile = differentiate(
            tile, case.targets, columns, measures, case.slopes, case.entropy_slopes
        )
        gradient.append(tile)
    ones = torch.ones_like(measures.sums)
    others = differentiate(
        case.logits.clone(), case.targets, case.columns, measures, ones, with_target=False
    )
    return Found(measures, torch.cat(gradient, -1), others)


def by_torch(case: Case, parts: int = 1) -> Found:
    entropies = case.entropy_slopes is not None
    shape = (scratch_tiles(case.logits.dtype, entropies=entropies), case.logits.numel())
    scratch = torch.empty(shape, device=case.logits.device)
    others = case.logits.clone()
    given = (case.targets, case.columns, scratch)
    measures = measure_plain(others, *given, entropies=entropies, gradients=True)
    again = measure_plain(case.logits.clone(), *given, entropies=entropies)
    assert torch.equal(again.logprobs.nan_to_num(), measures.logprobs.nan_to_num())
    gradient = []
    for block in blocks(case, parts):
        columns, tile = case.columns.part(block), case.logits[:, block].clone()
        slopes = (case.slopes, case.entropy_slopes)
        gradient.append(
            differentiate_plain(tile, case.targets, columns, measures, *slopes, scratch)
        )
    return Found(measures, torch.cat(gradient, -1), others)


def blocks(case: Case, parts: int) -> list[slice]:
    vocabulary = case.logits.shape[1]
    size = -(-vocabulary // parts)
    return [slice(at, min(at + size, vocabulary)) for at in range(0, vocabulary, size)]


def check(found: Found, expected: Found, spec: Spec) -> None:
    atol = 3e-6 * max(1.0, spec.size * spec.scale)  # float32 holds logits of this size
    one, other = found.measures, expected.measures
    assert one.logprobs.dtype == torch.float32
    torch.testing.assert_close(one.logprobs.double(), other.logprobs, rtol=1e-6, atol=2 * atol)
    torch.testing.assert_close(one.sums.double(), other.sums, rtol=1e-6, atol=2 * atol)
    if spec.entropies:
        assert one.entropies is not None and other.entropies is not None
        torch.testing.assert_close(
            one.entropies.double(), other.entropies, rtol=1e-5, atol=4 * atol
        )
    else:
        assert one.entropies is None
    for mine, theirs in ((found.gradient, expected.gradient), (found.others, expected.others)):
        assert mine.dtype == spec.dtype
        rtol = max(ROUNDING[spec.dtype], 10 * atol)
        torch.testing.assert_close(mine.double(), theirs, rtol=rtol, atol=rtol)


@settings(max_examples=60)
@given(SPECS, st.integers(1, 4))
def test_plain_torch_gives_autograds_values(spec: Spec, parts: int) -> None:
    case = make_case(spec)
    check(by_torch(case, parts), by_autograd(case), spec)


@pytest.mark.triton
@settings(max_examples=40)
@given(SPECS, st.integers(1, 4))
def test_kernels_give_autograds_values(
    interpreted: Callable[..., Any], spec: Spec, parts: int
) -> None:
    case = make_case(spec)
    check(interpreted(by_kernels, case, parts), by_autograd(case), spec)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TYPES)
def test_kernels_read_and_write_nothing_else(
    interpreted: Callable[..., Any], dtype: torch.dtype
) -> None:
    spec = Spec(vocabulary=GRADIENT_BLOCK + 3, dtype=dtype)
    untouched, overrun = interpreted(_around_the_tile, spec)
    assert untouched and overrun


def _around_the_tile(spec: Spec) -> tuple[bool, bool]:
    """Measure a tile that lies amid NaN, and differentiate it."""
    case = make_case(spec)
    rows, width = case.logits.shape
    memory = torch.full(((rows + 2) * width,), torch.nan, dtype=spec.dtype)
    tile = memory[width : (rows + 1) * width].view(rows, width).copy_(case.logits)
    measures = measure(tile, case.targets, case.columns, entropies=True)
    untouched = torch.equal(tile, case.logits) and bool(measures.sums.isfinite().all())
    differentiate(tile, case.targets, case.columns, measures, case.slopes, case.entropy_slopes)
    outside = torch.cat([memory[:width], memory[-width:]])
    return untouched, bool(outside.isnan().all() and tile.isfinite().all())


WAYS = [pytest.param("plain", id="plain"), pytest.param("kernels", marks=pytest.mark.triton)]


@pytest.fixture
def compute(request: pytest.FixtureRequest) -> Callable[[str, Case], Found]:
    """Measure and differentiate by plain torch, or by interpreted kernels."""

    def compute(way: str, case: Case) -> Found:
        if way == "plain":
            return by_torch(case)
        found: Found = request.getfixturevalue("interpreted")(by_kernels, case)
        return found

    return compute


@pytest.mark.parametrize("way", WAYS)
def test_ids_of_probability_0_have_no_share(compute: Callable[..., Found], way: str) -> None:
    """A bias or a sum beyond the range of float16 makes a logit minus infinity."""
    case = make_case(Spec(vocabulary=20))
    keep = torch.ones(20, dtype=torch.bool)
    keep[[1, 5, 19]] = False
    keep[case.targets] = True
    case.logits[:, ~keep] = -torch.inf
    found = compute(way, case)
    finite = case.logits[:, keep]
    targets = keep.cumsum(0)[case.targets] - 1
    expected = by_autograd(replace(case, logits=finite, targets=targets))
    assert found.measures.entropies is not None and expected.measures.entropies is not None
    for mine, theirs in (
        (found.measures.logprobs, expected.measures.logprobs),
        (found.measures.entropies, expected.measures.entropies),
        (found.gradient[:, keep], expected.gradient),
        (found.others[:, keep], expected.others),
    ):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
    assert not found.gradient[:, ~keep].any() and not found.others[:, ~keep].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("column", [0, 7, 19])
def test_broken_logits_are_seen(
    compute: Callable[..., Found], way: str, broken: float, column: int
) -> None:
    case = make_case(Spec(vocabulary=20))
    case.logits[1, column] = broken
    found = compute(way, case)
    assert found.measures.entropies is not None
    for each in (found.measures.logprobs, found.measures.sums, found.measures.entropies):
        assert not each[1].isfinite() and each[[0, 2]].isfinite().all()
    assert not found.gradient[1].isfinite().all()
    assert found.gradient[[0, 2]].isfinite().all()


@pytest.mark.parametrize("way", WAYS)
def test_a_row_of_minus_infinity_is_no_distribution(
    compute: Callable[..., Found], way: str
) -> None:
    case = make_case(Spec(vocabulary=20))
    case.logits[1] = -torch.inf
    found = compute(way, case)
    assert found.measures.entropies is not None
    assert found.measures.logprobs[1].isnan() and found.measures.entropies[1].isnan()
    assert not found.gradient[1].isfinite().any()
    assert found.gradient[[0, 2]].isfinite().all()


@pytest.mark.parametrize("way", WAYS)
def test_broken_slopes_are_seen(compute: Callable[..., Found], way: str) -> None:
    case = make_case(Spec(vocabulary=20, entropies=False))
    case.slopes[1] = torch.nan
    found = compute(way, case)
    assert found.gradient[1].isnan().all() and found.gradient[[0, 2]].isfinite().all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1e3, 1e4])
def test_large_logits_are_exact_relative_to_the_largest(
    compute: Callable[..., Found], way: str, size: float
) -> None:
    spec = Spec(vocabulary=300)
    case = make_case(spec)
    found = compute(way, replace(case, logits=(case.logits + size)))
    expected = by_autograd(replace(case, logits=(case.logits + size)))
    assert found.measures.entropies is not None and expected.measures.entropies is not None
    for mine, theirs in (
        (found.measures.logprobs, expected.measures.logprobs),
        (found.measures.entropies, expected.measures.entropies),
    ):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-6, atol=4e-6)


@pytest.mark.parametrize("way", WAYS)
def test_slopes_of_zero_give_gradients_of_zero(compute: Callable[..., Found], way: str) -> None:
    case = make_case(Spec(rows=4, vocabulary=100))
    found = compute(way, case)
    assert not found.gradient[0].any() and found.gradient[1:].any(-1).all()


@pytest.mark.parametrize("way", WAYS)
def test_an_unused_target_has_no_gradient(compute: Callable[..., Found], way: str) -> None:
    case = make_case(Spec(vocabulary=20, unused=True))
    assert case.columns.unused is not None
    case.columns.unused[case.targets[1]] = True
    case.logits[:, case.columns.unused] = torch.nan  # nobody reads them
    found = compute(way, case)
    assert found.measures.logprobs[1] < NEVER / 2
    assert not found.gradient[:, case.columns.unused].any()
    assert found.gradient.isfinite().all() and found.others.isfinite().all()


def test_only_a_gpu_with_triton_has_kernels() -> None:
    assert not kernels_serve(torch.zeros(1))
    assert not kernels_serve(torch.zeros(1, device="meta"))


def by_head(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    slopes: torch.Tensor,
    **arguments: Any,
) -> list[torch.Tensor]:
    """Return log-probabilities, entropies and gradients of all that is trained, by kernels."""
    if hidden.device.type == "cpu":
        serve_everywhere()
    trained = [each for each in (hidden, weight, bias) if each is not None and each.requires_grad]
    found = token_logprobs(hidden, weight, bias, targets, entropies=True, **arguments)
    return [found.detach(), *torch.autograd.grad(found, trained, slopes)]


def serve_everywhere() -> None:
    """In the process of the interpreter, tensors on the CPU are the kernels'."""
    module = import_module("gymnast.trainers.learner.policy.token_logprobs")
    setattr(module, kernels_serve.__name__, lambda hidden: True)


HEADS = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 12),
        "vocabulary": st.sampled_from([3, 37, 200, GRADIENT_BLOCK + 1]),
        "at_once": st.integers(1, 14),
        "dtype": st.sampled_from(list(TYPES)),
        "biased": st.booleans(),
        "trained": st.booleans(),
        "unused": st.booleans(),
        "entropy_gradients": st.booleans(),
    }
)


def check_head(drawn: dict[str, Any], device: torch.device, run: Callable[..., Any]) -> None:
    draw = torch.Generator().manual_seed(drawn["tokens"])
    dtype, vocabulary = drawn["dtype"], drawn["vocabulary"]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).to(device, dtype)

    hidden = normal(drawn["tokens"], 16).requires_grad_()
    weight = normal(vocabulary, 16).requires_grad_(drawn["trained"])
    bias = normal(vocabulary).requires_grad_(drawn["trained"]) if drawn["biased"] else None
    targets = torch.randint(vocabulary, (drawn["tokens"],), generator=draw).to(device)
    unused = torch.tensor([0, vocabulary - 1], device=device) if drawn["unused"] else None
    slopes = torch.randn(2, drawn["tokens"], generator=draw).to(device)
    if not drawn["entropy_gradients"]:
        slopes[1] = 0.0
    arguments = {
        "scale": 0.7,
        "at_once": drawn["at_once"],
        "unused": unused,
        "entropy_gradients": drawn["entropy_gradients"],
    }
    found = run(by_head, hidden, weight, bias, targets, slopes, **arguments)

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().double().requires_grad_(tensor.requires_grad)

    exact = (wide(hidden), wide(weight), None if bias is None else wide(bias))
    expected = token_logprobs(*exact, targets, entropies=True, plain=True, **arguments)
    trained = [each for each in exact if each is not None and each.requires_grad]
    gradients = torch.autograd.grad(expected, trained, slopes.double())
    for mine, theirs in zip(found, [expected.detach(), *gradients], strict=True):
        rtol = 3 * ROUNDING[dtype]
        size = max(1.0, float(theirs[theirs > NEVER / 2].abs().max())) if theirs.numel() else 1.0
        torch.testing.assert_close(mine.double(), theirs, rtol=rtol, atol=rtol * size)


@pytest.mark.triton
@settings(max_examples=30)
@given(HEADS)
def test_kernels_serve_a_head(interpreted: Callable[..., Any], drawn: dict[str, Any]) -> None:
    def run(function: Callable[..., Any], *given: Any, **arguments: Any) -> Any:
        return interpreted(_called, function, given, arguments)

    check_head(drawn, torch.device("cpu"), run)


def _called(function: Callable[..., Any], given: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    return function(*given, **arguments)


def configurations() -> Iterator[Any]:
    """All of what a launch may pass, for each card; with and without aligned rows."""
    for capability, dtype in product(CAPABILITIES, TYPES):
        for flags in product([False, True], repeat=3):
            columns = "i32" if all(flags) else "i32 by 16"
            name = "".join("ny"[each] for each in flags)
            some = any(flags) and not all(flags)  # takes minutes for all of them
            yield pytest.param(
                capability,
                dtype,
                *flags,
                columns,
                id=f"{capability}-{TYPES[dtype]}-{name}",
                marks=[pytest.mark.slow] if some else [],
            )


@pytest.mark.triton
@pytest.mark.parametrize(
    ("capability", "dtype", "bias", "unused", "entropies", "columns"), [*configurations()]
)
def test_kernels_fit_every_card(
    capability: int,
    dtype: torch.dtype,
    bias: bool,
    unused: bool,
    entropies: bool,
    columns: str,
    tmp_path: Path,
) -> None:
    """Hardly a spilled register, no TF32, no more shared memory than consumer cards have."""
    pytest.importorskip("triton")
    from gymnast.trainers.learner.policy import logit_kernels

    pointers = {
        **dict.fromkeys(["logits", "bias"], f"*{TYPES[dtype]}"),
        **dict.fromkeys(["sums", "entropies"], "*fp32"),
        "targets": "*i64",
        "unused": "*i8",
    }
    flags = {"HAS_BIAS": bias, "HAS_UNUSED": unused, "HAS_ENTROPIES": entropies}
    measured = compiled(
        logit_kernels.measure_rows,
        capability,
        MEASURE_WARPS,
        STAGES,
        **pointers,
        **flags,
        logprobs="*fp32",
        scale="fp32",
        columns=columns,
        BLOCK=MEASURE_BLOCK,
    )
    check_resources(measured, capability, tmp_path)
    assert WIDE.search(measured.asm["ttir"])
    for with_target in (True,) if entropies else (True, False):
        differentiated = compiled(
            logit_kernels.differentiate_tile,
            capability,
            GRADIENT_WARPS,
            STAGES,
            **pointers,
            **flags,
            slopes="*fp32",
            entropy_slopes="*fp32",
            scale="fp32",
            first="i32",
            columns=columns,
            BLOCK=GRADIENT_BLOCK,
            HAS_TARGET=with_target,
        )
        check_resources(differentiated, capability, tmp_path)
        assert WIDE.search(differentiated.asm["ttir"])


@pytest.fixture
def gpu() -> torch.device:
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("parts", [1, 3])
@settings(max_examples=60)
@given(SPECS)
def test_kernels_give_autograds_values_on_a_gpu(gpu: torch.device, parts: int, spec: Spec) -> None:
    case = make_case(spec)
    assert kernels_serve(case.to(gpu).logits)
    found = by_kernels(case.to(gpu), parts)
    on_host = [None if each is None else each.cpu() for each in vars(found.measures).values()]
    assert on_host[0] is not None and on_host[1] is not None
    measures = Measures(on_host[0], on_host[1], on_host[2])
    check(Found(measures, found.gradient.cpu(), found.others.cpu()), by_autograd(case), spec)


@pytest.mark.gpu
@settings(max_examples=60)
@given(HEADS)
def test_kernels_serve_a_head_on_a_gpu(gpu: torch.device, drawn: dict[str, Any]) -> None:
    check_head(drawn, gpu, lambda function, *given, **arguments: function(*given, **arguments))


@pytest.mark.gpu
def test_tiles_may_exceed_2_to_the_31_logits(gpu: torch.device) -> None:
    rows, width = 2**15 + 2, 2**16
    logits = torch.zeros(rows, width, dtype=torch.float16, device=gpu)
    logits[-1] = torch.randn(width).half()
    targets = torch.full((rows,), 5, device=gpu)
    last = Case(logits[-1:].cpu(), targets[-1:].cpu(), Columns(1.0), torch.ones(1), None)
    expected = by_autograd(last)
    measures = measure(logits, targets, Columns(1.0), entropies=False)
    torch.testing.assert_close(measures.logprobs[-1:].cpu().double(), expected.measures.logprobs)
    slopes = torch.ones(rows, device=gpu)
    tile = differentiate(logits, targets, Columns(1.0), measures, slopes)
    torch.testing.assert_close(tile[-1:].cpu().double(), expected.gradient, rtol=2e-3, atol=1e-6)
