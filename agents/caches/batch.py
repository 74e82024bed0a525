"""The cache of several sequences, of different lengths, that join and leave.

It is a cache of Transformers like that of one sequence, only that its tensors have a row for each.
Sequences end together; a mask hides what stands before a shorter one begins.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from gymnast.agents.caches.layout import Dims, Layout
from gymnast.agents.caches.parts import part_at, put
from gymnast.agents.caches.room import Room


class CacheBatch:
    """Sequences whose caches are one, so that a forward pass continues all of them.

    Args:
        layout: Of the model's caches.

    Attributes:
        cache: To be given to the model, and to be set to what it returns; None while it is empty.
        lengths: How many tokens each sequence has.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.cache: Any = None
        self.lengths: list[int] = []
        self._rooms: list[Room] = []
        self._appending: set[Room] = set()  # which the cache itself appends to

    @classmethod
    def of(cls, layout: Layout, cache: Any, lengths: Sequence[int]) -> "CacheBatch":
        """What a model left of several sequences, padded on the left."""
        batch = cls(layout)
        batch.cache, batch.lengths = cache, list(lengths)
        batch._rooms = [Room(each.batch, each.length, spare=False) for each in layout.dims]
        batch._take_back()
        return batch

    @property
    def nbytes(self) -> int:
        """What it takes, in bytes."""
        return sum(room.nbytes for room in self._rooms)

    @property
    def longest(self) -> int:
        """How many tokens the longest sequence has."""
        return max(self.lengths, default=0)

    def join(self, caches: Sequence[Any], lengths: Sequence[int], most: int | None = None) -> None:
        """Copy in the caches of single sequences, which follow those that are here.

        Args:
            caches: Of the model, one sequence each; they stay as they are.
            lengths: How many tokens each has.
            most: How many tokens any sequence is going to have; room for more is not kept.
        """
        if self.cache is None:
            self._begin()
        else:
            self._take_back()
        for each, room in zip(self.layout.dims, self._rooms, strict=True):
            room.limit = most
            room.add([part_at(cache, each.path) for cache in caches])
        self.lengths += lengths
        self._show()

    def leave(self, row: int) -> None:
        """Forget a sequence. The last one takes its place."""
        self._take_back()
        self.lengths[row] = self.lengths[-1]
        self.lengths.pop()
        for room in self._rooms:
            room.remove(row, self.longest)
        if self.lengths:
            self._show()
        else:
            self.cache, self._rooms = None, []

    def trim(self, most: int | None) -> None:
        """Give back memory that sequences which have left needed; `most` is that of `join`."""
        if self.lengths:
            self._take_back()
            for room in self._rooms:
                room.limit = most
                room.trim()
            self._show()

    def row(self, row: int) -> Any:
        """A copy of one sequence's cache."""
        self._take_back()
        length = self.lengths[row]
        own = {
            each.path: room.row(row, length)
            for each, room in zip(self.layout.dims, self._rooms, strict=True)
        }
        return self.layout.fill(own, length)

    def mask(self, new: int, device: torch.device) -> torch.Tensor:
        """What each sequence has of the columns, with `new` tokens more: [rows, columns]."""
        lengths = torch.tensor(self.lengths, device=device)
        columns = torch.arange(self.longest + new, device=device)
        return (columns >= self.longest - lengths[:, None]).long()

    def positions(self, new: int, device: torch.device) -> torch.Tensor:
        """The positions of each sequence's next tokens: [rows, new]."""
        lengths = torch.tensor(self.lengths, device=device)
        return lengths[:, None] + torch.arange(new, device=device)

    def grew(self, cache: Any, tokens: int) -> None:
        """Note what the model left, after so many tokens more in every sequence."""
        self.cache = cache
        self.lengths = [length + tokens for length in self.lengths]

    def _begin(self) -> None:
        self.cache = self.layout.empty()
        self._rooms = [self._room(each) for each in self.layout.dims]

    def _room(self, each: Dims) -> Room:
        layer = part_at(self.cache, each.path[:-1])
        name = each.path[-1][1]
        appends = (
            isinstance(layer, DynamicLayer)
            and type(layer).update is DynamicLayer.update
            and name in ("keys", "values")
            and each.length is not None
        )
        room = Room(each.batch, each.length, spare=appends)
        if appends:
            self._appending.add(room)
            rooms = vars(layer).setdefault("rooms", {})
            rooms[name] = room
            layer.update = partial(_append, layer)  # in place of concatenating everything
        return room

    def _take_back(self) -> None:
        """Go on with what the model left."""
        for each, room in zip(self.layout.dims, self._rooms, strict=True):
            if room not in self._appending:
                room.adopt(part_at(self.cache, each.path))

    def _show(self) -> None:
        """Give the model what is in use."""
        for each, room in zip(self.layout.dims, self._rooms, strict=True):
            put(self.cache, each.path, room.view)
        self.layout.count(self.cache, self.longest)


def _append(
    layer: Any, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `DynamicLayer.update` does, into columns kept free."""
    layer.keys = layer.rooms["keys"].append(keys)
    layer.values = layer.rooms["values"].append(values)
    return layer.keys, layer.values
