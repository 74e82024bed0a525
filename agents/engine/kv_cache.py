"""Keys and values of the contexts seen so far, within a budget.

The cache has rows; a row holds one context. A request takes the row whose context it extends (the
next turn of an episode), or copies the longest prefix that any row holds (the prompt of its group,
a system prompt) into a free row. Rows that are not in use stay until their memory is needed; the
least recently used go first. All rows have the same capacity, which grows with the longest context
in use; rows times capacity stays within the budget.

Where the experts that a model chooses are kept, they lie beside the tokens: a row that takes over
keys and values takes over the experts that were chosen when they were computed.

There is no paging, and each row has its own copy of a shared prefix. Caches that cannot be cut at a
token are in `agents/engine/state_engine.py`.
"""

from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

from gymnast.agents.engine import executor

FIRST_CAPACITY, FIRST_ROWS = 256, 8  # growing copies the whole cache
# The share of another row's prefix from which on a row counts as having it. Decoding reads a common
# prefix once, so a short common start must not displace the longer one of a group.
ENOUGH_SHARED = 0.75
# A search for a prefix reads on, so many tokens at a time, in the rows that have agreed so far.
COMPARED_AT_ONCE = 256


@dataclass(eq=False)
class Prefix:
    """Tokens that several rows begin with, with equal keys and values.

    Attributes:
        number: Unique in the cache.
        length: In tokens.
    """

    number: int
    length: int


@dataclass(eq=False, kw_only=True)
class Row(executor.Row):
    """One row of the cache: the context it was given, and how much of it is computed."""

    index: int
    prefix: Prefix
    reserved: int = 0  # how long the request may make it
    busy: bool = False
    stale: bool = False  # computed, in part at least, with weights that have changed since
    used: int = 0  # when it was last used, by the cache's clock


class KVCache:
    """Rows of keys and values, [rows, Hkv, capacity, D] for each layer.

    A head's keys lie side by side: decoding reads all of them and little else, at the speed of the
    memory.

    Args:
        most_rows: The most contexts that are kept.
        budget_tokens: The most tokens that all rows hold together. While memory grows, one layer is
            held twice.
        experts: What is kept of one token besides, an empty array [0, layers, chosen] whose dtype
            and shape it has; None keeps nothing.
    """

    def __init__(
        self, most_rows: int, budget_tokens: int, experts: np.ndarray | None = None
    ) -> None:
        self.most_rows = most_rows
        self.budget_tokens = budget_tokens
        self.rows: list[Row] = []
        self.capacity = 0
        self.tokens = np.empty((0, 0), dtype=np.int64)
        self._kept_experts = experts
        self.experts: np.ndarray | None = None  # [rows, capacity, layers, chosen]
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._clock = count(1)

    @property
    def nbytes(self) -> int:
        """Bytes that the keys and values take."""
        stores = [*self._keys.values(), *self._values.values()]
        return sum(store.nbytes for store in stores)

    def clear(self) -> None:
        """Forget every context that no request uses; if none is in use, free the memory.

        Those in use go on, serve no other request, and are forgotten when they are released.
        """
        for row in self.rows:
            if row.busy:
                row.stale = True
            else:
                row.length = row.computed = 0
        if not any(row.busy for row in self.rows):
            self.rows, self.capacity = [], 0
            self.tokens, self.experts = np.empty((0, 0), dtype=np.int64), None
            self._keys.clear()
            self._values.clear()

    def longest_prefix(self, ids: np.ndarray) -> tuple[Row | None, int]:
        """The row that shares the longest prefix with `ids`, and that prefix's length."""
        best: Row | None = None
        length = 0
        rows = [row for row in self.rows if row.length and not row.stale]
        width = min(len(ids), self.capacity)
        while rows and length < width:  # rows that share the first `length` tokens
            end = min(length + COMPARED_AT_ONCE, width)
            differs = self.tokens[[row.index for row in rows], length:end] != ids[length:end]
            shared = np.where(differs.any(axis=1), differs.argmax(axis=1), end - length)
            shared = np.minimum(shared, [row.length - length for row in rows])
            longest = int(shared.max())
            if longest == 0:
                break
            best, length = rows[int(shared.argmax())], length + longest
            if longest < COMPARED_AT_ONCE:
                break
            rows = [row for row, same in zip(rows, shared, strict=True) if same == longest]
        return best, length

    def take(self, ids: np.ndarray, most: int, source: Row | None, shared: int) -> Row | None:
        """Give a request for `ids` a row whose first `shared` tokens are those of `source`.

        Args:
            ids: The context.
            most: The most tokens that the row will hold.
            source: A row that begins like `ids`, or None.
            shared: How many of its tokens are computed and equal.

        Returns:
            The row, busy, with `computed` tokens ready; None if the busy rows leave no room.
        """
        if source is not None:
            source.used = next(self._clock)
        if not self._grow(most):
            return None
        if source is not None and not source.busy and shared == source.length:
            row = source
        else:
            row = self._free(source)
            if source is None or shared < ENOUGH_SHARED * source.prefix.length:
                row.prefix = Prefix(next(self._clock), len(ids))
            else:
                row.prefix = source.prefix
                row.prefix.length = min(row.prefix.length, shared)
            if source is not None and source is not row:
                self._copy(source.index, row.index, shared)
        self.tokens[row.index, : len(ids)] = ids
        row.length, row.computed, row.reserved, row.busy = len(ids), shared, most, True
        row.used = next(self._clock)
        return row

    def append(self, row: Row, token: int) -> None:
        """Set the last token of a row, which was sampled; its keys come with the next step."""
        self.tokens[row.index, row.length - 1] = token

    def release(self, row: Row) -> None:
        """End the row's request. What is computed stays for the next one."""
        row.busy, row.request = False, None
        row.length = row.computed = 0 if row.stale else row.computed
        row.stale = False
        row.used = next(self._clock)

    def write(
        self,
        layer: int,
        rows: torch.Tensor,
        at: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put [N, Hkv, D] keys and values at (row, position); returns the layer's whole store."""
        for store, new in ((self._keys, key), (self._values, value)):
            if layer not in store:
                # Zeros, because masked-out garbage could still be NaN, and 0 * NaN is NaN.
                shape = (len(self.rows), new.shape[1], self.capacity, new.shape[2])
                store[layer] = new.new_zeros(shape)
            store[layer][rows, :, at] = new
        return self._keys[layer], self._values[layer]

    def _free(self, source: Row | None) -> Row:
        """A row to overwrite: an empty one, else a new one, else the least recently used."""
        idle = [row for row in self.rows if not row.busy]
        others = [row for row in idle if row is not source]
        empty = next((row for row in others if not row.length), None)
        if empty is not None:
            return empty
        held, most = len(self.rows), min(self.most_rows, self.budget_tokens // self.capacity)
        if held < most:
            self._resize(min(2 * held, most), self.capacity)
            return self.rows[held]
        return min(others or idle, key=lambda row: row.used)  # `_grow` saw that one is idle

    def _grow(self, most: int) -> bool:
        """Make room for one more row of this length; False if the busy rows leave none."""
        busy = [row for row in self.rows if row.busy]
        longest = max([most, *(row.reserved for row in busy)])
        needed = len(busy) + 1
        if needed > min(self.most_rows, self.budget_tokens // longest):
            return False
        if longest <= self.capacity and needed * self.capacity <= self.budget_tokens:
            return True
        kept = sum(1 for row in self.rows if row.length)
        generous = min(2 * self.capacity, self.budget_tokens // (kept + 1))
        capacity = max(longest, generous, FIRST_CAPACITY)
        if needed * capacity > self.budget_tokens:
            capacity = longest
        held = min(max(len(self.rows), FIRST_ROWS), self.most_rows, self.budget_tokens // capacity)
        self._resize(held, capacity)
        return True

    def _resize(self, held: int, capacity: int) -> None:
        """Hold this many rows of this capacity; of more rows, the busy and newest stay."""
        by_use = sorted(self.rows, key=lambda row: (not row.busy, -row.used))
        rows = sorted(by_use[:held], key=lambda row: row.index)
        old = [row.index for row in rows]
        width = min(self.capacity, capacity)
        tokens = np.full((held, capacity), -1, dtype=np.int64)
        tokens[: len(old), :width] = self.tokens[old, :width]
        if self._kept_experts is not None:
            experts = np.zeros(
                (held, capacity, *self._kept_experts.shape[1:]), self._kept_experts.dtype
            )
            if self.experts is not None:
                experts[: len(old), :width] = self.experts[old, :width]
            self.experts = experts
        for store in (self._keys, self._values):
            for layer, before in store.items():
                after = before.new_zeros((held, before.shape[1], capacity, before.shape[3]))
                for new, index in enumerate(old):
                    after[new, :, :width] = before[index, :, :width]
                store[layer] = after
        self.tokens, self.capacity = tokens, capacity
        rows += [Row(index=index, prefix=Prefix(0, 0)) for index in range(len(rows), held)]
        self.rows = rows
        for index, row in enumerate(rows):
            row.index = index
            if row.length > capacity:  # an idle row, whose memory went to busy ones
                row.length = row.computed = 0

    def _copy(self, source: int, target: int, length: int) -> None:
        for store in (self._keys, self._values):
            for layer in store.values():
                layer[target, :, :length] = layer[source, :, :length]
        if self.experts is not None:
            self.experts[target, :length] = self.experts[source, :length]
