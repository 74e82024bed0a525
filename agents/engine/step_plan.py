"""What every packed token of one engine step attends to.

A chunk of several tokens (prefill) attends to its own row. Single tokens (decoding) attend in
batches of rows that lie near each other; rows that begin with the same tokens, such as the members
of a group, read the keys and values of these once for all of them, which is most of what decoding
costs. Softmax runs over both parts together, so the result is that of one attention (the idea is
Juravsky et al. 2024, "Hydragen", arXiv:2402.05099, whose batched part this is).

In half precision a shared prefix is read for every row: scores must not be rounded, and PyTorch's
fused attention does not take two parts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gymnast.agents.engine.kv_cache import KVCache, Prefix, Row
from gymnast.agents.models.attention import LayerSettings, attend, causal_mask, fold, weigh

# Attending in one batch saves launches, but reads rows and positions in vain: on a CPU it pays up
# to this many tokens.
WASTE_TOKENS = 512
# Reading a prefix once instead of for every row pays if it saves this many tokens.
WORTH_SHARING = 1024
# Most scores of one call, over all heads: a longer chunk attends in blocks of its tokens, so that
# masks and scores grow with the context and not with its product with the chunk.
MOST_SCORES = 2**24


@dataclass(frozen=True)
class Chunk:
    """Tokens that one row appends in one step: `tokens[start:end]` of the packed step.

    Attributes:
        row: Its index in the cache.
        start: Where the chunk begins among the packed tokens.
        end: Where it ends.
        first_position: The first token's position in its context.
        prefix: What the row shares with others.
    """

    row: int
    start: int
    end: int
    first_position: int
    prefix: Prefix

    @property
    def length(self) -> int:
        """The row's length with these tokens."""
        return self.first_position + self.end - self.start

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def single(self) -> bool:
        """Whether it is one token."""
        return self.end - self.start == 1


@dataclass
class Run:
    """Chunks that attend together: one of any length, or single tokens of rows near each other.

    Attributes:
        chunks: In the order of their rows and of their tokens.
        shared: Tokens that all rows begin with and that are read once; 0 without.
        length: Of the longest row.
    """

    chunks: list[Chunk]
    shared: int
    length: int

    @property
    def rows(self) -> slice:
        """The rows from the first to the last; some between them may have no chunk."""
        return slice(self.chunks[0].row, self.chunks[-1].row + 1)

    @property
    def tokens(self) -> slice:
        """The packed tokens."""
        return slice(self.chunks[0].start, self.chunks[-1].end)

    @property
    def complete(self) -> bool:
        """Whether every row from the first to the last has a chunk."""
        return self.chunks[-1].row - self.chunks[0].row + 1 == len(self.chunks)

    @property
    def even(self) -> bool:
        """Whether all rows are equally long."""
        return all(chunk.length == self.length for chunk in self.chunks)

    def takes(self, chunk: Chunk, shared: int) -> bool:
        """Whether a chunk may attend with these, with little read in vain."""
        last = self.chunks[-1]
        if not (last.single and chunk.single and last.row < chunk.row and shared == self.shared):
            return False
        if shared and last.prefix is not chunk.prefix:
            return False
        before, after = last.row + 1 - self.chunks[0].row, chunk.row + 1 - self.chunks[0].row
        separately = before * (self.length - shared) + chunk.length - shared
        together = after * (max(self.length, chunk.length) - shared)
        return together - separately <= WASTE_TOKENS


class StepPlan:
    """One engine step; a `gymnast.agents.models.attention.Plan`.

    Args:
        cache: Holds the rows.
        chunks: What each row appends; single tokens first, in the order of `decoding_order`.
        device: Where the model is.

    Attributes:
        ids: The packed tokens, [N].
        positions: Of each token in its context, [N].
        rows: Of the cache that each token is in, [N].
    """

    def __init__(self, cache: KVCache, chunks: Sequence[Chunk], device: torch.device) -> None:
        self._cache = cache
        rows = np.repeat([chunk.row for chunk in chunks], [len(chunk) for chunk in chunks])
        at = np.concatenate([np.arange(chunk.first_position, chunk.length) for chunk in chunks])
        # In one array: each copy to a device is a call of its own.
        packed = torch.tensor(np.stack([cache.tokens[rows, at], at, rows]), device=device)
        self.ids, self.positions, self._rows = packed.unbind()
        self.rows = rows
        self._runs = runs(chunks)
        self._biases: dict[tuple[int, int | None], torch.Tensor | None] = {}

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings
    ) -> torch.Tensor:
        """See `gymnast.agents.models.attention.Plan`."""
        keys, values = self._cache.write(settings.layer, self._rows, self.positions, key, value)
        # Fused attention keeps scores in float32 whatever the dtype; ours are what comes in.
        exact = query.dtype == torch.float32
        outs = []
        for number, run in enumerate(self._runs):
            several = len(run.chunks) > 1
            seen, shown = (store[run.rows, :, : run.length] for store in (keys, values))
            if not run.chunks[0].single:
                outs.append(self._prefill(number, query[run.tokens], seen, shown, settings))
                continue
            asked = self._by_row(run, query[run.tokens]) if several else query[run.tokens][None]
            bias = self._bias(number, query, key, settings.window)
            if several and exact:
                out = _decode(asked, seen, shown, bias, run.shared, settings)
            else:
                asked = asked[:, None] if several else asked  # [B, n, H, D]
                out = attend(asked, seen.transpose(1, 2), shown.transpose(1, 2), bias, settings)
                out = out.flatten(0, 1)
            outs.append(out if run.complete else out[self._places(run)])
        return torch.cat(outs) if len(outs) > 1 else outs[0]  # [N, H, Dv]

    def _prefill(
        self,
        number: int,
        query: torch.Tensor,  # [n, H, D]
        key: torch.Tensor,  # [1, Hkv, L, D]
        value: torch.Tensor,
        settings: LayerSettings,
    ) -> torch.Tensor:
        """What the tokens of a chunk get, [n, H, Dv]."""
        chunk = self._runs[number].chunks[0]
        key, value = key.transpose(1, 2), value.transpose(1, 2)
        size = max(1, MOST_SCORES // (query.shape[1] * chunk.length))
        if size >= len(chunk):
            bias = self._bias(number, query, key[0], settings.window)
            return attend(query[None], key, value, bias, settings)[0]
        outs = []
        for start in range(0, len(chunk), size):
            asked = query[start : start + size]
            first = chunk.first_position + start
            reach = slice(max(0, first + 1 - (settings.window or first + 1)), first + len(asked))
            positions = torch.arange(first, reach.stop, device=query.device)
            keys = torch.arange(reach.start, reach.stop, device=query.device)
            seen = causal_mask(positions, keys, settings.window)[None]
            bias = fold(seen, query.shape[1] // key.shape[2], query.dtype)
            outs.append(attend(asked[None], key[:, reach], value[:, reach], bias, settings)[0])
        return torch.cat(outs)

    def _places(self, run: Run) -> torch.Tensor:
        """Where the rows with a chunk are among the run's rows."""
        return self._rows[run.tokens] - run.rows.start

    def _by_row(self, run: Run, tokens: torch.Tensor) -> torch.Tensor:
        """[n, ...] of the chunks to [B, ...] of the rows, zero where a row has no chunk."""
        if run.complete:
            return tokens
        rows = tokens.new_zeros((run.rows.stop - run.rows.start, *tokens.shape[1:]))
        rows[self._places(run)] = tokens
        return rows

    def _bias(
        self, number: int, query: torch.Tensor, key: torch.Tensor, window: int | None
    ) -> torch.Tensor | None:
        """What is added to the scores of a run: [B, 1, G * n, L], or [B, 1, 1, L] for one token.

        Layers of one kind share it. None where every query sees every key.
        """
        if (number, window) not in self._biases:
            self._biases[number, window] = self._made_bias(
                self._runs[number], query.shape[1] // key.shape[1], window, query.dtype
            )
        return self._biases[number, window]

    def _made_bias(
        self, run: Run, heads_per_key: int, window: int | None, dtype: torch.dtype
    ) -> torch.Tensor | None:
        single = run.chunks[0].single
        inside = window is None or window >= run.length
        if single and inside and run.complete and run.even:
            return None
        positions = self.positions[run.tokens]
        positions = self._by_row(run, positions)[:, None] if single else positions[None]
        keys = torch.arange(run.length, device=positions.device)
        seen = causal_mask(positions, keys, window)  # [B, n, L]
        return fold(seen, 1 if single else heads_per_key, dtype)


def _decode(
    query: torch.Tensor,  # [B, H, D]
    key: torch.Tensor,  # [B, Hkv, L, D]
    value: torch.Tensor,
    bias: torch.Tensor | None,  # [B, 1, 1, L]
    shared: int,
    settings: LayerSettings,
) -> torch.Tensor:
    """One token a row, the first `shared` keys and values being those of row 0; [B, H, Dv]."""
    batch, heads, width = query.shape
    groups = key.shape[1]
    query = (query * settings.scale).view(batch, groups, -1, width)  # [B, Hkv, G, D]
    scores = query @ key[:, :, shared:].transpose(-1, -2)  # [B, Hkv, G, L - shared]
    if shared:
        together = query.transpose(0, 1).reshape(groups, -1, width)  # [Hkv, B * G, D]
        common = together @ key[0, :, :shared].transpose(-1, -2)  # [Hkv, B * G, shared]
        common = common.view(groups, batch, -1, shared).transpose(0, 1)
        scores = torch.cat([common, scores], dim=-1)
    weights = weigh(scores, bias, settings)
    out = weights[..., shared:] @ value[:, :, shared:]  # [B, Hkv, G, Dv]
    if shared:
        together = weights[..., :shared].transpose(0, 1).reshape(groups, -1, shared)
        common = together @ value[0, :, :shared]  # [Hkv, B * G, Dv]
        out += common.view(groups, batch, -1, out.shape[-1]).transpose(0, 1)
    return out.reshape(batch, heads, -1)


def decoding_order(rows: Iterable[Row]) -> list[Row]:
    """Rows that decode in this step: those that share a prefix together, by their place."""
    rows = list(rows)
    members = Counter(row.prefix for row in rows)
    return sorted(rows, key=lambda row: (_worth(row.prefix, members), row.index))


def _worth(prefix: Prefix, members: Mapping[Prefix, int]) -> int:
    """The number of a prefix that several rows of this step share, else 0."""
    return prefix.number if (members[prefix] - 1) * prefix.length >= WORTH_SHARING else 0


def runs(chunks: Sequence[Chunk]) -> list[Run]:
    """Part a step's chunks into runs; single tokens come first, in `decoding_order`.

    Rows between those of a run, and positions behind a row's end, are read in vain; a row joins
    where that is less than `WASTE_TOKENS`.
    """
    members = Counter(chunk.prefix for chunk in chunks if chunk.single)
    parted: list[Run] = []
    for chunk in chunks:
        shared = chunk.prefix.length if chunk.single and _worth(chunk.prefix, members) else 0
        if parted and parted[-1].takes(chunk, shared):
            parted[-1].chunks.append(chunk)
            parted[-1].length = max(parted[-1].length, chunk.length)
        else:
            parted.append(Run([chunk], shared, chunk.length))
    return parted
