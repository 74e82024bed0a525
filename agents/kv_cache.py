"""Keys and values of the contexts seen so far, and the plan of one engine step over them.

The cache has rows; a row holds one context. A request takes the row whose context it extends (the
next turn of an episode), or copies the longest prefix that any row holds (the prompt of its
group, a system prompt) into a free row. Rows nobody uses stay until their place is needed, the
least recently used going first.

Left out: paging, sharing one copy of a prefix between rows, caches that cannot be cut at a token.
"""

from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

from gymnast.agents.attention import LayerSettings, attend, causal_mask, fold

FIRST_CAPACITY = 256


@dataclass
class Row:
    """One row's state: the context it was given, and how much of it is computed."""

    index: int
    length: int = 0  # tokens of the context, known or being computed
    computed: int = 0  # of these, how many have keys and values
    busy: bool = False
    used: int = 0  # when it was last used, by the cache's clock


@dataclass(frozen=True)
class Chunk:
    """Tokens that one row appends in one step: `tokens[start:end]` of the packed step."""

    row: int
    start: int
    end: int
    first_position: int

    @property
    def length(self) -> int:
        """The row's length with these tokens."""
        return self.first_position + self.end - self.start


class KVCache:
    """Rows of keys and values, [rows, Hkv, capacity, D] for each layer.

    A head's keys lie side by side: decoding reads all of them and little else, at the speed of the
    memory.

    Args:
        rows: How many contexts are kept at once. Memory grows towards them as needed.
        context_length: The longest context, in tokens. Memory grows towards it as needed.
    """

    def __init__(self, rows: int, context_length: int) -> None:
        self.rows = [Row(index) for index in range(rows)]
        self.context_length = context_length
        self.tokens = np.full((rows, FIRST_CAPACITY), -1, dtype=np.int64)
        self._held = 0  # how many of the rows have memory
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._clock = count(1)

    def clear(self) -> None:
        """Forget every context that no request is using."""
        for row in self.rows:
            if not row.busy:
                row.length = row.computed = 0

    def longest_prefix(self, ids: np.ndarray) -> tuple[Row | None, int]:
        """The row that shares the longest prefix with `ids`, and that prefix's length."""
        width = min(len(ids), self.tokens.shape[1])
        if width == 0:
            return None, 0
        lengths = np.array([row.length for row in self.rows])
        equal = self.tokens[:, :width] == ids[:width]
        equal &= np.arange(width) < lengths[:, None]
        shared = np.where(equal.all(axis=1), width, equal.argmin(axis=1))
        best = int(shared.argmax())
        length = int(shared[best])
        return (self.rows[best], length) if length else (None, 0)

    def take(self, ids: np.ndarray, source: Row | None, shared: int) -> Row | None:
        """Give a request for `ids` a row whose first `shared` tokens are those of `source`.

        Returns:
            The row, busy, with `computed` tokens ready; None when every row is busy.
        """
        if source is not None and not source.busy and shared == source.length:
            row = source
        else:
            free = [row for row in self.rows if not row.busy and row is not source]
            if not free and source is not None and not source.busy:
                free = [source]
            if not free:
                return None
            row = min(free, key=lambda row: row.used if row.length else 0)
            if source is not None and source is not row:
                self._reserve(row.index + 1, shared)
                self._copy(source.index, row.index, shared)
        self._reserve(row.index + 1, len(ids) + 1)
        self.tokens[row.index, : len(ids)] = ids
        row.length, row.computed, row.busy = len(ids), shared, True
        row.used = next(self._clock)
        return row

    def append(self, row: Row, token: int) -> None:
        """Extend a row's context by a sampled token; its keys come with the next step."""
        self._reserve(row.index + 1, row.length + 1)
        self.tokens[row.index, row.length] = token
        row.length += 1

    def release(self, row: Row) -> None:
        """The request is done. What is computed stays for the next one."""
        row.busy = False
        row.length = row.computed
        row.used = next(self._clock)

    def _copy(self, source: int, target: int, length: int) -> None:
        for store in (self._keys, self._values):
            for layer in store.values():
                layer[target, :, :length] = layer[source, :, :length]

    def _reserve(self, rows: int, length: int) -> None:
        """Make place for so many rows of this length."""
        old_rows, old_length = self._held, self.tokens.shape[1]
        if rows > old_rows:
            self._held = min(max(2 * old_rows, rows), len(self.rows))
        if length > old_length:
            capacity = min(max(2 * old_length, length), max(self.context_length, length))
            grown = np.full((len(self.rows), capacity), -1, dtype=np.int64)
            grown[:, :old_length] = self.tokens
            self.tokens = grown
        if (old_rows, old_length) == (self._held, self.tokens.shape[1]):
            return
        for store in (self._keys, self._values):
            for index, layer in store.items():
                store[index] = self._zeros(layer, layer.shape[1], layer.shape[3])
                store[index][:old_rows, :, :old_length] = layer

    def _zeros(self, like: torch.Tensor, heads: int, width: int) -> torch.Tensor:
        # Zeros, because masked-out garbage could still be NaN, and 0 * NaN is NaN.
        return like.new_zeros((self._held, heads, self.tokens.shape[1], width))

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
                store[layer] = self._zeros(new, new.shape[1], new.shape[2])
            store[layer][rows, :, at] = new
        return self._keys[layer], self._values[layer]


class StepPlan:
    """One engine step: every chunk attends to its own row, single tokens of near rows together.

    Args:
        cache: Holds the rows.
        chunks: What each row appends; single tokens first, in the order of their rows.
        device: Where the model is.
    """

    def __init__(self, cache: KVCache, chunks: list[Chunk], device: torch.device) -> None:
        self._cache = cache
        rows = [chunk.row for chunk in chunks for _ in range(chunk.start, chunk.end)]
        at = [p for chunk in chunks for p in range(chunk.first_position, chunk.length)]
        self._rows = torch.tensor(rows, device=device)
        self.positions = torch.tensor(at, device=device)
        self._runs = _runs(chunks)
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings
    ) -> torch.Tensor:
        """See `gymnast.agents.attention.Plan`."""
        keys, values = self._cache.write(settings.layer, self._rows, self.positions, key, value)
        out = query.new_empty((*query.shape[:2], value.shape[-1]))  # [N, H, Dv]
        for number, run in enumerate(self._runs):
            rows = slice(run[0].row, run[-1].row + 1)
            tokens = slice(run[0].start, run[-1].end)
            length = max(chunk.length for chunk in run)
            mask = self._mask(number, length, settings.window, query, key)  # [B, 1, G * n, L]
            batch = query[tokens].view(len(run), -1, *query.shape[1:])  # [B, n, H, D]
            seen_keys, seen_values = (
                store[rows, :, :length].transpose(1, 2)  # [B, L, Hkv, D]
                for store in (keys, values)
            )
            attended = attend(batch, seen_keys, seen_values, mask, settings)
            out[tokens] = attended.flatten(0, 1)
        return out

    def _mask(
        self,
        number: int,
        length: int,
        window: int | None,
        query: torch.Tensor,
        key: torch.Tensor,
    ) -> torch.Tensor:
        if (number, window) not in self._masks:
            run = self._runs[number]
            positions = self.positions[run[0].start : run[-1].end].view(len(run), -1)
            keys = torch.arange(length, device=positions.device)
            seen = causal_mask(positions, keys, window)
            self._masks[number, window] = fold(seen, query.shape[1] // key.shape[1], query.dtype)
        return self._masks[number, window]


def _runs(chunks: list[Chunk]) -> list[list[Chunk]]:
    """Chunks that can attend as one batch: equal token counts in rows that lie side by side."""
    runs: list[list[Chunk]] = []
    for chunk in chunks:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and chunk.row == last.row + 1
            and chunk.end - chunk.start == last.end - last.start == 1
        ):
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return runs
