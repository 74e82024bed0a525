"""Pack trajectories into one sequence in which a prefix they share stands, and is computed, once.

Trajectories of one step begin alike: a system prompt common to all rows, the prompt of a group.
They form a tree; its nodes are *segments*, runs of tokens with one parent. A token attends to its
own segment before it and to all of its ancestors, which is what it would see in its own sequence,
so logits and gradients are equal to those of separate sequences (up to rounding), and the
gradient of a shared token is the sum over those who share it.

    system prompt --+-- question 1 --+-- answer 1.1
                    |                `-- answer 1.2
                    `-- question 2 --+-- answer 2.1
                                     `-- answer 2.2

This file knows token ids and attention, nothing of rewards or losses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from gymnast.agents.models.attention import LayerSettings, attend, causal_mask, fold
from gymnast.trainers.learner.policy import tree_attention

# Splitting a segment for fewer shared tokens than this costs more than it spares.
WORTH_SHARING = 16


@dataclass(frozen=True)
class Segment:
    """A run of packed tokens: `ids[start:end]`, continuing the segment `parent`."""

    start: int
    end: int
    parent: int | None
    position: int  # of its first token in the trajectories that hold it

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Packed:
    """Trajectories as one tree of N tokens.

    Attributes:
        ids: [N].
        positions: [N], of each token in its trajectories.
        segments: In order of their tokens; a parent comes before its children.
        index: For each trajectory, where each of its tokens lies in `ids`.
    """

    ids: np.ndarray
    positions: np.ndarray
    segments: list[Segment]
    index: list[np.ndarray]


def pack(sequences: Sequence[Sequence[int]]) -> Packed:
    """Build the tree of some token sequences.

    Args:
        sequences: The ids of each trajectory, none empty; at least one.
    """
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    builder = _Builder(arrays)
    order = sorted(range(len(arrays)), key=lambda i: arrays[i].tolist())
    builder.add(order, depth=0, parent=None)
    return builder.packed()


def _common(first: np.ndarray, second: np.ndarray) -> int:
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


class _Builder:
    """Adds segments from the root down."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.arrays = arrays
        self.segments: list[Segment] = []
        self.index = [np.empty(len(array), dtype=np.int64) for array in arrays]
        self.size = 0

    def add(self, members: list[int], depth: int, parent: int | None) -> None:
        """Add sorted sequences that agree up to `depth`, which `parent` ends at."""
        for run in self._runs(members, depth + WORTH_SHARING):
            first, last = self.arrays[run[0]], self.arrays[run[-1]]
            end = len(first) if len(run) == 1 else _common(first, last)
            segment = parent
            if end > depth:
                segment = len(self.segments)
                self.segments.append(Segment(self.size, self.size + end - depth, parent, depth))
                for i in run:
                    self.index[i][depth:end] = np.arange(self.size, self.size + end - depth)
                self.size += end - depth
            rest = [i for i in run if len(self.arrays[i]) > end]
            if rest:
                self.add(rest, end, segment)

    def _runs(self, members: list[int], shared: int) -> list[list[int]]:
        """Neighbours in sorted order that share at least this many tokens."""
        runs = [[members[0]]]
        for before, i in pairwise(members):
            if _common(self.arrays[before], self.arrays[i]) >= shared:
                runs[-1].append(i)
            else:
                runs.append([i])
        return runs

    def packed(self) -> Packed:
        """What was added."""
        ids = np.empty(self.size, dtype=np.int64)
        positions = np.empty(self.size, dtype=np.int64)
        for array, index in zip(self.arrays, self.index, strict=True):
            ids[index] = array
            positions[index] = np.arange(len(array))
        return Packed(ids, positions, self.segments, self.index)


@dataclass(frozen=True)
class _Siblings:
    """Segments with one parent, which attend as one padded batch of S rows and n queries."""

    own: torch.Tensor  # [S * n], their packed tokens; padding points at token 0
    ancestors: torch.Tensor  # [P], the packed tokens of all ancestors
    positions: torch.Tensor  # [S, n], of the queries
    key_positions: torch.Tensor  # [S, P + n]; -1 on padding
    kept: torch.Tensor  # which of the S * n queries are no padding


class TreePlan:
    """Lets every packed token attend to its ancestors; a `gymnast.agents.models.attention.Plan`."""

    def __init__(self, packed: Packed, device: torch.device) -> None:
        self._packed, self._device = packed, device
        self._tree = _tree(packed, device)
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings
    ) -> torch.Tensor:
        """See `gymnast.agents.models.attention.Plan`."""
        if tree_attention.possible(query, key, value, settings):
            return tree_attention.attend(query, key, value, self._tree, settings)
        outputs = []
        for number, batch in enumerate(self._batches):
            shape = batch.positions.shape  # S, n
            bias = self._bias(number, settings.window, query, key)
            attended = attend(
                query.index_select(0, batch.own).unflatten(0, shape),
                _with_ancestors(key, batch),
                _with_ancestors(value, batch),
                bias,
                settings,
            )
            outputs.append(attended.flatten(0, 1).index_select(0, batch.kept))
        return torch.cat(outputs).index_select(0, self._restore)  # [N, H, Dv]

    @cached_property
    def _batches(self) -> list[_Siblings]:
        segments = _batches(self._packed.segments)
        return [_siblings(self._packed, rows, self._device) for rows in segments]

    @cached_property
    def _restore(self) -> torch.Tensor:
        """Where each token is among those of all batches."""
        return torch.cat([batch.own[batch.kept] for batch in self._batches]).argsort()

    def _bias(
        self, number: int, window: int | None, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        if (number, window) not in self._masks:
            batch = self._batches[number]
            seen = causal_mask(batch.positions, batch.key_positions, window)
            self._masks[number, window] = fold(seen, query.shape[1] // key.shape[1], query.dtype)
        return self._masks[number, window]


def _tree(packed: Packed, device: torch.device) -> tree_attention.Tree:
    last = [segment.end for segment in packed.segments]
    for number in reversed(range(len(last))):  # children come after their parent
        parent = packed.segments[number].parent
        if parent is not None:
            last[parent] = max(last[parent], last[number])
    subtrees = [
        tree_attention.Subtree(segment.start, segment.end, end)
        for segment, end in zip(packed.segments, last, strict=True)
    ]
    return tree_attention.Tree(subtrees, torch.tensor(packed.positions, device=device))


def _with_ancestors(tensor: torch.Tensor, batch: _Siblings) -> torch.Tensor:
    """Gather [N, Hkv, D] into [S, P + n, Hkv, D]."""
    rows = batch.positions.shape[0]
    own = tensor.index_select(0, batch.own).unflatten(0, batch.positions.shape)
    above = tensor.index_select(0, batch.ancestors)
    return torch.cat([above.expand(rows, *above.shape), own], dim=1)


def _batches(segments: list[Segment]) -> list[list[Segment]]:
    """Segments with one parent and lengths within a factor of two."""
    ordered = sorted(segments, key=lambda s: (-1 if s.parent is None else s.parent, -len(s)))
    batches: list[list[Segment]] = []
    for segment in ordered:
        first = batches[-1][0] if batches else None
        if first is not None and first.parent == segment.parent and 2 * len(segment) >= len(first):
            batches[-1].append(segment)
        else:
            batches.append([segment])
    return batches


def _siblings(packed: Packed, rows: list[Segment], device: torch.device) -> _Siblings:
    width = len(rows[0])
    above: list[np.ndarray] = []
    parent = rows[0].parent
    while parent is not None:
        segment = packed.segments[parent]
        above.insert(0, np.arange(segment.start, segment.end))
        parent = segment.parent
    ancestors = np.concatenate(above) if above else np.empty(0, dtype=np.int64)
    steps = np.arange(width)
    lengths = np.array([len(row) for row in rows])
    inside = steps < lengths[:, None]  # [S, n]
    own = np.where(inside, np.array([row.start for row in rows])[:, None] + steps, 0)
    positions = rows[0].position + np.broadcast_to(steps, inside.shape)
    above_positions = np.broadcast_to(packed.positions[ancestors], (len(rows), len(ancestors)))
    key_positions = np.concatenate([above_positions, np.where(inside, positions, -1)], axis=1)
    tensors = (own.reshape(-1), ancestors, positions, key_positions, np.flatnonzero(inside))
    return _Siblings(*(torch.tensor(tensor, device=device) for tensor in tensors))
