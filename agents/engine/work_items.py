"""Divide the attention of one step into work items for a GPU.

A row's tokens attend to its pages. A prefix that several rows share is one segment for all their
queries, so its keys and values are read once (cascade attention: Juravsky et al. 2024,
"Hydragen", arXiv:2402.05099; Ye et al. 2024, "Cascade Inference", flashinfer.ai). Long segments are
split along the keys, so that all multiprocessors have work (Flash-Decoding, Dao et al. 2023).
Every piece of a segment is one item of `paged_attention.py`; pieces of the same queries are joined
there by their log-sums.

The number of items is fixed for a CUDA graph; items that are not needed are empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gymnast.agents.engine.paged_attention import PAGE

# Positions advance on the device while a plan is in use: the last piece of a row has no end.
OPEN = 2**30
# A split costs a partial result and a join: below so many keys a piece is not divided.
SHORTEST_PIECE = 512
# Sharing pays if it spares this many bytes of keys and values in a layer: joining costs the device
# about 4 us a layer, in which an H200 reads 16 MB.
WORTH_JOINING = 16 * 2**20
# A prefix is worth a segment of its own if it spares reading this many tokens.
WORTH_SHARING = 256


@dataclass(frozen=True)
class Segment:
    """Queries of consecutive tokens that attend to the same keys.

    Attributes:
        first: The first query among the packed tokens.
        count: The number of queries.
        row: The row of the page table that has the keys.
        begin: The first key.
        end: The key after the last one; `OPEN` for a row's own keys.
        keys: The number of keys that are there now.
    """

    first: int
    count: int
    row: int
    begin: int
    end: int
    keys: int


@dataclass(frozen=True)
class Shared:
    """Rows in an order in which those that share pages are neighbours.

    Attributes:
        order: The rows, [B].
        own_from: For each row in that order, the first token that no segment covers, [B].
        segments: Of the shared prefixes; `first` and `row` count in that order.
        saved: Tokens that need not be read, over all segments.
    """

    order: np.ndarray
    own_from: np.ndarray
    segments: Sequence[Segment]
    saved: int


def find_shared(tables: np.ndarray, lengths: np.ndarray) -> Shared:
    """Find the prefixes that decoding rows share, by their pages; several levels of them.

    Args:
        tables: The pages of each row, [B, W] int32.
        lengths: The tokens that each row has computed, [B].
    """
    count, width = tables.shape
    full = lengths // PAGE  # [B]
    # Big-endian bytes compare like the numbers.
    keys = [row.tobytes() for row in np.where(_upto(full, width), tables, -1).astype(">i4")]
    order = np.array(sorted(range(count), key=keys.__getitem__), dtype=np.int64)
    ordered, pages = tables[order], full[order]
    own_from = np.zeros(count, dtype=np.int64)
    segments: list[Segment] = []
    if count < 2:
        return Shared(order, own_from, segments, 0)
    same = ordered[1:] == ordered[:-1]
    same &= _upto(np.minimum(pages[1:], pages[:-1]), width)
    common = np.where(same.all(axis=1), width, same.argmin(axis=1))  # [B - 1], pages
    saved = 0
    pending = [(0, count, 0)]  # rows from, to, and the pages that segments cover already
    while pending:
        start, end, depth = pending.pop()
        if end - start < 2:
            continue
        inner = common[start : end - 1]
        shared = int(inner.min())
        spared = (shared - depth) * PAGE * (end - start - 1)
        if spared >= WORTH_SHARING:
            first, last = depth * PAGE, shared * PAGE
            segments.append(Segment(start, end - start, start, first, last, last - first))
            own_from[start:end] = last
            depth, saved = shared, saved + spared
        cuts = start + 1 + np.flatnonzero(inner == shared)
        bounds = [start, *cuts.tolist(), end]
        pending += [(left, right, depth) for left, right in pairwise(bounds)]
    return Shared(order, own_from, segments, saved)


def _upto(counts: np.ndarray, width: int) -> np.ndarray:
    """True for the first `counts[b]` columns of row b, [B, width]."""
    mask: np.ndarray = np.arange(width) < counts[:, None]
    return mask


@dataclass(frozen=True)
class Items:
    """Work items of a step, filled up with empty ones.

    Attributes:
        items: [I, 6] int32: first query, queries, table row, first key, end of the keys, slot.
        wide_items: [J, 6] int32, of tiles with more queries.
        parts: [N, 2] int32: where each token's slots begin in `part_slots`, and how many it has.
        part_slots: [C] int32.
        joined: False if every token's result is written directly.
    """

    items: np.ndarray
    wide_items: np.ndarray
    parts: np.ndarray
    part_slots: np.ndarray
    joined: bool


def divide(
    narrow: Sequence[Segment],
    wide: Sequence[Segment],
    *,
    tokens: int,
    queries_per_tile: int,
    most_items: int,
    most_wide_items: int,
    most_slots: int,
) -> Items:
    """Divide segments into items.

    Args:
        narrow: Segments of one query each.
        wide: Segments of several queries; cut into tiles.
        tokens: Packed tokens of the step, N.
        queries_per_tile: Queries of a wide item at most.
        most_items: I; at least one for each narrow segment.
        most_wide_items: J; at least one for each tile.
        most_slots: Partial results of a step at most, C.

    Raises:
        ValueError: The segments do not fit.
    """
    tiles = [tile for segment in wide for tile in _tiles(segment, queries_per_tile)]
    if len(narrow) > most_items or len(tiles) > most_wide_items:
        raise ValueError(
            f"a step has {len(narrow)} narrow and {len(tiles)} wide segments, "
            f"and room for {most_items} and {most_wide_items}"
        )
    pieces = _pieces(narrow, most_items)
    wide_pieces = _pieces(tiles, most_wide_items)
    number = np.zeros(tokens, dtype=np.int64)  # of each token's pieces
    for segment, count in zip([*narrow, *tiles], [*pieces, *wide_pieces], strict=True):
        number[segment.first : segment.first + segment.count] += count
    while (needed := _slots(number)) > most_slots:
        # Tiles of long prompts want many: the largest are divided less.
        scale = most_slots / needed
        pieces, wide_pieces = (
            [max(1, int(n * scale)) for n in each] for each in (pieces, wide_pieces)
        )
        number[:] = 0
        for segment, count in zip([*narrow, *tiles], [*pieces, *wide_pieces], strict=True):
            number[segment.first : segment.first + segment.count] += count
        if all(n == 1 for n in [*pieces, *wide_pieces]):
            break
    if _slots(number) > most_slots:
        raise ValueError(f"a step needs {_slots(number)} partial results, and has {most_slots}")
    counts = np.where(number > 1, number, 0)
    begins = np.cumsum(counts) - counts
    part_slots = np.zeros(most_slots, dtype=np.int32)
    taken = np.zeros(tokens, dtype=np.int64)
    slot = 0

    def items_of(segments: Sequence[Segment], divided: Sequence[int], most: int) -> np.ndarray:
        nonlocal slot
        made = np.zeros((most, 6), dtype=np.int32)
        at = 0
        for segment, count in zip(segments, divided, strict=True):
            queries = slice(segment.first, segment.first + segment.count)
            size = -(-segment.keys // count)
            size = -(-size // PAGE) * PAGE
            for number_of_piece in range(count):
                begin = segment.begin + number_of_piece * size
                last = number_of_piece == count - 1
                end = segment.end if last else min(segment.end, begin + size)
                own = -1
                if counts[segment.first]:
                    own = slot
                    places = begins[queries] + taken[queries]
                    part_slots[places] = np.arange(slot, slot + segment.count)
                    taken[queries] += 1
                    slot += segment.count
                made[at] = (segment.first, segment.count, segment.row, begin, end, own)
                at += 1
        return made

    items = items_of(narrow, pieces, most_items)
    wide_items = items_of(tiles, wide_pieces, most_wide_items)
    parts = np.stack([begins, counts], axis=1).astype(np.int32)
    return Items(items, wide_items, parts, part_slots, joined=bool(counts.any()))


def _slots(number: np.ndarray) -> int:
    return int(number[number > 1].sum())


def _tiles(segment: Segment, queries: int) -> list[Segment]:
    """Cut a segment so that each part has at most `queries` queries."""
    return [
        Segment(
            start,
            min(queries, segment.first + segment.count - start),
            segment.row,
            segment.begin,
            segment.end,
            segment.keys,
        )
        for start in range(segment.first, segment.first + segment.count, queries)
    ]


def _pieces(segments: Sequence[Segment], most: int) -> list[int]:
    """How many pieces each segment is divided into, so that all are about equally long."""
    total = sum(segment.keys for segment in segments)
    spare = most - len(segments)
    if spare <= 0:
        return [1] * len(segments)
    longest = max(SHORTEST_PIECE, -(-total // spare))
    return [max(1, -(-segment.keys // longest)) for segment in segments]
