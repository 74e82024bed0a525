"""`choose` draws what Transformers' processors leave, each row by itself, in a static step."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fake_cuda import fake_cuda, waits
from gymnast.agents.engine.sampling import (
    Draws,
    RowSettings,
    choose,
    filters_in,
    sample,
    settings_of,
    uniforms,
)
from gymnast.types import Sampling

LAST = 1 - 2.0**-53
FIELDS = {
    "none": Sampling(),
    "temperature": Sampling(temperature=1.7),
    "top_k": Sampling(top_k=9),
    "top_p": Sampling(top_p=0.8),
    "min_p": Sampling(min_p=0.12),
    "repetition_penalty": Sampling(repetition_penalty=1.6),
    "all": Sampling(temperature=1.3, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=0.7),
}
PARAMETERS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-300, 0.3, 1.0, 1.5, math.inf]),
    top_k=st.sampled_from([0, 1, 7, 256, 257, 10**30]),
    top_p=st.sampled_from([1e-12, 0.0507, 0.613, 0.951, 1.0]),
    min_p=st.sampled_from([0.0, 0.117, 0.72, 1.0]),
    repetition_penalty=st.sampled_from([0.8, 1.0, 1.3]),
)
PARTS = [
    {"filtered": filtered, "ranked": ranked, "penalised": penalised}
    for filtered, ranked in [(False, False), (True, False), (True, True)]
    for penalised in (False, True)
]
UNFILTERED: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
POINTS = st.one_of(st.sampled_from([0.0, LAST, 0.5]), st.floats(0, LAST))


def pack(samplings: Sequence[Sampling], points: np.ndarray) -> np.ndarray:
    """Return what `RowSettings.unpack` takes: float64 [6, S]."""
    rows = [(*settings_of(each), point) for each, point in zip(samplings, points, strict=True)]
    return np.array(rows).reshape(-1, 6).T.copy()


def chosen(
    logits: torch.Tensor,
    samplings: Sequence[Sampling],
    points: Sequence[float] | np.ndarray,
    seen: torch.Tensor,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose with the parts that these rows need, or with those named."""
    settings = RowSettings.unpack(torch.tensor(pack(samplings, np.array(points))).to(logits.device))
    return choose(logits, settings, **{**filters_in(samplings)._asdict(), "seen": seen, **others})


def expected_logprobs(
    logits: torch.Tensor, sampling: Sampling, context: Sequence[int]
) -> torch.Tensor:
    """The log-probabilities [V] after Transformers' processors, in the order of `generate`."""
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature > 0:
        processors += [
            TemperatureLogitsWarper(min(max(sampling.temperature, 1e-30), 1e30)),
            TopKLogitsWarper(sampling.top_k or logits.numel()),
            TopPLogitsWarper(sampling.top_p),
            MinPLogitsWarper(sampling.min_p),
        ]
    scores: torch.Tensor = processors(torch.tensor([list(context)]), logits.float()[None].clone())
    return scores[0].double().log_softmax(-1)


def seen_in(context: Sequence[int], vocabulary: int) -> torch.Tensor:
    seen = torch.zeros(1, vocabulary, dtype=torch.bool)
    seen[0, list(context)] = True
    return seen


def random_logits(rows: int, vocabulary: int, scale: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.manual_seed(seed)) * scale


# --- The distribution


@pytest.mark.parametrize("field", FIELDS)
def test_draws_follow_transformers_distribution(field: str, device: torch.device) -> None:
    logits, context, count = random_logits(1, 40, 1.5), [1, 2, 5, 9, 30, 31, 32], 40_000
    samplings = [FIELDS[field]] * count
    points = uniforms(np.arange(count, dtype=np.uint64), 3)
    seen = seen_in(context, 40).to(device).expand(count, -1)
    ids, logprobs = chosen(logits.to(device).expand(count, -1), samplings, points, seen)
    expected = expected_logprobs(logits[0], FIELDS[field], context)
    counts, shares = torch.bincount(ids.cpu(), minlength=40), expected.exp() * count
    assert (counts[shares == 0] == 0).all()
    counts, shares = counts[shares > 0], shares[shares > 0]
    assert shares.min() >= 5, "every token counts in the test"
    statistic = ((counts - shares) ** 2 / shares).sum()
    freedom = torch.tensor((len(shares) - 1) / 2.0, dtype=torch.float64)
    assert torch.special.gammaincc(freedom, statistic / 2) > 1e-3
    torch.testing.assert_close(logprobs.cpu(), expected[ids.cpu()], rtol=0, atol=1e-5)


@given(
    st.integers(1, 500),
    PARAMETERS,
    st.lists(POINTS, min_size=1, max_size=20),
    st.integers(0, 1000),
    st.booleans(),
)
def test_logprobs_are_those_of_transformers_processors(
    vocabulary: int, sampling: Sampling, points: list[float], seed: int, ties: bool
) -> None:
    logits = random_logits(1, vocabulary, seed=seed)
    logits = logits.round() if ties else logits
    context = [seed % vocabulary, vocabulary // 2]
    rows = len(points)
    ids, logprobs = chosen(
        logits.expand(rows, -1),
        [sampling] * rows,
        points,
        seen_in(context, vocabulary).expand(rows, -1),
    )
    expected = expected_logprobs(logits[0], sampling, context)
    if ties:  # Transformers' sort leaves open which of the equal tokens at an edge top-p drops
        scores = expected_logprobs(logits[0], replace(sampling, **UNFILTERED), context)
        expected = torch.stack([expected[scores == score].max() for score in scores])
    torch.testing.assert_close(logprobs, expected[ids], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("probabilities", "sampling", "kept"),
    [
        ([0.4, 0.2, 0.2, 0.1, 0.1], Sampling(top_k=2), [0, 1, 2]),  # ties with the k-th stay
        ([0.4, 0.2, 0.2, 0.1, 0.1], Sampling(top_k=2, top_p=0.999), [0, 1, 2]),
        ([0.4, 0.3, 0.2, 0.1], Sampling(top_k=2, top_p=0.99), [0, 1]),
        ([0.25, 0.5, 0.25], Sampling(top_p=0.5), [1]),
        ([0.25, 0.25, 0.25, 0.25], Sampling(top_p=0.5), [2, 3]),
        ([0.1] * 10, Sampling(top_p=0.9), [*range(1, 10)]),
        ([0.5, 0.25, 0.125, 0.125], Sampling(min_p=0.5), [0, 1]),
        ([0.3, 0.4, 0.2, 0.1], Sampling(top_p=1e-9), [1]),
        ([0.4, 0.3, 0.2, 0.1], Sampling(top_k=3, top_p=0.75), [0, 1]),  # 4/9 + 3/9 reach it
    ],
)
def test_boundaries_are_those_of_transformers(
    probabilities: list[float], sampling: Sampling, kept: list[int]
) -> None:
    logits = torch.tensor(probabilities).log()
    expected = expected_logprobs(logits, sampling, [0]).isfinite()
    points = list(np.linspace(0, LAST, 400))
    seen = torch.zeros(400, len(probabilities), dtype=torch.bool)
    ids, _ = chosen(logits.expand(400, -1), [sampling] * 400, points, seen)
    assert ids.unique().tolist() == kept
    assert torch.equal(logits[kept].sort()[0], logits[expected].sort()[0])


def test_top_p_drops_equal_tokens_in_their_order(device: torch.device) -> None:
    points = np.linspace(0, LAST, 2000)
    seen = torch.zeros(2000, 1000, dtype=torch.bool, device=device)
    logits = torch.zeros(2000, 1000, device=device)
    ids, _ = chosen(logits, [Sampling(top_p=0.5)] * 2000, points, seen)
    assert ids.unique().tolist() == list(range(500, 1000))


def test_greedy_rows_take_the_first_peak_unfiltered() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0]])
    sampling = Sampling(temperature=0.0, top_k=1, top_p=0.1, min_p=0.9)
    assert not filters_in([sampling]).filtered
    seen = torch.tensor([[False, True, False, False]])
    for parts in PARTS:
        ids, logprobs = chosen(logits, [sampling], [LAST], seen, **parts)
        assert ids.tolist() == [1]
        assert logprobs.item() == pytest.approx(float(logits[0].log_softmax(0)[1]), abs=1e-6)
    penalised = replace(sampling, repetition_penalty=1.5)
    ids, logprobs = chosen(logits, [penalised], [LAST], seen)
    assert ids.tolist() == [3]
    expected = expected_logprobs(logits[0], penalised, [1])[3]
    assert logprobs.item() == pytest.approx(float(expected), abs=1e-6)


# --- Rows by themselves


@given(
    st.sampled_from([2, 37, 150, 1025]),
    st.lists(st.tuples(PARAMETERS, POINTS), min_size=1, max_size=6),
    st.integers(0, 1000),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_row_is_the_same_bits_in_any_batch(
    vocabulary: int, rows: list[tuple[Sampling, float]], seed: int, dtype: torch.dtype
) -> None:
    samplings, points = zip(*rows, strict=True)
    logits = random_logits(len(rows), vocabulary, seed=seed).to(dtype)
    seen = torch.rand(logits.shape, generator=torch.manual_seed(seed)) < 0.3
    together = chosen(logits, samplings, points, seen, filtered=True, ranked=True, penalised=True)
    for row, (sampling, point) in enumerate(rows):
        alone = chosen(logits[row : row + 1], [sampling], [point], seen[row : row + 1])
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(one[0], other[row])


@pytest.mark.parametrize("vocabulary", [50_257, 151_936])
def test_a_row_is_the_same_bits_on_a_large_vocabulary(
    vocabulary: int, device: torch.device
) -> None:
    samplings = [Sampling(), *FIELDS.values(), Sampling(temperature=0.0)]
    logits = random_logits(len(samplings), vocabulary, 20.0).to(device)
    seen = torch.zeros_like(logits, dtype=torch.bool)
    seen[:, ::3] = True
    points = uniforms(np.arange(len(samplings), dtype=np.uint64), 0)
    together = chosen(logits, samplings, points, seen, filtered=True, ranked=True, penalised=True)
    for row, sampling in enumerate(samplings):
        only = slice(row, row + 1)
        alone = chosen(logits[only], [sampling], points[only], seen[only])
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(one[0], other[row])
        expected = expected_logprobs(logits[row].cpu(), sampling, range(0, vocabulary, 3))
        assert float(alone[1]) == pytest.approx(float(expected[int(alone[0])]), abs=1e-5)


def test_logits_are_not_changed() -> None:
    logits, seen = random_logits(2, 30), torch.ones(2, 30, dtype=torch.bool)
    before = logits.clone()
    sampling = Sampling(temperature=0.5, top_k=3, repetition_penalty=2.0)
    chosen(logits, [sampling] * 2, [0.1, 0.9], seen, unused=torch.tensor([4]))
    assert torch.equal(logits, before)


# --- Tokens that cannot be drawn


@st.composite
def sparse_logits(draw: st.DrawFn) -> torch.Tensor:
    """Rows [1, V] of which most tokens have no weight, or next to none."""
    vocabulary = draw(st.integers(1, 700))
    values = st.sampled_from([-math.inf, -1e30, -200.0, -88.0, -60.0, -17.0, -16.0, 0.0])
    background = draw(st.sampled_from([-math.inf, -1e30, -25.0]))
    logits = torch.full((1, vocabulary), background)
    for place, value in draw(st.dictionaries(st.integers(0, vocabulary - 1), values)).items():
        logits[0, place] = value
    logits[0, draw(st.integers(0, vocabulary - 1))] = 0.0
    return logits


@given(sparse_logits(), st.lists(POINTS, max_size=4), st.booleans())
def test_tokens_without_weight_are_never_drawn(
    logits: torch.Tensor, points: list[float], filtered: bool
) -> None:
    shares = logits[0].double().softmax(0)
    edges = shares.cumsum(0)
    near = [edges, edges.nextafter(torch.tensor(0.0)), edges.nextafter(torch.tensor(2.0))]
    every = [0.0, LAST, *points, *torch.cat(near).clamp(0, LAST).tolist()]
    rows = len(every)
    sampling = Sampling(top_p=0.99, top_k=50) if filtered else Sampling()
    seen = torch.zeros(rows, logits.shape[1], dtype=torch.bool)
    ids, logprobs = chosen(logits.expand(rows, -1), [sampling] * rows, every, seen)
    expected = expected_logprobs(logits[0], sampling, [0])
    possible = (logits[0].exp() > 0) & expected.isfinite()
    assert possible[ids].all()
    torch.testing.assert_close(logprobs, expected[ids], rtol=0, atol=1e-4)
    assert ids[0] == possible.nonzero()[0], "the point 0 draws the first token with weight"


def test_points_at_an_edge_draw_no_token_without_weight() -> None:
    rows, vocabulary = 256, 2000
    logits = random_logits(rows, vocabulary, 1.0)
    logits[torch.rand(logits.shape, generator=torch.manual_seed(1)) < 0.9] = -math.inf
    logits[:, 7] = 6.0  # a sharp row's points reach every integer of its cumulative sum
    seen = torch.zeros_like(logits, dtype=torch.bool)
    edges = 64 * (1 + torch.arange(rows) % 30)  # where blocks end, whose sums are rounded
    low, high = np.zeros(rows), np.full(rows, LAST)
    for _ in range(60):  # until the points on both sides of an edge are neighbours
        middle = (low + high) / 2
        ids, logprobs = chosen(logits, [Sampling()] * rows, middle, seen)
        assert logprobs.isfinite().all()
        below = (ids < edges).numpy()
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    assert (high - low < 2.0**-52).all()


@pytest.mark.parametrize("filtered", [False, True])
def test_unused_ids_are_never_drawn(filtered: bool) -> None:
    logits = torch.zeros(1000, 300)
    unused = torch.tensor([0, 1, 17, 150, 298, 299])
    logits[:, unused] = 50.0
    points = [0.0, LAST, *np.linspace(0, LAST, 998)]
    samplings = [Sampling(), *[Sampling(top_p=0.9) if filtered else Sampling()] * 999]
    ids, logprobs = chosen(logits, samplings, points, torch.zeros(1000, 300) > 0, unused=unused)
    assert not torch.isin(ids, unused).any()
    assert logprobs[0].item() == pytest.approx(-math.log(294), abs=1e-6)


@pytest.mark.parametrize("bad", [[math.nan], [math.inf], [math.nan, math.inf]])
@pytest.mark.parametrize("sampling", [*FIELDS.values(), Sampling(temperature=0.0)])
def test_nan_logits_give_nan_logprobs(
    bad: list[float], sampling: Sampling, device: torch.device
) -> None:
    logits = random_logits(3, 100).to(device)
    logits[1, 40 : 40 + len(bad)] = torch.tensor(bad, device=device)
    logits[2] = -math.inf
    seen = torch.ones_like(logits, dtype=torch.bool)
    ids, logprobs = chosen(logits, [sampling] * 3, [0.3, 0.6, LAST], seen)
    assert logprobs.isnan().tolist() == [False, True, True]
    assert ids.min() >= 0 and ids.max() < 100
    alone = chosen(logits[:1], [sampling], [0.3], seen[:1])
    assert torch.equal(ids[:1], alone[0]) and torch.equal(logprobs[:1], alone[1])
    with pytest.raises(FloatingPointError):
        sample(logits, [Draws(sampling, seed=1)] * 3, [0] * 3, [[1]] * 3)


# --- A static step


@pytest.mark.parametrize("parts", PARTS)
def test_a_step_reads_nothing_from_the_device(parts: dict[str, bool]) -> None:
    with fake_cuda():  # reading one value fails there, and lists are counted
        before = waits()
        ids, logprobs = choose(
            torch.empty(4, 1000, dtype=torch.bfloat16, device="cuda"),
            RowSettings.unpack(torch.empty(6, 4, dtype=torch.float64, device="cuda")),
            **parts,
            seen=torch.empty(4, 1000, dtype=torch.bool, device="cuda"),
            unused=torch.empty(3, dtype=torch.long, device="cuda"),
        )
        assert waits() == before
    assert ids.shape == logprobs.shape == (4,)
    assert ids.device.type == logprobs.device.type == "cuda"


@pytest.mark.parametrize("parts", PARTS)
def test_a_recorded_step_serves_other_values(parts: dict[str, bool]) -> None:
    def step(
        logits: torch.Tensor, packed: torch.Tensor, seen: torch.Tensor, unused: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        settings = RowSettings.unpack(packed)
        return choose(logits, settings, **parts, seen=seen, unused=unused)

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        samplings = list(FIELDS.values())[seed:] + list(FIELDS.values())[:seed]
        points = uniforms(np.arange(len(samplings), dtype=np.uint64), seed)
        logits = random_logits(len(samplings), 150, seed=seed)
        packed = torch.tensor(pack(samplings, points))
        return logits, packed, logits > 1, torch.tensor([seed, 149 - seed])

    recorded = make_fx(step, tracing_mode="fake")(*inputs(0))
    for seed in (1, 2, 5):
        for one, other in zip(recorded(*inputs(seed)), step(*inputs(seed)), strict=True):
            assert torch.equal(one, other)


class Passes(TorchDispatchMode):
    """Counts passes over tensors of some size, and notes the operations and large dtypes."""

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = size
        self.reads = self.writes = 0
        self.operations: list[str] = []
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        self.operations.append(name)
        read = self._large([args, {k: v for k, v in kwargs.items() if k != "out"}])
        written = self._large(result)
        self.dtypes |= {tensor.dtype for tensor in written}
        # Views and fresh memory cost nothing; the others touch a value or two of each row.
        if not func.is_view and name not in {"empty", "gather", "index_fill_"}:
            self.reads += len(read)
            self.writes += len(written)
        return result

    def _large(self, values: Any) -> list[torch.Tensor]:
        leaves = tree_leaves(values)
        return [t for t in leaves if isinstance(t, torch.Tensor) and t.numel() >= self.size]


def passes(**parts: bool) -> Passes:
    logits = random_logits(16, 3000).bfloat16()
    packed = torch.tensor(pack([Sampling()] * 16, np.full(16, 0.5)))
    settings, unused, seen = RowSettings.unpack(packed), torch.tensor([7]), logits > 0
    counted = Passes(logits.numel())
    with counted:
        choose(logits, settings, seen=seen, unused=unused, **parts)
    return counted


def test_filters_cost_nothing_where_none_is_used() -> None:
    counted = passes(filtered=False, ranked=False, penalised=False)
    assert (counted.reads, counted.writes) == (5, 3)
    assert counted.dtypes == {torch.float32}
    for parts in PARTS:
        sorts = {"sort", "topk"} & set(passes(**parts).operations)
        ranking = "sort" if parts["ranked"] else "topk"
        assert sorts == ({ranking} if parts["filtered"] else set())


def test_one_sort_serves_top_k_and_top_p() -> None:
    counted = passes(filtered=True, ranked=True, penalised=False)
    assert counted.operations.count("sort") == 1
    assert torch.float64 not in counted.dtypes


def test_filters_are_those_that_some_row_uses() -> None:
    plain = Sampling(temperature=0.5)
    assert filters_in([plain, Sampling()]) == (False, False, False)
    for unranked in (Sampling(top_k=3), Sampling(min_p=0.1)):
        assert filters_in([plain, unranked]) == (True, False, False)
    for ranked in (Sampling(top_k=1000), Sampling(top_p=0.9)):
        assert filters_in([plain, ranked]) == (True, True, False)
    penalised = Sampling(temperature=0.0, top_k=3, top_p=0.5, repetition_penalty=1.1)
    assert filters_in([plain, penalised]) == (False, False, True)


# --- Devices


@pytest.mark.gpu
@pytest.mark.parametrize("field", FIELDS)
def test_cpu_and_gpu_draw_equal_tokens(field: str) -> None:
    device = torch.device("cuda")
    rows, vocabulary = 256, 151_936
    logits = random_logits(rows, vocabulary, 5.0).bfloat16()
    seen = torch.zeros(rows, vocabulary, dtype=torch.bool)
    seen[:, ::5] = True
    points = uniforms(np.arange(rows, dtype=np.uint64), 11)
    samplings = [FIELDS[field]] * rows
    ids, logprobs = chosen(logits, samplings, points, seen)
    there, logprobs_there = (
        found.cpu() for found in chosen(logits.to(device), samplings, points, seen.to(device))
    )
    # exp differs in its last bit: a point within 1e-7 of the edge between tokens may cross it.
    same = ids == there
    assert (~same).sum() <= 1
    torch.testing.assert_close(logprobs[same], logprobs_there[same], rtol=0, atol=1e-6)


@pytest.mark.gpu
def test_a_cuda_graph_replays_the_step() -> None:
    device = torch.device("cuda")
    logits = random_logits(7, 5000).to(device)
    packed = torch.empty(6, 7, dtype=torch.float64, device=device)
    seen = torch.zeros(7, 5000, dtype=torch.bool, device=device)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        settings = RowSettings.unpack(packed)
        return choose(logits, settings, filtered=True, penalised=True, seen=seen)

    def fill(seed: int) -> None:
        points = uniforms(np.arange(7, dtype=np.uint64), seed)
        packed.copy_(torch.tensor(pack(list(FIELDS.values()), points)))
        logits.copy_(random_logits(7, 5000, seed=seed))
        seen.copy_(logits > seed)

    fill(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    for seed in (1, 2):
        fill(seed)
        graph.replay()
        for one, other in zip(recorded, step(), strict=True):
            assert torch.equal(one, other)
