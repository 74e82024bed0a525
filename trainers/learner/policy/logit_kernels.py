"""Triton kernels over tiles of logits; `trainers/learner/policy/logit_tiles.py` launches them.

It imports Triton, so it is imported when a kernel is launched, and not before. Everything is
computed in float32. Exponentials are powers of two, for which GPUs have an instruction.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# The logit of an id that is no token, and a bound that takes the place of minus infinity: the
# difference of two infinities is no number.
NEVER = tl.constexpr(-1e9)
LOWEST = tl.constexpr(-1e30)


@triton.jit
def load_scaled(
    logits,
    bias,
    unused,
    offset,
    column,
    inside,
    scale,
    HAS_BIAS: tl.constexpr,
    HAS_UNUSED: tl.constexpr,
):
    """Load logits as distributions have them, at least LOWEST; LOWEST outside of the tile."""
    x = tl.load(logits + offset + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    x = x * scale
    if HAS_UNUSED:
        x = tl.where(tl.load(unused + column, mask=inside, other=0) != 0, NEVER, x)
    return tl.where(inside & ~(x < LOWEST), x, LOWEST)  # NaN stays


@triton.jit
def measure_rows(
    logits,  # [a, V]
    targets,  # [a] int64
    bias,  # [V], read with HAS_BIAS
    unused,  # [V] int8, read with HAS_UNUSED
    logprobs,  # [a] float32
    sums,  # [a] float32
    entropies,  # [a] float32, written with HAS_ENTROPIES
    scale,
    columns,  # V
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_UNUSED: tl.constexpr,
    HAS_ENTROPIES: tl.constexpr,
):
    """Compute the log-probability of the target, log(sum(exp)) and the entropy of one row.

    Each lane keeps the highest logit that it has seen, and sums relative to it.
    """
    row = tl.program_id(0).to(tl.int64)
    offset = row * columns
    top = tl.full([BLOCK], LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)  # of exp(x - top)
    weighted = tl.zeros([BLOCK], tl.float32)  # of exp(x - top) * (x - top)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = load_scaled(
            logits, bias, unused, offset, column, column < columns, scale, HAS_BIAS, HAS_UNUSED
        )
        higher = x > top
        # Of the old sum and the new logit, one is at the new maximum: one exponential serves both.
        gap = -tl.abs(x - top)
        decay = tl.exp2(gap * LOG2_E)
        if HAS_ENTROPIES:
            weighted = tl.where(higher, decay * (weighted + gap * total), weighted + decay * gap)
        total = tl.where(higher, total * decay + 1.0, total + decay)
        top = tl.where(higher, x, top)
    highest = tl.max(top, 0)
    fade = tl.exp2((top - highest) * LOG2_E)
    whole = tl.sum(total * fade, 0)
    log_whole = tl.log(whole)
    empty = highest == LOWEST  # all are minus infinity: this is no distribution

    target = tl.load(targets + row)
    inside = (target >= 0) & (target < columns)
    chosen = load_scaled(logits, bias, unused, offset, target, inside, scale, HAS_BIAS, HAS_UNUSED)
    chosen = tl.where(chosen == LOWEST, float("-inf"), chosen)
    logprob = tl.where(inside & (highest != LOWEST), chosen - highest - log_whole, float("nan"))
    tl.store(logprobs + row, logprob)
    tl.store(sums + row, tl.where(empty, float("-inf"), highest + log_whole))
    if HAS_ENTROPIES:
        mean = tl.sum(fade * (weighted + (top - highest) * total), 0) / whole
        tl.store(entropies + row, tl.where(empty, float("nan"), log_whole - mean))


@triton.jit(do_not_specialize=["first"])
def differentiate_tile(
    logits,  # [a, v], overwritten
    targets,  # [a] int64
    bias,  # [v], read with HAS_BIAS
    unused,  # [v] int8, read with HAS_UNUSED
    sums,  # [a] float32
    slopes,  # [a] float32
    entropies,  # [a] float32, read with HAS_ENTROPIES
    entropy_slopes,  # [a] float32, likewise
    scale,
    first,  # the id of the first column
    columns,  # v
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_UNUSED: tl.constexpr,
    HAS_ENTROPIES: tl.constexpr,
    HAS_TARGET: tl.constexpr,
):
    """Turn a block of a row of logits into its gradient: the program (row, block)."""
    row = tl.program_id(0).to(tl.int64)
    offset = row * columns
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    x = load_scaled(logits, bias, unused, offset, column, inside, scale, HAS_BIAS, HAS_UNUSED)
    logprob = x - tl.load(sums + row)
    probability = tl.exp2(logprob * LOG2_E)
    slope = tl.load(slopes + row) * scale
    if HAS_ENTROPIES:
        logprob = tl.where(logprob < NEVER, NEVER, logprob)  # 0 * log 0 stays 0
        surprise = logprob + tl.load(entropies + row)
        gradient = -probability * (slope + tl.load(entropy_slopes + row) * scale * surprise)
    else:
        gradient = -probability * slope
    chosen = column == tl.load(targets + row) - first
    if HAS_TARGET:
        gradient = tl.where(chosen, gradient + slope, gradient)
    else:
        gradient = tl.where(chosen, 0.0, gradient)
    if HAS_UNUSED:
        gradient = tl.where(tl.load(unused + column, mask=inside, other=0) != 0, 0.0, gradient)
    tl.store(logits + offset + column, gradient.to(logits.dtype.element_ty), mask=inside)
