"""Trees of segments, and what their tokens see."""

import torch
from hypothesis import strategies as st

from gymnast.trainers.learner.tree_attention.calls import Subtree, Tree

# For each segment: which of the path to the one before it (or none) is its parent, and its length.
shapes = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=8)


def tree_of(parents: list[int], lengths: list[int]) -> tuple[Tree, list[list[int]]]:
    """A tree in depth-first order, and the segments from the root to each segment.

    Args:
        parents: For each segment, which of the path to the one before it (or -1) is its parent.
        lengths: Of each segment.
    """
    paths: list[list[int]] = []
    for number, parent in enumerate(parents):
        before = paths[-1] if paths else []
        paths.append([*before[: (parent + 1) % (len(before) + 1)], number])
    starts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    subtrees = []
    for number, path in enumerate(paths):
        last = max(i for i, other in enumerate(paths) if number in other)
        position = sum(lengths[i] for i in path[:-1])
        subtrees.append(Subtree(starts[number], starts[number + 1], starts[last + 1], position))
    return Tree(subtrees), paths


def drawn_tree(shape: list[tuple[int, int]]) -> tuple[Tree, list[list[int]]]:
    """A tree of one of `shapes`, and its paths."""
    parents, lengths = (list(part) for part in zip(*shape, strict=True))
    return tree_of([0, *parents[1:]], lengths)


def chain(segments: int, length: int = 3) -> Tree:
    """Segments below one another."""
    return tree_of([-1, *range(segments - 1)], [length] * segments)[0]


def groups(count: int, members: int, prompt: int = 7, answer: int = 5) -> Tree:
    """Groups of answers to one prompt each, without anything in common."""
    parents = [-1, 0, *[0] * (members - 1)] * count
    lengths = [prompt, *range(answer, answer + members)] * count
    return tree_of(parents, lengths)[0]


def seen_in_truth(tree: Tree, paths: list[list[int]], window: int | None = None) -> torch.Tensor:
    """Which keys each token sees, [N, N]."""
    seen = torch.zeros(len(tree), len(tree), dtype=torch.bool)
    for path in paths:
        own = tree.subtrees[path[-1]].own
        for number in path:
            seen[own, tree.subtrees[number].own] = True
    positions = torch.cat([s.position + torch.arange(s.end - s.start) for s in tree.subtrees])
    back = positions[:, None] - positions
    return seen & (back >= 0) & (back < (len(tree) + 1 if window is None else window))


def attend_under_a_mask(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend with [N, H, D] in two matrix products, as Transformers does; scores are explicit."""
    shared = query.shape[1] // key.shape[1]
    asked = query.transpose(0, 1)  # [H, N, D]
    k, v = (t.transpose(0, 1).repeat_interleave(shared, dim=0) for t in (key, value))
    scores = asked @ k.transpose(1, 2) * scale
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        extra = sinks.to(scores.dtype)[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat([scores, extra], dim=-1)
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(dim=-1, dtype=wide)[..., : len(key)].to(value.dtype)
    return (weights @ v).transpose(0, 1)
