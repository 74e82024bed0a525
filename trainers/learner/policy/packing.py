"""Pack trajectories into one sequence in which a prefix they share stands, and is computed, once.

Trajectories of one step begin alike: a system prompt common to all rows, the prompt of a group; so
do the contexts of one episode. They form a tree; its nodes are *segments*, runs of tokens with one
parent. A token attends to its own segment before it and to all of its ancestors, which is what it
would see in its own sequence, so logits and gradients are equal to those of separate sequences (up
to rounding), and the gradient of a shared token is the sum over those who share it.

    system prompt --+-- question 1 --+-- answer 1.1
                    |                `-- answer 1.2
                    `-- question 2 --+-- answer 2.1
                                     `-- answer 2.2

This file knows token ids and attention, nothing of rewards or losses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from gymnast.agents.models.attention import LayerSettings
from gymnast.trainers.learner.tree_attention.calls import Subtree, Tree
from gymnast.trainers.learner.tree_attention.join import attend

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
    # Big-endian numbers, none negative, sort by their bytes as they do by themselves.
    order = sorted(range(len(arrays)), key=lambda i: arrays[i].astype(">i8").tobytes())
    builder.add(order, depth=0, parent=None)
    return builder.packed()


def common(first: np.ndarray, second: np.ndarray) -> int:
    """How many tokens two sequences have in common at their beginning."""
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
            end = len(first) if len(run) == 1 else common(first, last)
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
            if common(self.arrays[before], self.arrays[i]) >= shared:
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


class TreePlan:
    """Lets every packed token attend to its ancestors; a `gymnast.agents.models.attention.Plan`.

    Args:
        packed: The tokens.
        plain: Attend in matrix products on every device, and not by fused kernels.
    """

    def __init__(self, packed: Packed, *, plain: bool = False) -> None:
        self._tree = _tree(packed.segments)
        self._plain = plain

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings
    ) -> torch.Tensor:
        """See `gymnast.agents.models.attention.Plan`."""
        return attend(query, key, value, self._tree, settings, plain=self._plain)


def _tree(segments: Sequence[Segment]) -> Tree:
    last = [segment.end for segment in segments]
    for number in reversed(range(len(last))):  # children come after their parent
        parent = segments[number].parent
        if parent is not None:
            last[parent] = max(last[parent], last[number])
    return Tree(
        [
            Subtree(segment.start, segment.end, end, segment.position)
            for segment, end in zip(segments, last, strict=True)
        ]
    )
