"""Triton kernels of attention over pages; `agents/engine/paged_attention.py` launches them.

It imports Triton, so it is imported when a kernel is launched, and not before. Everything is
computed in float32, with products of the tensors' own type (`input_precision="ieee"`: no TF32).
Exponentials are powers of two, for which GPUs have an instruction.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def bounded(score, softcap):
    """Compute `softcap * tanh(score / softcap)` with errors of float32's own size.

    Below 0.625, tanh is a polynomial (that of Cephes), because the form with `exp` cancels there.
    """
    x = score / softcap
    square = x * x
    small = -5.70498872745e-3
    small = small * square + 2.06390887954e-2
    small = small * square - 5.37397155531e-2
    small = small * square + 1.33314422036e-1
    small = small * square - 3.33332819422e-1
    small = small * square * x + x
    decay = tl.exp2(-2.8853900817779268 * tl.abs(x))  # exp(-2|x|), which cannot overflow
    large = (1.0 - decay) / (1.0 + decay)
    large = tl.where(x < 0, -large, large)
    return softcap * tl.where(tl.abs(x) < 0.625, small, large)


@triton.jit(do_not_specialize=["window"])
def attend_items(
    query,  # [N, H, D]
    keys,  # [P, Hkv, PAGE, D]
    values,  # [P, Hkv, PAGE, Dv]
    tables,  # [R * W] int32
    table_width,  # [1] int32: W
    positions,  # [N] int32 or int64
    items,  # [I, 6] int32
    sinks,  # [H], read with HAS_SINKS
    out,  # [N, H, Dv]
    partials,  # [slots, H, Dv] float32
    logsums,  # [slots, H] float32, in powers of two
    scale,
    softcap,
    window,
    query_token_stride,
    query_head_stride,
    key_page_stride,
    key_head_stride,
    value_page_stride,
    value_head_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a key head
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    PADDED_VALUE_WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,  # queries times GROUP, of a tile
    BLOCK: tl.constexpr,  # keys of one step of the loop, a multiple of PAGE
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Compute one item for the query heads of one key head: the program (item, key head)."""
    item = items + tl.program_id(0) * 6
    count = tl.load(item + 1)
    if count == 0:
        return
    first = tl.load(item)
    table_row = tl.load(item + 2)
    key_begin = tl.load(item + 3)
    key_end = tl.load(item + 4)
    slot = tl.load(item + 5)
    key_head = tl.program_id(1)

    tile_row = tl.arange(0, ROWS)
    own = tile_row // GROUP  # the query of a row of the tile, counted from the item's first
    valid = own < count
    token = (first + own).to(tl.int64)
    head = key_head * GROUP + tile_row % GROUP
    column = tl.arange(0, PADDED_WIDTH)
    value_column = tl.arange(0, PADDED_VALUE_WIDTH)

    position = tl.load(positions + token, mask=valid, other=-1).to(tl.int32)
    ends = tl.minimum(position + 1, key_end)
    begins = tl.zeros([ROWS], tl.int32) + key_begin
    if HAS_WINDOW:
        begins = tl.maximum(begins, position - window + 1)
    ends = tl.where(valid, ends, 0)
    begins = tl.where(valid, begins, 2147483647)
    begin = tl.min(begins, 0) // PAGE * PAGE
    end = tl.max(ends, 0)

    queries = tl.load(
        query + (token * query_token_stride + head * query_head_stride)[:, None] + column[None, :],
        mask=valid[:, None] & (column < WIDTH)[None, :],
        other=0.0,
    )
    table = tables + table_row.to(tl.int64) * tl.load(table_width)
    head_keys = keys + key_head.to(tl.int64) * key_head_stride
    head_values = values + key_head.to(tl.int64) * value_head_stride

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    gathered = tl.zeros([ROWS, PADDED_VALUE_WIDTH], tl.float32)
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        there = at < end
        page = tl.load(table + at // PAGE, mask=there, other=0).to(tl.int64)
        key = tl.load(
            head_keys + (page * key_page_stride + at % PAGE * WIDTH)[None, :] + column[:, None],
            mask=there[None, :] & (column < WIDTH)[:, None],
            other=0.0,
        )
        score = tl.dot(queries, key, input_precision="ieee")
        if HAS_SOFTCAP:
            score = bounded(score * scale, softcap) * LOG2_E
        else:
            score = score * (scale * LOG2_E)
        seen = (at[None, :] >= begins[:, None]) & (at[None, :] < ends[:, None])
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        # A row that has seen no key yet has no finite maximum; -inf minus itself would be NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - base[:, None])
        fade = tl.exp2(top - base)
        value = tl.load(
            head_values
            + (page * value_page_stride + at % PAGE * VALUE_WIDTH)[:, None]
            + value_column[None, :],
            mask=there[:, None] & (value_column < VALUE_WIDTH)[None, :],
            other=0.0,
        )
        total = total * fade + tl.sum(weight, 1)
        gathered = gathered * fade[:, None]
        gathered = tl.dot(weight.to(value.dtype), value, gathered, input_precision="ieee")
        top = higher

    stored = valid[:, None] & (value_column < VALUE_WIDTH)[None, :]
    if slot < 0:
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32) * LOG2_E
            higher = tl.maximum(top, sink)
            fade = tl.exp2(top - higher)
            total = total * fade + tl.exp2(sink - higher)
            gathered = gathered * fade[:, None]
        mean = gathered / tl.where(total > 0, total, 1.0)[:, None]
        place = (token * HEADS + head)[:, None] * VALUE_WIDTH + value_column[None, :]
        tl.store(out + place, mean.to(out.dtype.element_ty), mask=stored)
    else:
        mean = gathered / tl.where(total > 0, total, 1.0)[:, None]
        part = (slot + own).to(tl.int64) * HEADS + head
        place = part[:, None] * VALUE_WIDTH + value_column[None, :]
        tl.store(partials + place, mean, mask=stored)
        tl.store(logsums + part, top + tl.log2(total), mask=valid)


@triton.jit
def join_parts(
    partials,  # [slots, H, Dv] float32
    logsums,  # [slots, H] float32, in powers of two
    parts,  # [N, 2] int32
    part_slots,  # [C] int32
    sinks,  # [H], read with HAS_SINKS
    out,  # [N, H, Dv]
    HEADS: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    PADDED_VALUE_WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Join the partial results of one token and one head: the program (token, head)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = tl.load(parts + token * 2)
    count = tl.load(parts + token * 2 + 1)
    if count == 0:
        return
    column = tl.arange(0, PADDED_VALUE_WIDTH)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    gathered = tl.zeros([PADDED_VALUE_WIDTH], tl.float32)
    if HAS_SINKS:
        top = tl.full([1], LOG2_E, tl.float32) * tl.load(sinks + head).to(tl.float32)
        total += 1.0
    for start in range(0, count, PARTS):  # so many are loaded at a time
        index = start + tl.arange(0, PARTS)
        there = index < count
        part = tl.load(part_slots + first + index, mask=there, other=0).to(tl.int64) * HEADS + head
        logsum = tl.load(logsums + part, mask=there, other=float("-inf"))
        mean = tl.load(
            partials + part[:, None] * VALUE_WIDTH + column[None, :],
            mask=there[:, None] & (column < VALUE_WIDTH)[None, :],
            other=0.0,
        )
        higher = tl.maximum(top, tl.max(logsum, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(logsum - base)
        fade = tl.exp2(top - base)
        gathered = gathered * fade + tl.sum(mean * weight[:, None], 0)
        total = total * fade + tl.sum(weight, 0)
        top = higher
    mean = gathered / tl.where(total > 0, total, 1.0)
    place = (token * HEADS + head) * VALUE_WIDTH + column
    tl.store(out + place, mean.to(out.dtype.element_ty), mask=column < VALUE_WIDTH)


@triton.jit
def write_tokens(
    key,  # [N, Hkv, D]
    value,  # [N, Hkv, Dv]
    keys,  # [P, Hkv, PAGE, D]
    values,  # [P, Hkv, PAGE, Dv]
    tables,  # [R * W] int32
    table_width,  # [1] int32: W
    rows,  # [N] int32
    positions,  # [N] int32 or int64
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    keys_page_stride,
    keys_head_stride,
    values_page_stride,
    values_head_stride,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    PADDED_VALUE_WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Write the key and the value of one token and one key head: the program (token, head)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    position = tl.load(positions + token).to(tl.int32)
    row = tl.load(rows + token).to(tl.int64)
    page = tl.load(tables + row * tl.load(table_width) + position // PAGE).to(tl.int64)
    slot = position % PAGE
    column = tl.arange(0, PADDED_WIDTH)
    written = tl.load(
        key + token * key_token_stride + head * key_head_stride + column, mask=column < WIDTH
    )
    place = page * keys_page_stride + head * keys_head_stride + slot * WIDTH + column
    tl.store(keys + place, written, mask=column < WIDTH)
    column = tl.arange(0, PADDED_VALUE_WIDTH)
    written = tl.load(
        value + token * value_token_stride + head * value_head_stride + column,
        mask=column < VALUE_WIDTH,
    )
    place = page * values_page_stride + head * values_head_stride + slot * VALUE_WIDTH + column
    tl.store(values + place, written, mask=column < VALUE_WIDTH)


@triton.jit
def draw_uniforms(
    seeds,  # [2, S] int32: low and high words
    indices,  # [S] int64
    points,  # [S] float64
    count,  # S
    BLOCK: tl.constexpr,
):
    """Compute the uniform number of each token by Philox4x32-10; one program."""
    at = tl.arange(0, BLOCK)
    inside = at < count
    low_key = tl.load(seeds + at, mask=inside, other=0).to(tl.uint32, bitcast=True)
    high_key = tl.load(seeds + count + at, mask=inside, other=0).to(tl.uint32, bitcast=True)
    index = tl.load(indices + at, mask=inside, other=0).to(tl.uint64)
    zero = tl.zeros([BLOCK], tl.uint32)
    low, high, _, _ = tl.philox_impl(
        index.to(tl.uint32), (index >> 32).to(tl.uint32), zero, zero, low_key, high_key, 10
    )
    bits = ((high.to(tl.uint64) << 32) | low.to(tl.uint64)) >> 11
    tl.store(points + at, bits.to(tl.float64) * 1.1102230246251565e-16, mask=inside)
