"""Which dimension of each tensor of a model's caches counts sequences, and which counts tokens.

It is found by comparing caches: of few tokens, of many, and of two sequences at once. So it holds
for every model whose caches are made of such tensors, whatever their classes are called.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gymnast.agents.caches.parts import Path, part_at, parts, put


@dataclass(frozen=True)
class Dims:
    """One tensor of a cache.

    Attributes:
        path: Where it is.
        batch: The dimension that counts sequences.
        length: The one that counts tokens (up to a window, if there is one), if any does.
    """

    path: Path
    batch: int
    length: int | None


@dataclass(frozen=True)
class Layout:
    """What all caches of a model have in common.

    Attributes:
        dims: Of each tensor that differs between sequences.
        counts: Where the number of tokens stands.
    """

    dims: tuple[Dims, ...]
    counts: tuple[Path, ...]
    _empty: Any

    @property
    def grows(self) -> bool:
        """Whether any tensor takes more room for more tokens."""
        return any(each.length is not None for each in self.dims)

    def empty(self) -> Any:
        """A cache without its tensors."""
        return copy.deepcopy(self._empty)

    def fill(self, tensors: Mapping[Path, torch.Tensor], length: int) -> Any:
        """A cache of these tensors, after `length` tokens."""
        cache = self.empty()
        for path, tensor in tensors.items():
            put(cache, path, tensor)
        self.count(cache, length)
        return cache

    def count(self, cache: Any, length: int) -> None:
        """Have a cache say that it holds `length` tokens."""
        for path in self.counts:
            put(cache, path, length)

    def copy(self, cache: Any, length: int) -> Any:
        """A cache of one sequence that shares no memory with this one."""
        cloned = {each.path: part_at(cache, each.path).clone() for each in self.dims}
        return self.fill(cloned, length)


def find_layout(few: Any, many: Any, two: Any, lengths: tuple[int, int]) -> Layout | None:
    """Compare three caches of one model.

    Args:
        few: Of one sequence of some tokens.
        many: Of one sequence of more tokens.
        two: Of two sequences, each as long as the first.
        lengths: How many tokens the first two hold.

    Returns:
        None where sequences cannot be told apart, so that caches cannot be joined.
    """
    shorter, longer, both = dict(parts(few)), dict(parts(many)), dict(parts(two))
    if not shorter.keys() == longer.keys() == both.keys():
        return None
    dims, counts = [], []
    for path, part in shorter.items():
        if isinstance(part, torch.Tensor):
            batch = _other(part, both[path])
            length = _other(part, longer[path])
            if len(batch) > 1 or len(length) > 1 or (length and batch in ([], length)):
                return None
            if batch and (part.shape[batch[0]], both[path].shape[batch[0]]) != (1, 2):
                return None
            if batch:
                dims.append(Dims(path, batch[0], length[0] if length else None))
        elif (part, longer[path]) == lengths:
            counts.append(path)
        elif part != longer[path]:
            return None
    # What differs between sequences is left out of the copy.
    left_out = {id(part_at(few, each.path)): None for each in dims}
    return Layout(tuple(dims), tuple(counts), copy.deepcopy(few, left_out))


def _other(one: torch.Tensor, two: torch.Tensor) -> list[int]:
    """The dimensions in which two tensors differ."""
    if one.dim() != two.dim():
        return list(range(max(one.dim(), two.dim())))
    return [
        i for i, sizes in enumerate(zip(one.shape, two.shape, strict=True)) if len({*sizes}) > 1
    ]
