"""Attention over a tree of segments equals attention over each sequence by itself."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.policy.packing import WORTH_SHARING, Packed, TreePlan, pack
from gymnast.trainers.learner.tree_attention import cpu_flash, explicit

WIDTH, KEY_HEADS = 4, 2


def separate(
    packed: Packed,
    inputs: list[torch.Tensor],
    layer: LayerSettings,
) -> list[torch.Tensor]:
    """What each sequence's tokens get when they attend among themselves, in plain operations."""
    outs = []
    query, key, value = inputs[:3]
    shared = query.shape[1] // key.shape[1]
    for index in packed.index:
        q = query[index].transpose(0, 1)  # [H, n, D]
        k, v = (t[index].transpose(0, 1).repeat_interleave(shared, dim=0) for t in (key, value))
        scores = q @ k.transpose(1, 2) * layer.scale
        if layer.softcap is not None:
            scores = layer.softcap * torch.tanh(scores / layer.softcap)
        at = torch.arange(len(index), device=q.device)
        distance = at[:, None] - at
        hidden = distance < 0
        if layer.window is not None:
            hidden |= distance >= layer.window
        scores = scores.masked_fill(hidden, -torch.inf)
        if layer.sinks is not None:
            scores = torch.cat([scores, layer.sinks[:, None, None].expand(-1, len(at), 1)], dim=-1)
        weights = scores.softmax(dim=-1)[..., : len(at)]
        outs.append((weights @ v).transpose(0, 1))  # [n, H, D]
    return outs


def attended(packed: Packed, inputs: list[torch.Tensor], layer: LayerSettings) -> torch.Tensor:
    """What the packed tokens get."""
    query, key, value = inputs[:3]
    return TreePlan(packed).attend(query, key, value, layer)


stems = st.lists(st.integers(0, 2), max_size=3)  # each a long run of one token: deep, wide trees
sequences = st.lists(
    st.builds(
        lambda stem, tail: [t for t in stem for _ in range(WORTH_SHARING)] + tail,
        stems,
        st.lists(st.integers(0, 3), min_size=1, max_size=30),
    ),
    min_size=1,
    max_size=6,
)
windows = st.one_of(st.none(), st.integers(1, 60))


def check(
    ids: list[list[int]],
    heads_per_key: int,
    layer: LayerSettings,
    dtype: torch.dtype,
    seed: int,
    device: torch.device,
    value_width: int = WIDTH,
) -> None:
    """Compare what is attended, and its gradients, with `separate`."""
    packed = pack(ids)
    draw = torch.Generator().manual_seed(seed)

    def drawn(heads: int, width: int = WIDTH) -> torch.Tensor:
        shape = (len(packed.ids), heads, width)
        return torch.randn(shape, generator=draw, dtype=dtype).to(device).requires_grad_()

    inputs = [drawn(KEY_HEADS * heads_per_key), drawn(KEY_HEADS), drawn(KEY_HEADS, value_width)]
    if layer.sinks is not None:
        inputs.append(layer.sinks)
    together = attended(packed, inputs, layer)
    alone = separate(packed, inputs, layer)
    apart = 1e-5 if dtype == torch.float32 else 1e-11
    ours = theirs = torch.zeros((), dtype=dtype, device=device)
    for index, out in zip(packed.index, alone, strict=True):
        torch.testing.assert_close(together[index], out, rtol=apart, atol=apart)
        weights = torch.randn(out.shape, generator=draw, dtype=dtype).to(device)
        ours = ours + (together[index] * weights).sum()
        theirs = theirs + (out * weights).sum()
    for mine, other in zip(
        torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=apart, atol=apart)


@settings(max_examples=60)
@given(
    sequences,
    st.sampled_from([1, 3]),
    windows,
    st.sampled_from([torch.float64, torch.float32]),
    st.integers(0, 9),
)
def test_outputs_and_gradients_equal_those_of_separate_sequences(
    device: torch.device,
    ids: list[list[int]],
    heads_per_key: int,
    window: int | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    check(ids, heads_per_key, LayerSettings(0, scale=0.7, window=window), dtype, seed, device)


@settings(max_examples=40)
@given(sequences, windows, st.booleans(), st.booleans(), st.integers(0, 9))
def test_softcaps_and_sinks_too(
    device: torch.device,
    ids: list[list[int]],
    window: int | None,
    softcap: bool,
    sinks: bool,
    seed: int,
) -> None:
    layer = LayerSettings(
        0,
        scale=0.7,
        window=window,
        softcap=2.0 if softcap else None,
        sinks=torch.linspace(-1, 1, KEY_HEADS * 3).double().to(device).requires_grad_()
        if sinks
        else None,
    )
    check(ids, 3, layer, torch.float64, seed, device)


@settings(max_examples=30)
@given(sequences, windows, st.sampled_from([WIDTH - 1, WIDTH + 1]), st.integers(0, 9))
def test_values_of_another_width_than_the_keys_too(
    device: torch.device, ids: list[list[int]], window: int | None, width: int, seed: int
) -> None:
    layer = LayerSettings(0, scale=0.7, window=window)
    check(ids, 3, layer, torch.float64, seed, device, value_width=width)


@settings(max_examples=40)
@given(sequences, st.integers(1, 60), st.booleans(), st.integers(1, 9), st.integers(0, 9))
def test_the_size_of_a_block_of_queries_does_not_matter(
    device: torch.device, ids: list[list[int]], window: int, softcap: bool, size: int, seed: int
) -> None:
    layer = LayerSettings(0, scale=0.7, window=window, softcap=2.0 if softcap else None)
    with pytest.MonkeyPatch.context() as patch:
        for module in (cpu_flash, explicit):
            patch.setattr(module, "FEWEST_QUERIES", 1)
            patch.setattr(module, "MOST_QUERIES", size)
        check(ids, 3, layer, torch.float64, seed, device)


class _Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor) and not tensor._is_view():
                self.elements = max(self.elements, tensor.numel())
        return made


def largest(length: int, layer: LayerSettings, value_width: int) -> int:
    """Elements of the largest tensor, forward and backward, over a prompt and two answers."""
    prompt, answer = [1] * (length // 2), length // 4
    packed = pack([prompt + [2] * answer, prompt + [3] * answer])
    widths = ((4, 16), (2, 16), (2, value_width))
    inputs = [torch.zeros(length, *shape).requires_grad_() for shape in widths]
    with _Largest() as counted:
        torch.autograd.grad(attended(packed, inputs, layer).sum(), inputs)
    return int(counted.elements)


@pytest.mark.parametrize(
    ("layer", "value_width"),
    [
        (LayerSettings(0, 0.25), 16),
        (LayerSettings(0, 0.25), 12),
        (LayerSettings(0, 0.25, window=64), 16),
        (LayerSettings(0, 0.25, sinks=torch.zeros(4)), 16),
        (LayerSettings(0, 0.25, softcap=2.0), 16),
        (LayerSettings(0, 0.25, window=64, softcap=2.0, sinks=torch.zeros(4)), 16),
    ],
    ids=["plain", "narrow values", "window", "sinks", "softcap", "all"],
)
def test_memory_grows_with_the_length_and_not_with_its_square(
    layer: LayerSettings, value_width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explicit, "CPU_SCORES_BYTES", 2**18)
    short, long = (largest(length, layer, value_width) for length in (512, 2048))
    assert long <= 4 * short


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("sinks", [None, 0.5])
def test_half_precision_stays_within_its_rounding(
    device: torch.device, window: int | None, sinks: float | None
) -> None:
    packed = pack([[*range(100), 7, *range(30)], [*range(100), 8, *range(50)], [5] * 3])
    draw = torch.Generator().manual_seed(0)
    shapes = [(len(packed.ids), heads, 16) for heads in (4, 2, 2)]
    drawn = [torch.randn(shape, generator=draw).bfloat16().to(device) for shape in shapes]

    def computed(dtype: torch.dtype) -> list[torch.Tensor]:
        inputs = [tensor.to(dtype).requires_grad_() for tensor in drawn]
        extra = None if sinks is None else torch.full((4,), sinks, dtype=dtype, device=device)
        out = attended(packed, inputs, LayerSettings(0, 0.25, window, sinks=extra))
        slope = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape).to(dtype)
        return [t.float() for t in (out.detach(), *torch.autograd.grad(out, inputs, slope))]

    for ours, exact in zip(computed(torch.bfloat16), computed(torch.float32), strict=True):
        torch.testing.assert_close(ours, exact, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_the_layout_of_the_tensors_does_not_matter(dimension: int) -> None:
    packed = pack([[*range(20), 1], [*range(20), 2, 3]])
    layer = LayerSettings(0, 0.25)
    inputs = [torch.randn(len(packed.ids), h, 16) for h in (4, 2, 2)]
    strange = [t.transpose(0, dimension).contiguous().transpose(0, dimension) for t in inputs]
    torch.testing.assert_close(attended(packed, strange, layer), attended(packed, inputs, layer))
