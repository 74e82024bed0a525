"""The uniform numbers of `sampling.uniforms`, computed on a device.

Philox is a function of a seed and an index, so the device draws each token without the host; on a
GPU by one small kernel, elsewhere by torch. Both give the very bits of the host's NumPy.
"""

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
ROUNDS = 10


def uniforms_plain(seeds: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Compute the uniform numbers in plain torch, in a static step.

    Args:
        seeds: The low and the high word of each seed, int32 [2, S].
        indices: The number of tokens sampled before each, int64 [S].

    Returns:
        float64 [S] in [0, 1).
    """
    k0, k1 = (seeds.long() & _WORD).unbind()
    c0, c1 = indices & _WORD, (indices >> 32) & _WORD
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    for _ in range(ROUNDS):
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high2, low2 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    # The upper 53 bits of 64.
    return ((c1 << 21) | (c0 >> 11)).double() * 2.0**-53


def _product(word: torch.Tensor, constant: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and the low word of a product of 32-bit words, without an overflow of int64."""
    upper, lower = word * (constant >> 16), word * (constant & 0xFFFF)
    high = (upper + (lower >> 16)) >> 16
    low = ((upper << 16) + lower) & _WORD
    return high, low


def uniforms_by_kernel(seeds: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Compute what `uniforms_plain` does by one Triton kernel."""
    from gymnast.agents.engine import paged_kernels

    count = indices.shape[0]
    points = torch.empty(count, dtype=torch.float64, device=indices.device)
    block = max(16, 1 << (count - 1).bit_length())
    paged_kernels.draw_uniforms[(1,)](seeds, indices, points, count, BLOCK=block, num_warps=4)
    return points
