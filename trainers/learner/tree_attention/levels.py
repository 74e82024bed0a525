"""Attention over a tree in as many calls as the tree is deep, each over all tokens.

Level 0 is one causal call in which every segment is a sequence. Level d, from 1 on, is one call in
which the tokens below each segment of depth d see that segment, whole; a root has depth 1. A group
takes two calls, a tree whose longest path has n segments takes n, however many segments there are.

Nothing is gathered or repeated for this. In depth-first order the tokens below a segment and its
own tokens are one range each, and the ranges of one depth follow one another, so bounds describe
them all. Between them stand *fillers*: sequences that have queries and no keys, or keys and no
queries. They make the bounds cover every token, so that a kernel writes every row of its results.

The parts that a token gets from its levels are joined by the logarithms of their softmax sums, as
`trainers/learner/tree_attention/join.py` explains, in `level_sums.py`. A token of depth t has a
part at the levels below t. This number decides, and never the sum of a part, which is infinite
where there are no keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from gymnast.trainers.learner.tree_attention.calls import Subtree, Tree
from gymnast.trainers.learner.tree_attention.level_sums import (
    Gradients,
    Part,
    add_gradients,
    gradient_of_sinks,
    join_parts,
)


@dataclass(frozen=True)
class Sequences:
    """The sequences of one variable-length call. They cover all queries and all keys, in order.

    Attributes:
        queries: Where the queries of each sequence begin, and the last ends, [S + 1], int32.
        keys: Likewise for its keys, [S + 1], int32.
        longest_query: The number of queries of the longest sequence, at least 2.
        longest_key: Likewise for keys.
        causal: Whether queries are keys, and each sees those up to itself. If not, every query
            sees all keys of its sequence.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    longest_query: int
    longest_key: int
    causal: bool


@dataclass(frozen=True)
class Levels:
    """A tree of N tokens as variable-length calls.

    Attributes:
        calls: One for each level.
        depth: The number of segments from the root to each token's own, [N], int32.
        seen_at: The level at which each token's key is seen from below; 0 if it is not, [N], int32.
    """

    calls: Sequence[Sequences]
    depth: torch.Tensor
    seen_at: torch.Tensor


class Varlen(Protocol):
    """Attention of a kind that has variable-length sequences.

    A query without keys gets zeros, and positive infinity for the logarithm of its sum. A query
    without keys and a key without queries have zero gradients.
    """

    def width(self, query: int, value: int) -> int:
        """Return the width that queries, keys and values have to be padded to."""

    def forward(
        self, call: Sequences, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> Part:
        """Attend with query [N, H, D] over key [N, Hkv, D] and value [N, Hkv, D].

        Returns:
            The attended values [N, H, D], and the logarithms of the softmax sums [H, N], which are
            at least float32. Both are new tensors.
        """

    def backward(
        self,
        call: Sequences,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        sums: torch.Tensor,
    ) -> Gradients:
        """Return the gradients of query, key and value, in new tensors.

        Args:
            call: As in the forward pass.
            gradient: Of `out`, [N, H, D].
            query: As in the forward pass.
            key: As in the forward pass.
            value: As in the forward pass.
            out: Of the joined attention, [N, H, D].
            sums: Likewise, [H, N].
        """


def divide_into_levels(tree: Tree, device: torch.device) -> Levels:
    """Divide a tree into levels, by one copy to the device.

    Args:
        tree: Of N tokens.
        device: Where the bounds have to be.
    """
    subtrees, tokens = tree.subtrees, len(tree)
    depths = _depths(subtrees)
    own = [0, *(subtree.end for subtree in subtrees)]
    bounds = [(own, own)]
    for depth in range(1, max(depths)):
        above = [s for s, at in zip(subtrees, depths, strict=True) if at == depth]
        bounds.append(_bounds([s for s in above if s.last > s.end], tokens))
    lengths = [subtree.end - subtree.start for subtree in subtrees]
    seen = [d if s.last > s.end else 0 for s, d in zip(subtrees, depths, strict=True)]
    rows = [np.repeat(depths, lengths), np.repeat(seen, lengths)]
    for queries, keys in bounds:
        rows += [np.array(queries), np.array(keys)]
    of_query, of_key, *rest = _together(rows, device)
    calls = [
        Sequences(queries, keys, _longest(here), _longest(there), causal=number == 0)
        for number, (queries, keys, (here, there)) in enumerate(
            zip(rest[::2], rest[1::2], bounds, strict=True)
        )
    ]
    return Levels(calls, of_query, of_key)


def _depths(subtrees: Sequence[Subtree]) -> list[int]:
    """The number of segments from the root to each."""
    depths: list[int] = []
    path: list[Subtree] = []
    for subtree in subtrees:
        while path and path[-1].last <= subtree.start:
            path.pop()
        path.append(subtree)
        depths.append(len(path))
    return depths


def _bounds(above: Sequence[Subtree], tokens: int) -> tuple[list[int], list[int]]:
    """The bounds of queries and keys of a level: those below each of `above`, and its own."""
    queries, keys = [0], [0]
    # A kernel is launched for as many blocks as the longest sequence has, times the number of
    # sequences. Fillers are cut so that they are not the longest, and no shorter than that.
    most = max(max(s.end - s.start, s.last - s.end) for s in above)

    def fill(bounds: list[int], others: list[int], end: int) -> None:
        while bounds[-1] < end:
            bounds.append(min(end, bounds[-1] + most))
            others.append(others[-1])

    for subtree in above:
        fill(queries, keys, subtree.end)
        fill(keys, queries, subtree.start)
        queries.append(subtree.last)
        keys.append(subtree.end)
    fill(queries, keys, tokens)
    fill(keys, queries, tokens)
    return queries, keys


def _longest(bounds: Sequence[int]) -> int:
    """The length of the longest sequence, at least 2; see `Varlen` of `cuda_flash.py`."""
    return max(2, int(np.diff(bounds).max()))


def _together(rows: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Copy rows of numbers to the device at once; each is aligned to 16 bytes there."""
    sizes = [-(-len(row) // 4) * 4 for row in rows]
    padded = [np.pad(row, (0, size - len(row))) for row, size in zip(rows, sizes, strict=True)]
    copied = torch.tensor(np.concatenate(padded), dtype=torch.int32, device=device)
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [copied[at : at + len(row)] for at, row in zip(starts, rows, strict=True)]


def attend_in_levels(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor | None,
    levels: Levels,
    varlen: Varlen,
) -> torch.Tensor:
    """Let every token attend to its segment before it and to all of its ancestors.

    Args:
        query: [N, H, D], of the width that `varlen` takes, like the next two.
        key: [N, Hkv, D].
        value: [N, Hkv, D].
        sinks: One more score per head, [H], or None.
        levels: Of the N tokens.
        varlen: Computes the calls.

    Returns:
        [N, H, D].
    """
    function: Any = _LevelAttention
    # Results have the layout of the queries, and the backward pass wants them contiguous.
    attended: torch.Tensor = function.apply(query.contiguous(), key, value, sinks, levels, varlen)
    return attended


class _LevelAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
        levels: Levels,
        varlen: Varlen,
    ) -> torch.Tensor:
        parts = (varlen.forward(call, query, key, value) for call in levels.calls)
        out, sums = join_parts(parts, len(levels.calls), levels.depth, sinks)
        ctx.save_for_backward(query, key, value, sinks, out, sums)
        ctx.levels, ctx.varlen = levels, varlen
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        query, key, value, sinks, out, sums = ctx.saved_tensors
        gradient, levels = gradient.contiguous(), ctx.levels
        parts: Iterator[Gradients] = (
            ctx.varlen.backward(call, gradient, query, key, value, out, sums)
            for call in levels.calls
        )
        grads = add_gradients(parts, len(levels.calls), levels.depth, levels.seen_at)
        of_sinks = None if sinks is None else gradient_of_sinks(gradient, out, sums, sinks)
        return (*grads, of_sinks, None, None)
