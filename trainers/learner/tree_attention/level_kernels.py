"""Triton kernels of sums over the levels of a tree; `level_sums.py` launches them.

It imports Triton, so it is imported when a kernel is launched, and not before. A program has a tile
of some tokens and one head. Sums are in float32. Offsets are in 64 bits, since tokens times heads
times width may be more than 2**31. Widths are multiples of 8, so strides are too: 16 bytes of half
precision are loaded at once.
"""

import triton
import triton.language as tl


@triton.jit
def rows_at(token, head, token_stride, head_stride):
    """Return where the rows of some tokens and a head begin, [TOKENS], visibly a multiple of 8."""
    return (token * (token_stride // 8) + head * (head_stride // 8)) * 8


@triton.jit
def weighed(sums, part, weight, offsets, mask):
    """Add a part [TOKENS, WIDTH], times the weights of its rows."""
    return sums + weight[:, None] * tl.load(part + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["tokens", "first"])
def join_levels(
    out,  # [N, H, D]: of level 0; becomes the result
    sums,  # [H, N] float32: likewise
    out_a,  # [N, H, D]: of level `first`; this and the next three have the strides of `out`
    out_b,
    out_c,
    out_d,
    sums_a,  # [H, N] float32: of level `first`
    sums_b,
    sums_c,
    sums_d,
    carry,  # [N, H, D] float32, contiguous: the result of launches before this one
    sinks,  # [H], read with HAS_SINKS
    depth,  # [N] int32: the number of levels of a token
    tokens,  # N
    first,  # the first level that this launch joins
    token_stride,
    head_stride,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,  # of a tile
    RESUMED: tl.constexpr,  # launches came before this one
    HAS_SINKS: tl.constexpr,
):
    """Join four levels to those before; the program (tokens, head).

    A token whose last level is joined gets its sink, and its result is rounded.
    """
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    count = tl.load(depth + token, mask=token < tokens, other=0)
    active = count > first
    if HAS_SINKS and not RESUMED:
        active = count > 0
    if tl.max(active.to(tl.int32), 0) == 0:
        return
    last = active & (count <= first + 4)

    row = head * tokens + token
    before = tl.load(sums + row, mask=active, other=0.0)
    none = float("-inf")
    total_a = tl.load(sums_a + row, mask=count > first, other=none)
    total_b = tl.load(sums_b + row, mask=count > first + 1, other=none)
    total_c = tl.load(sums_c + row, mask=count > first + 2, other=none)
    total_d = tl.load(sums_d + row, mask=count > first + 3, other=none)
    top = tl.maximum(tl.maximum(total_a, total_b), tl.maximum(total_c, total_d))
    top = tl.maximum(top, before)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        top = tl.maximum(top, tl.where(last, sink, none))
    weight = tl.exp(before - top)
    weight_a = tl.exp(total_a - top)
    weight_b = tl.exp(total_b - top)
    weight_c = tl.exp(total_c - top)
    weight_d = tl.exp(total_d - top)
    total = weight + weight_a + weight_b + weight_c + weight_d
    if HAS_SINKS:
        total += tl.where(last, tl.exp(sink - top), 0.0)

    column = tl.arange(0, PADDED_WIDTH)
    inside = (column < WIDTH)[None, :]
    offsets = rows_at(token, head, token_stride, head_stride)[:, None] + column[None, :]
    carried = ((token * tl.num_programs(1) + head) * WIDTH)[:, None] + column[None, :]
    mixed = tl.zeros([TOKENS, PADDED_WIDTH], tl.float32)
    if RESUMED:
        mixed = weighed(mixed, carry, weight, carried, active[:, None] & inside)
    else:
        mixed = weighed(mixed, out, weight, offsets, active[:, None] & inside)
    mixed = weighed(mixed, out_a, weight_a, offsets, (count > first)[:, None] & inside)
    mixed = weighed(mixed, out_b, weight_b, offsets, (count > first + 1)[:, None] & inside)
    mixed = weighed(mixed, out_c, weight_c, offsets, (count > first + 2)[:, None] & inside)
    mixed = weighed(mixed, out_d, weight_d, offsets, (count > first + 3)[:, None] & inside)
    mixed = mixed / total[:, None]
    tl.store(out + offsets, mixed.to(out.dtype.element_ty), mask=last[:, None] & inside)
    tl.store(carry + carried, mixed, mask=(active & (count > first + 4))[:, None] & inside)
    tl.store(sums + row, top + tl.log(total), mask=active)


@triton.jit
def plus(sums, part, offsets, mask):
    """Add a part [TOKENS, WIDTH]."""
    return sums + tl.load(part + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def add_to_queries(
    into,
    part_a,
    part_b,
    part_c,
    part_d,
    carry,
    count,
    first,
    offsets,
    carried,
    inside,
    RESUMED: tl.constexpr,
):
    """Add the levels of each query, and round where the last is among them."""
    active = count > first
    if tl.max(active.to(tl.int32), 0) > 0:
        total = tl.zeros(offsets.shape, tl.float32)
        if RESUMED:
            total = plus(total, carry, carried, active[:, None] & inside)
        else:
            total = plus(total, into, offsets, active[:, None] & inside)
        total = plus(total, part_a, offsets, active[:, None] & inside)
        total = plus(total, part_b, offsets, (count > first + 1)[:, None] & inside)
        total = plus(total, part_c, offsets, (count > first + 2)[:, None] & inside)
        total = plus(total, part_d, offsets, (count > first + 3)[:, None] & inside)
        last = active & (count <= first + 4)
        tl.store(into + offsets, total.to(into.dtype.element_ty), mask=last[:, None] & inside)
        tl.store(carry + carried, total, mask=(count > first + 4)[:, None] & inside)


@triton.jit
def add_to_keys(into, part_a, part_b, part_c, part_d, level, first, offsets, inside):
    """Add the one level, if any, that has a gradient of each key (or value), and round."""
    active = (level >= first) & (level < first + 4)
    if tl.max(active.to(tl.int32), 0) > 0:
        mask = active[:, None] & inside
        total = tl.load(into + offsets, mask=mask, other=0.0).to(tl.float32)
        total = plus(total, part_a, offsets, (level == first)[:, None] & inside)
        total = plus(total, part_b, offsets, (level == first + 1)[:, None] & inside)
        total = plus(total, part_c, offsets, (level == first + 2)[:, None] & inside)
        total = plus(total, part_d, offsets, (level == first + 3)[:, None] & inside)
        tl.store(into + offsets, total.to(into.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens", "first"])
def add_levels(
    query,  # [N, H, D]: of level 0; becomes the result
    key,  # [N, Hkv, D]: likewise
    value,  # [N, Hkv, D]: likewise
    query_a,  # [N, H, D]: of level `first`; this and the next three have the strides of `query`
    query_b,
    query_c,
    query_d,
    key_a,  # [N, Hkv, D], likewise
    key_b,
    key_c,
    key_d,
    value_a,  # [N, Hkv, D], likewise
    value_b,
    value_c,
    value_d,
    carry,  # [N, H, D] float32, contiguous: the sums of launches before this one, of queries
    depth,  # [N] int32: the number of levels of a token's query
    seen_at,  # [N] int32: the level of its key and value besides level 0, or 0
    tokens,  # N
    first,  # the first level that this launch adds
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,  # of a tile
    RESUMED: tl.constexpr,  # launches came before this one
):
    """Add four levels to those before; the program (tokens, head of queries, keys or values)."""
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, PADDED_WIDTH)
    inside = (column < WIDTH)[None, :]
    if head < HEADS:
        count = tl.load(depth + token, mask=token < tokens, other=0)
        at = rows_at(token, head, query_token_stride, query_head_stride)
        offsets = at[:, None] + column[None, :]
        carried = ((token * HEADS + head) * WIDTH)[:, None] + column[None, :]
        add_to_queries(
            query,
            query_a,
            query_b,
            query_c,
            query_d,
            carry,
            count,
            first,
            offsets,
            carried,
            inside,
            RESUMED,
        )
    elif head < HEADS + KEY_HEADS:
        level = tl.load(seen_at + token, mask=token < tokens, other=0)
        at = rows_at(token, head - HEADS, key_token_stride, key_head_stride)
        offsets = at[:, None] + column[None, :]
        add_to_keys(key, key_a, key_b, key_c, key_d, level, first, offsets, inside)
    else:
        level = tl.load(seen_at + token, mask=token < tokens, other=0)
        at = rows_at(token, head - HEADS - KEY_HEADS, value_token_stride, value_head_stride)
        offsets = at[:, None] + column[None, :]
        add_to_keys(value, value_a, value_b, value_c, value_d, level, first, offsets, inside)


@triton.jit(do_not_specialize=["tokens"])
def dot_rows(
    one,  # [N, H, D], contiguous
    other,  # [N, H, D], contiguous
    products,  # [H, N] float32
    tokens,  # N
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,  # of a tile
):
    """Multiply rows with rows; the program (tokens, head)."""
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, PADDED_WIDTH)
    offsets = ((token * HEADS + head) * WIDTH)[:, None] + column[None, :]
    mask = (token < tokens)[:, None] & (column < WIDTH)[None, :]
    first = tl.load(one + offsets, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(other + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(products + head * tokens + token, tl.sum(first * second, 1), mask=token < tokens)
