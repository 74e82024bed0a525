"""The calls of CUDA's flash attention: their shapes, and what their arguments mean.

The kernels themselves need a GPU (`pytest -m gpu`). Here PyTorch computes the shapes that they
return for tensors without values on a CUDA device, and a reference, of what PyTorch's source says
of their arguments, stands in for them on the CPU, behind PyTorch's own dispatch.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fake_cuda import fake_cuda, waits
from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.tree_attention import level_sums
from gymnast.trainers.learner.tree_attention.calls import Subtree, Tree
from gymnast.trainers.learner.tree_attention.cuda_flash import CUDAFlash, FlashVarlen
from gymnast.trainers.learner.tree_attention.explicit import Explicit
from gymnast.trainers.learner.tree_attention.join import attend, gradients, joined
from gymnast.trainers.learner.tree_attention.kernels import Kernel, kernel_for, varlen_for
from gymnast.trainers.learner.tree_attention.levels import attend_in_levels, divide_into_levels
from trees import drawn_tree, shapes
from varlen_reference import PlainVarlen

KEY_HEADS, SHARED, WIDTH = 2, 3, 8

# A prompt, two questions, of 7 tokens and of one, and their two answers and one.
TREE = Tree(
    [
        Subtree(0, 20, 47, 0),
        Subtree(20, 27, 42, 20),
        Subtree(27, 39, 39, 27),
        Subtree(39, 42, 42, 27),
        Subtree(42, 43, 47, 20),
        Subtree(43, 47, 47, 21),
    ]
)


def scores(
    query: torch.Tensor, key: torch.Tensor, scale: float, causal: bool, left: int, right: int
) -> torch.Tensor:
    """[H, n, m] from [n, H, D] and [m, H, D], -inf where the window, from the ends, hides a key."""
    asked, length = len(query), len(key)
    back = torch.arange(length) - torch.arange(asked)[:, None] - (length - asked)
    hidden = torch.zeros_like(back, dtype=torch.bool)
    if causal or right >= 0:
        hidden |= back > (0 if causal else right)
    if left >= 0:
        hidden |= back < -left
    return (torch.einsum("nhd,mhd->hnm", query, key) * scale).masked_fill(hidden, -torch.inf)


def runs(
    tensor: torch.Tensor, bounds: torch.Tensor | None, longest: int
) -> Iterator[tuple[int, int]]:
    """Where each sequence begins and ends; checks what the kernels check."""
    assert tensor.stride(-1) == 1 and tensor.shape[-1] % 8 == 0 and tensor.shape[-1] <= 256
    if bounds is None:
        assert tensor.dim() == 4 and len(tensor) == 1 and tensor.shape[1] == longest
        yield 0, longest
    else:
        assert tensor.dim() == 3 and bounds.dtype == torch.int32 and longest > 1
        ends = bounds.tolist()
        assert ends[0] == 0 and ends[-1] == len(tensor)
        assert longest >= max(b - a for a, b in pairwise(ends))
        yield from pairwise(ends)


def flash_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *arguments: Any, **window: Any
) -> tuple[torch.Tensor, ...]:
    """What `aten._flash_attention_forward` computes."""
    bounds, key_bounds, longest, longest_key, _, causal, _ = arguments
    left, right = window.get("window_size_left", -1), window.get("window_size_right", -1)
    q, k, v = (t if bounds is not None else t[0] for t in (query, key, value))
    shared = q.shape[1] // k.shape[1]
    outs, sums = [], []
    pairs = zip(runs(query, bounds, longest), runs(key, key_bounds, longest_key), strict=True)
    for (a, b), (c, d) in pairs:
        if c == d:  # no keys
            outs.append(torch.zeros_like(q[a:b]))
            sums.append(torch.full((q.shape[1], b - a), torch.inf, dtype=q.dtype))
            continue
        kk, vv = (t[c:d].repeat_interleave(shared, dim=1) for t in (k, v))
        found = scores(q[a:b], kk, window["scale"], causal, left, right)
        outs.append(torch.einsum("hnm,mhd->nhd", found.softmax(-1), vv))
        sums.append(found.logsumexp(-1))
    out, total = torch.cat(outs), torch.cat(sums, dim=1)
    if bounds is None:
        out, total = out[None], total[None]
    unread = torch.empty(2, dtype=torch.uint64)
    return out, total, unread, unread, torch.empty(0)


def flash_backward(*arguments: Any, **window: Any) -> tuple[torch.Tensor, ...]:
    """What `aten._flash_attention_backward` computes."""
    gradient, query, key, value, out, sums, *rest = arguments
    bounds, key_bounds, longest, longest_key, _, causal, _, _ = rest
    assert sums.is_contiguous()
    left, right = window.get("window_size_left", -1), window.get("window_size_right", -1)
    tensors = (gradient, query, key, value, out, sums)
    g, q, k, v, o, total = tensors if bounds is not None else (t[0] for t in tensors)
    shared = q.shape[1] // k.shape[1]
    grads = [torch.zeros_like(t) for t in (q, k, v)]
    pairs = zip(runs(query, bounds, longest), runs(key, key_bounds, longest_key), strict=True)
    for (a, b), (c, d) in pairs:
        kk, vv = (t[c:d].repeat_interleave(shared, dim=1) for t in (k, v))
        found = scores(q[a:b], kk, window["scale"], causal, left, right)
        weights = torch.exp(found - total[:, a:b, None])
        of_weights = torch.einsum("nhd,mhd->hnm", g[a:b], vv)
        spent = (g[a:b] * o[a:b]).sum(-1).T[..., None]
        of_scores = weights * (of_weights - spent) * window["scale"]
        grads[0][a:b] = torch.einsum("hnm,mhd->nhd", of_scores, kk)
        dk = torch.einsum("hnm,nhd->mhd", of_scores, q[a:b])
        dv = torch.einsum("hnm,nhd->mhd", weights, g[a:b])
        grads[1][c:d] = dk.unflatten(1, (-1, shared)).sum(2)
        grads[2][c:d] = dv.unflatten(1, (-1, shared)).sum(2)
    return tuple(grads) if bounds is not None else tuple(grad[None] for grad in grads)


@pytest.fixture
def flash_on_cpu() -> Iterator[None]:
    """The reference in place of the kernels, for tensors on the CPU."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", flash_forward, "CPU")
    library.impl("_flash_attention_backward", flash_backward, "CPU")
    yield
    library._destroy()


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def computed(kernel: Kernel, layer: LayerSettings) -> list[torch.Tensor]:
    """What every token gets, and the gradients, by one kernel."""
    heads = KEY_HEADS * SHARED
    calls = kernel.divide(TREE.calls(layer.window), heads)
    shapes = ((heads, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, WIDTH))
    query, key, value = (drawn(len(TREE), *shape, seed=i) for i, shape in enumerate(shapes))
    out, sums = joined(query, key, value, layer.sinks, calls, kernel)
    saved = (query, key, value, layer.sinks, out, sums)
    grads = gradients(drawn(*out.shape, seed=3), saved, calls, kernel)
    return [out, sums, *(grad for grad in grads if grad is not None)]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.none(), st.integers(1, 40)), st.booleans())
def test_the_arguments_say_what_is_seen(
    flash_on_cpu: None, window: int | None, sinks: bool
) -> None:
    layer = LayerSettings(
        0, 0.3, window, sinks=drawn(KEY_HEADS * SHARED, seed=5) if sinks else None
    )
    device = torch.device("cpu")
    ours, theirs = (computed(kernel(layer, device), layer) for kernel in (CUDAFlash, Explicit))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes, st.booleans())
def test_sequences_are_arguments_of_the_kernels(
    flash_on_cpu: None, shape: list[tuple[int, int]], sinks: bool
) -> None:
    """PyTorch's dispatch gets what `PlainVarlen` gets, and both give the same."""
    tree, _ = drawn_tree(shape)
    heads = KEY_HEADS * SHARED
    layer = LayerSettings(0, 0.3, sinks=drawn(heads, seed=5).requires_grad_() if sinks else None)
    levels = divide_into_levels(tree, torch.device("cpu"))
    widths = ((heads, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, WIDTH))
    inputs = [drawn(len(tree), *each, seed=i).requires_grad_() for i, each in enumerate(widths)]
    found = []
    for varlen in (FlashVarlen(layer), PlainVarlen(layer)):
        out = attend_in_levels(inputs[0], inputs[1], inputs[2], layer.sinks, levels, varlen)
        into = inputs if layer.sinks is None else [*inputs, layer.sinks]
        found.append([out, *torch.autograd.grad(out, into, drawn(*out.shape, seed=3))])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "width", "value_width"),
    [(torch.bfloat16, 64, 64), (torch.float16, 12, 20), (torch.bfloat16, 256, 128)],
)
@pytest.mark.parametrize("layout", ["tokens first", "heads first"])
def test_levels_have_shapes_on_a_cuda_device(
    dtype: torch.dtype, width: int, value_width: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both passes, without a wait for the device; Triton takes no tensors without values."""
    monkeypatch.setattr(level_sums, "has_kernels", lambda device: False)
    with fake_cuda():
        before = waits()

        def on_cuda(heads: int, width: int) -> torch.Tensor:
            if layout == "tokens first":
                return torch.empty(len(TREE), heads, width, dtype=dtype, device="cuda")
            made = torch.empty(heads, len(TREE), width, dtype=dtype, device="cuda")
            return made.transpose(0, 1)

        query, key, value = on_cuda(6, width), on_cuda(2, width), on_cuda(2, value_width)
        layer = LayerSettings(0, 0.3, sinks=torch.empty(6, dtype=dtype, device="cuda"))
        varlen = varlen_for(query, value, layer)
        assert isinstance(varlen, FlashVarlen)
        attended = attend(query, key, value, Tree(TREE.subtrees), layer)
        assert attended.shape == (len(TREE), 6, value_width)
        assert (attended.dtype, attended.device.type) == (dtype, "cuda")
        levels = divide_into_levels(TREE, query.device)
        assert len(levels.calls) == 3
        at = varlen.width(width, value_width)
        padded = [F.pad(t, (0, at - t.shape[-1])) for t in (query.contiguous(), key, value)]
        parts = [varlen.forward(call, padded[0], padded[1], padded[2]) for call in levels.calls]
        out, sums = level_sums.join_parts(iter(parts), 3, levels.depth, layer.sinks)
        assert (out.shape, out.dtype) == (padded[0].shape, dtype)
        assert (sums.shape, sums.dtype) == ((6, len(TREE)), torch.float32)
        grads = [
            varlen.backward(call, out, padded[0], padded[1], padded[2], out, sums)
            for call in levels.calls
        ]
        added = level_sums.add_gradients(iter(grads), 3, levels.depth, levels.seen_at)
        for grad, of in zip(added, padded, strict=True):
            assert (grad.shape, grad.dtype, grad.device) == (of.shape, of.dtype, of.device)
        assert waits() == before


@pytest.mark.parametrize(
    ("dtype", "width", "value_width", "window"),
    [(torch.bfloat16, 64, 64, None), (torch.float16, 12, 20, 9), (torch.bfloat16, 256, 128, 9)],
)
def test_shapes_on_a_cuda_device(
    dtype: torch.dtype,
    width: int,
    value_width: int,
    window: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(level_sums, "has_kernels", lambda device: False)
    with fake_cuda():

        def on_cuda(*shape: int) -> torch.Tensor:
            return torch.empty(len(TREE), *shape, dtype=dtype, device="cuda")

        sinks = torch.empty(6, dtype=dtype, device="cuda")
        layer = LayerSettings(0, 0.3, window, sinks=sinks)
        query, key, value = on_cuda(6, width), on_cuda(2, width), on_cuda(2, value_width)
        assert isinstance(kernel_for(query, value, layer), CUDAFlash)
        tree = Tree(TREE.subtrees)
        attended = attend(query, key, value, tree, layer)
        assert attended.shape == (len(TREE), 6, value_width)
        assert (attended.dtype, attended.device.type) == (dtype, "cuda")
        kernel = kernel_for(query, value, layer)
        calls = kernel.divide(tree.calls(window), 6)
        at = kernel.width(width, value_width)[0]
        padded = [F.pad(t, (0, at - t.shape[-1])) for t in (query, key, value)]
        out, sums = joined(padded[0], padded[1], padded[2], sinks, calls, kernel)
        assert sums.dtype == torch.float32
        grads = gradients(out, (*padded, sinks, out, sums), calls, kernel)
        for grad, of in zip(grads, [*padded, sinks], strict=True):
            assert grad is not None
            assert (grad.shape, grad.dtype, grad.device) == (of.shape, of.dtype, of.device)


@pytest.mark.parametrize(
    ("dtype", "width", "softcap"),
    [(torch.float32, 64, None), (torch.bfloat16, 264, None), (torch.bfloat16, 64, 30.0)],
    ids=["float32", "wide", "softcap"],
)
def test_what_flash_attention_does_not_do_is_done_in_matrix_products_there(
    dtype: torch.dtype, width: int, softcap: float | None
) -> None:
    with fake_cuda():
        query, key, value = (
            torch.empty(len(TREE), heads, width, dtype=dtype, device="cuda") for heads in (6, 2, 2)
        )
        layer = LayerSettings(0, 0.3, 9, softcap=softcap)
        kernel = kernel_for(query, value, layer)
        assert isinstance(kernel, Explicit)
        calls = kernel.divide(TREE.calls(9), 6)
        out, sums = joined(query, key, value, None, calls, kernel)
        grads = gradients(out, (query, key, value, None, out, sums), calls, kernel)
        for grad, of in zip(grads, (query, key, value), strict=False):
            assert grad is not None
            assert (grad.shape, grad.dtype, grad.device) == (of.shape, of.dtype, of.device)
