"""Attention over keys and values that lie in pages: Triton kernels, and the same in plain torch.

A page holds the keys (or values) of PAGE consecutive tokens, for each key head: a layer has
`keys` [P, Hkv, PAGE, D] and `values` [P, Hkv, PAGE, Dv]. Key `t` of a row is slot `t % PAGE` of
page `tables[row * table_width + t // PAGE]`. Page 0 is scratch: padding tokens write there.

A step packs N tokens, each with a row and a position; a token attends to the keys of its row up to
its own position. The host divides this into *items*: some consecutive tokens, and a range of keys.
What is shared by several rows is one item of all their tokens, read once; a long range is several
items, so that many processors work on it. A token whose keys lie in several items gets a partial
result from each, and a second kernel joins these. Shapes are static, nothing is read back on the
host, and what changes from step to step lies in tensors: a CUDA graph can hold it all.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import torch

from gymnast.agents.models.attention import LayerSettings

PAGE = 16


@dataclass(frozen=True)
class Work:
    """The items of one static step, in device tensors whose shapes do not change.

    An item is six numbers: `first_query, query_count, row, key_begin, key_end, slot`. The packed
    tokens from `first_query` on, `query_count` of them, attend to the keys from `key_begin` up to
    `key_end`, excluded, of table row `row`; each only up to its own position, and within the window
    of the layer. `key_end` may exceed every position, because positions advance on the device. With
    a negative `slot` the item writes the tokens' output; otherwise it writes the partial result of
    token `first_query + i` to `slot + i`. An item whose `query_count` is 0 does nothing. One whose
    range has no keys for a token contributes nothing to it; if it writes the output, that is zero.

    A token's output comes from one item with a negative slot, or from joining; a token of neither,
    such as padding, gets zeros. `query_count * H / Hkv` is at most the rows of the item's tiles.

    Attributes:
        items: [I, 6] int32.
        wide_items: [J, 6] int32, of tiles with more queries: prefill, and shared prefixes.
        parts: [N, 2] int32: the first index into `part_slots`, and the number of parts to join. 0
            leaves the token's output to an item.
        part_slots: [C] int32: the slots of the partial results to join.
        joined: Whether any token has parts. False spares the launch.
        slots: Number of partial results that have room.
        narrow_rows: Rows of a tile of `items`, each a head of a query; of the keys of `tiles`.
        wide_rows: Rows of a tile of `wide_items`, likewise.
    """

    items: torch.Tensor
    wide_items: torch.Tensor
    parts: torch.Tensor
    part_slots: torch.Tensor
    joined: bool
    slots: int
    narrow_rows: int
    wide_rows: int


@dataclass(frozen=True)
class Tile:
    """The compilation settings of the kernel for one size of item.

    Attributes:
        block: Keys of one step of its loop.
        warps: Warps of a program.
        stages: Steps of the loop that the loads of a step span: 1 loads what it computes with; 3
            loads page numbers two steps ahead, and keys and values one step ahead.
    """

    block: int
    warps: int
    stages: int


# By the size of an element, the padded width of a head, and the rows of a tile. Every entry
# compiles for compute capabilities 8.0 to 12.0 within the 99 KiB of shared memory that consumer
# cards have, and without spilling more than the few registers that ptxas gives up to fit a program
# more on a processor. Of such entries, the largest blocks were taken for decoding (16 rows), which
# waits for memory, and as many warps as the accumulators need for the rest. Products of float32
# without TF32 hold both operands in registers: small blocks, nothing loaded ahead.
_TILES = {
    2: {
        64: {16: Tile(128, 4, 3), 32: Tile(64, 4, 3), 64: Tile(64, 4, 3), 128: Tile(64, 8, 3)},
        128: {16: Tile(64, 4, 3), 32: Tile(64, 4, 3), 64: Tile(64, 8, 3), 128: Tile(64, 8, 3)},
        256: {16: Tile(32, 4, 3), 32: Tile(32, 8, 3), 64: Tile(32, 8, 3)},
        512: {16: Tile(32, 8, 3), 32: Tile(16, 8, 3)},
    },
    4: {
        64: {16: Tile(32, 4, 1), 32: Tile(16, 8, 1), 64: Tile(32, 8, 1)},
        128: {16: Tile(32, 8, 1), 32: Tile(16, 8, 1)},
        256: {16: Tile(32, 8, 1), 32: Tile(16, 8, 1)},
        512: {16: Tile(16, 8, 1), 32: Tile(16, 8, 1)},
    },
}
WIDEST = max(_TILES[2])


def padded(width: int) -> int:
    """Return the power of two, 16 at least, that a head of this width takes in a tile."""
    return max(16, 1 << (width - 1).bit_length())


def tiles(head_width: int, value_width: int, dtype: torch.dtype) -> dict[int, Tile]:
    """Return the tiles that there are for a layer, by their rows.

    `Work.narrow_rows` and `Work.wide_rows` are among these, for each layer of a model.

    Args:
        head_width: D, of queries and keys.
        value_width: Dv.
        dtype: Of queries, keys and values.
    """
    width = max(64, padded(head_width), padded(value_width))
    return _TILES[dtype.itemsize][width]


def supported(
    head_width: int,
    value_width: int,
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
    group: int = 1,
) -> str | None:
    """Return None if `attend_pages` can serve a layer, or the reason why not, in one line.

    Args:
        head_width: D, of queries and keys.
        value_width: Dv.
        dtype: Of queries, keys and values.
        capability: Of the GPU, as `torch.cuda.get_device_capability` returns it; None for Triton's
            interpreter.
        group: Query heads that share a key head.
    """
    if find_spec("triton") is None:
        return "Triton is not installed: pip install 'gymnast-rl[gpu]'"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the model computes in {dtype}, and not in bfloat16, float16 or float32"
    if max(head_width, value_width) > WIDEST:
        return f"heads of width {max(head_width, value_width)} are wider than {WIDEST}"
    if group > max(tiles(head_width, value_width, dtype)):
        return f"{group} query heads share a key head, which is more than a tile has rows"
    if capability is not None and capability < (8, 0):
        return f"the GPU has compute capability {capability[0]}.{capability[1]}, below 8.0"
    return None


def attend_pages(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    table_width: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    work: Work,
    settings: LayerSettings,
) -> torch.Tensor:
    """Attend by Triton kernels, as the items say.

    Args:
        query: [N, H, D], of the packed tokens.
        keys: [P, Hkv, PAGE, D]; of any pages and heads, the last two dimensions contiguous.
        values: [P, Hkv, PAGE, Dv], likewise.
        tables: [R * W or more] int32: the pages of each row, row after row.
        table_width: [1] int32: W, which may change from step to step.
        rows: [N] int32: the row of each token. Items name their rows, so this is not read here.
        positions: [N] int32 or int64: the position of each token in its row.
        work: The items.
        settings: Of the layer.

    Returns:
        [N, H, Dv], contiguous, of the query's type.
    """
    from gymnast.agents.engine import paged_kernels

    tokens, heads, head_width = query.shape
    key_heads, value_width = keys.shape[1], values.shape[3]
    query = _with_adjacent_columns(query)
    out = query.new_zeros(tokens, heads, value_width)
    slots = max(1, work.slots)
    partials = query.new_empty(slots, heads, value_width, dtype=torch.float32)
    logsums = query.new_empty(slots, heads, dtype=torch.float32)
    sinks = logsums if settings.sinks is None else settings.sinks
    for items, tile_rows in (
        (work.wide_items, work.wide_rows),
        (work.items, work.narrow_rows),
    ):
        if not items.shape[0]:
            continue
        tile = tiles(head_width, value_width, query.dtype)[tile_rows]
        paged_kernels.attend_items[(items.shape[0], key_heads)](
            query,
            keys,
            values,
            tables,
            table_width,
            positions,
            items,
            sinks,
            out,
            partials,
            logsums,
            float(settings.scale),
            float(settings.softcap or 1),
            settings.window or 0,
            query.stride(0),
            query.stride(1),
            keys.stride(0),
            keys.stride(1),
            values.stride(0),
            values.stride(1),
            HEADS=heads,
            GROUP=heads // key_heads,
            WIDTH=head_width,
            VALUE_WIDTH=value_width,
            PADDED_WIDTH=padded(head_width),
            PADDED_VALUE_WIDTH=padded(value_width),
            PAGE=PAGE,
            ROWS=tile_rows,
            BLOCK=tile.block,
            HAS_WINDOW=settings.window is not None,
            HAS_SOFTCAP=settings.softcap is not None,
            HAS_SINKS=settings.sinks is not None,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    if work.joined:
        paged_kernels.join_parts[(tokens, heads)](
            partials,
            logsums,
            work.parts,
            work.part_slots,
            sinks,
            out,
            HEADS=heads,
            VALUE_WIDTH=value_width,
            PADDED_VALUE_WIDTH=padded(value_width),
            PARTS=8,
            HAS_SINKS=settings.sinks is not None,
            num_warps=1 if value_width <= 128 else 4,
        )
    return out


def attend_pages_plain(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    table_width: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    settings: LayerSettings,
    most_pages: int,
) -> torch.Tensor:
    """Attend as `attend_pages` does, in plain torch: static shapes, on any device.

    Computes in float32, or in float64 if the tensors are of that. Each token gathers the keys of
    its whole row: memory is N times `most_pages` pages.

    Args:
        query: [N, H, D]; this and the next six as for `attend_pages`.
        keys: [P, Hkv, PAGE, D].
        values: [P, Hkv, PAGE, Dv].
        tables: [R * W or more] int32.
        table_width: [1] int32.
        rows: [N] int32.
        positions: [N] int32 or int64.
        settings: Of the layer.
        most_pages: Pages of the longest row that may come: W is at most this, or pages beyond it
            hold no keys that a token attends to.

    Returns:
        [N, H, Dv], of the query's type.
    """
    tokens, heads, head_width = query.shape
    key_heads, value_width = keys.shape[1], values.shape[3]
    computed = torch.promote_types(query.dtype, torch.float32)
    at = torch.arange(most_pages * PAGE, device=query.device)
    distance = positions[:, None] - at[None]  # [N, L]
    seen = distance >= 0
    if settings.window is not None:
        seen &= distance < settings.window
    column = torch.arange(most_pages, device=query.device)[None]
    index = (rows[:, None].long() * table_width + column).clamp(max=tables.shape[0] - 1)
    pages = tables[index].long()  # [N, most_pages]
    pages = pages.masked_fill(column * PAGE > positions[:, None], 0)

    def gather(held: torch.Tensor) -> torch.Tensor:
        found = held[pages].transpose(1, 2).flatten(2, 3).to(computed)  # [N, Hkv, L, D or Dv]
        # What no token sees may be anything, NaN as well, which a weight of 0 does not hide.
        return found.masked_fill(~seen[:, None, :, None], 0.0)

    folded = query.reshape(tokens, key_heads, -1, head_width).to(computed)  # [N, Hkv, G, D]
    scores = folded @ gather(keys).transpose(2, 3) * settings.scale
    if settings.softcap is not None:
        scores = settings.softcap * torch.tanh(scores / settings.softcap)
    scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    if settings.sinks is not None:
        sinks = settings.sinks.to(computed).view(1, key_heads, -1, 1).expand(tokens, -1, -1, -1)
        scores = torch.cat([scores, sinks], dim=3)
    weights = torch.softmax(scores, dim=3)[..., : at.shape[0]]
    return (weights @ gather(values)).view(tokens, heads, value_width).to(query.dtype)


def write_pages(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    table_width: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Write the keys and values of the packed tokens to their pages, in place, by one kernel.

    Args:
        key: [N, Hkv, D].
        value: [N, Hkv, Dv].
        keys: [P, Hkv, PAGE, D]; this and the next three as for `attend_pages`.
        values: [P, Hkv, PAGE, Dv].
        tables: [R * W or more] int32.
        table_width: [1] int32.
        rows: [N] int32: the row of each token.
        positions: [N] int32 or int64: the position of each token in its row.
    """
    from gymnast.agents.engine import paged_kernels

    tokens, key_heads, head_width = key.shape
    value_width = value.shape[2]
    key, value = _with_adjacent_columns(key), _with_adjacent_columns(value)
    paged_kernels.write_tokens[(tokens, key_heads)](
        key,
        value,
        keys,
        values,
        tables,
        table_width,
        rows,
        positions,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        WIDTH=head_width,
        VALUE_WIDTH=value_width,
        PADDED_WIDTH=padded(head_width),
        PADDED_VALUE_WIDTH=padded(value_width),
        PAGE=PAGE,
        num_warps=1,
    )


def write_pages_plain(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    table_width: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Write as `write_pages` does, in plain torch: static shapes, on any device."""
    positions = positions.long()
    pages = tables[rows.long() * table_width + positions // PAGE].long()
    keys[pages, :, positions % PAGE] = key
    values[pages, :, positions % PAGE] = value


def _with_adjacent_columns(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy if the elements of its last dimension are not adjacent."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
