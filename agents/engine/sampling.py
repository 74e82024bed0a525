"""Choose the next token of every row, and compute its log-probability.

Filters (top-k, top-p, min-p, repetition penalty) are those of Transformers' `generate`. The number
that draws a token is a function of its request's seed and of its index in the completion, so a
completion depends on its logits and its seed, not on its neighbours or on preemption.

`choose` is a static step: it reads no value of a tensor and its shapes depend on those of its
inputs alone, so a CUDA graph can capture it. An executor sends `settings_of` each row to the
device; `sample` does all of it for callers that read their tokens at once.
"""

import hashlib
import math
import operator
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gymnast.types import Sampling

# Philox4x32: its multipliers, and what each of its ten rounds adds to the key's two words.
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], dtype=np.uint64)
_KEY_STEPS = np.outer(np.arange(10, dtype=np.uint64), np.array([0x9E3779B9, 0xBB67AE85], np.uint64))
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)

# Divisors of logits: a smaller one overflows float32, a larger one turns -inf into NaN.
_SMALLEST, _LARGEST = 1e-30, 1e30


# Up to this top-k its threshold is found without a sort.
_LARGEST_UNSORTED_TOP_K = 256


# A completion's random numbers are computed in blocks.
_POINTS_AT_ONCE = 128


# --- Random numbers


def philox4x32(counter: Sequence[npt.ArrayLike], key: Sequence[npt.ArrayLike]) -> np.ndarray:
    """Compute Philox4x32-10, a random function of a counter and a key.

    From Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.

    Args:
        counter: Four 32-bit words, each a number or an array; they broadcast.
        key: Two 32-bit words.

    Returns:
        Four random 32-bit words, uint64 [4, ...].
    """
    words = (np.asarray(word, dtype=np.uint64) for word in (*counter, *key))
    first, second, third, fourth, *keys = np.broadcast_arrays(*words)
    across = [1] * first.ndim
    multipliers = _MULTIPLIERS.reshape(2, *across)
    round_keys = (np.stack(keys) + _KEY_STEPS.reshape(10, 2, *across)) & _LOW_WORD
    multiplied, others = np.stack([first, third]), np.stack([second, fourth])
    for round_key in round_keys:
        products = (multiplied * multipliers)[::-1]
        multiplied, others = (products >> _WORD_BITS) ^ others ^ round_key, products & _LOW_WORD
    return np.stack([multiplied[0], others[0], multiplied[1], others[1]])


def uniforms(seeds: npt.ArrayLike, indices: npt.ArrayLike) -> np.ndarray:
    """Compute the uniform number that draws each token.

    Args:
        seeds: Of the completions, from `seed_of`; uint64.
        indices: The number of tokens sampled before each in its completion; int64. Both
            broadcast: `uniforms(seeds[:, None], indices[:, None] + np.arange(K))` gives the
            numbers of the next K tokens, [S, K].

    Returns:
        Multiples of 2**-53 in [0, 1), float64.
    """
    key, counter = np.asarray(seeds, dtype=np.uint64), np.asarray(indices).astype(np.uint64)
    low, high, _, _ = philox4x32(
        (counter & _LOW_WORD, counter >> _WORD_BITS, 0, 0), (key & _LOW_WORD, key >> _WORD_BITS)
    )
    return ((high << _WORD_BITS | low) >> np.uint64(11)) * 2.0**-53


def seed_of(sampling: Sampling) -> int:
    """Return the 64-bit seed of a completion: fresh randomness where its settings name none.

    Seeds from 0 to 2**64 - 1 stay as they are; any other integer is hashed.
    """
    if sampling.seed is None:
        return secrets.randbits(64)
    seed = operator.index(sampling.seed)
    if 0 <= seed < 2**64:
        return seed
    signed = seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(signed, digest_size=8).digest(), "little")


# --- Settings


class Filters(NamedTuple):
    """Optional parts of a step; a CUDA graph is captured for each combination in use.

    Attributes:
        filtered: Some row has a top-k, top-p or min-p.
        ranked: Some row has a top-p or a top-k over 256, which rank all tokens by a sort.
        penalised: Some row has a repetition penalty, so `choose` needs the tokens seen.
    """

    filtered: bool
    ranked: bool
    penalised: bool


def filters_in(samplings: Sequence[Sampling]) -> Filters:
    """Return the optional parts that a step of these rows needs."""
    drawn = [sampling for sampling in samplings if sampling.temperature > 0]
    by_rank = any(
        sampling.top_p < 1 or sampling.top_k > _LARGEST_UNSORTED_TOP_K for sampling in drawn
    )
    return Filters(
        filtered=by_rank or any(sampling.top_k > 0 or sampling.min_p > 0 for sampling in drawn),
        ranked=by_rank,
        penalised=any(sampling.repetition_penalty != 1 for sampling in samplings),
    )


class RowSettings(NamedTuple):
    """Settings of the rows of one step: tensors of float64 [S].

    Attributes:
        temperature: 0 takes the most likely token.
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        min_p: 0 keeps all.
        repetition_penalty: 1 changes nothing.
        points: The uniform numbers of `uniforms`, which float32 would round to 1.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    repetition_penalty: torch.Tensor
    points: torch.Tensor

    @classmethod
    def unpack(cls, packed: torch.Tensor) -> "RowSettings":
        """Return views of the rows of a packed array, float64 [6, S], on any device."""
        return cls(*packed.unbind())


def settings_of(sampling: Sampling) -> tuple[float, float, float, float, float]:
    """Return one row's fields of `RowSettings`, without its point.

    A greedy row draws nothing, so its filters are neutral.
    """
    penalty = min(max(float(sampling.repetition_penalty), _SMALLEST), _LARGEST)
    if sampling.temperature == 0:
        return 0.0, 0.0, 1.0, 0.0, penalty
    temperature = min(max(float(sampling.temperature), _SMALLEST), _LARGEST)
    top_k = float(min(sampling.top_k, 2**53))
    return temperature, top_k, float(sampling.top_p), float(sampling.min_p), penalty


def as_unused(ids: Sequence[int], device: torch.device) -> torch.Tensor | None:
    """Ids that are no tokens, as `choose` takes them; None where there are none."""
    return torch.tensor(ids, device=device) if ids else None


# --- The static step


@torch.no_grad()
def choose(
    logits: torch.Tensor,
    settings: RowSettings,
    *,
    filtered: bool,
    ranked: bool = True,
    penalised: bool,
    seen: torch.Tensor | None = None,
    unused: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose one token for each row, in a static step.

    Greedy rows (temperature 0) take the most likely token and report its log-probability under
    the distribution at temperature 1, without filters. A row's result does not depend on the
    others, nor on parts that only the others need. CPUs and GPUs choose equal tokens for equal
    logits, but for points within about 1e-7 of the edge between two: exp differs in its last bit.

    Without filters it reads memory of the size of the logits five times and writes it three times,
    in float32: one pass divides by the temperature (which also converts from bfloat16), one finds
    the peak, two exponentiate in place, one sums blocks. Filters add passes, and top-p a sort, in
    steps that ask for them alone.

    Args:
        logits: [S, V] of any floating type; they are not changed.
        settings: Of the rows.
        filtered: See `Filters`; False ignores top-k, top-p and min-p.
        ranked: See `Filters`; False ignores top-p, and serves a top-k up to 256.
        penalised: See `Filters`; False ignores the repetition penalty.
        seen: Tokens of each row's context and completion, bool [S, V]; needed if `penalised`.
        unused: Ids that are no tokens, int64 [U], which have no share in any distribution.

    Returns:
        Token ids, int64 [S], and their log-probabilities under the distribution they were drawn
        from, float64 [S]. A row with a NaN or an infinite peak among its logits has a
        log-probability of NaN, and any id in [0, V).
    """
    rows, vocabulary = logits.shape
    greedy = settings.temperature == 0
    temperature = settings.temperature.masked_fill(greedy, 1.0).float()[:, None]
    if penalised:
        assert seen is not None
        logits = _penalised(logits.float(), settings.repetition_penalty, seen)
    padded = _padded(rows, vocabulary, logits.device)
    scores = padded[:, :vocabulary]
    torch.div(logits, temperature, out=scores)
    if unused is not None:
        scores.index_fill_(1, unused, -math.inf)
    peaks, best = scores.max(dim=1)  # [S]
    if filtered:
        if ranked:
            _drop_ranks(scores, peaks, settings)
        else:
            _drop_below_top_k(scores, settings.top_k)
    weights = padded.sub_(peaks[:, None]).exp_()  # in proportion to the probabilities
    if filtered:  # the likeliest token's weight is 1
        weights.masked_fill_(weights < settings.min_p.float()[:, None], 0.0)
    drawn, totals = _invert(weights, vocabulary, settings.points)
    ids = torch.where(greedy, best, drawn)
    logprobs = weights.gather(1, ids[:, None])[:, 0].double().log() - totals.log()
    # A peak of NaN or infinity adds NaN, any other adds 0.
    return ids, logprobs + (peaks - peaks)


def _penalised(logits: torch.Tensor, penalty: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Apply each row's repetition penalty [S] to the tokens it has seen."""
    penalty = penalty.float()[:, None]
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def _drop_below_top_k(scores: torch.Tensor, top_k: torch.Tensor) -> None:
    """Set the scores [S, V] below each row's k-th to -inf; ties with it stay."""
    top = scores.topk(min(_LARGEST_UNSORTED_TOP_K, scores.shape[1]), dim=1).values
    ranks = (top_k.long() - 1).clamp(0, top.shape[1] - 1)[:, None]
    lowest = top.gather(1, ranks).masked_fill((top_k == 0)[:, None], -math.inf)
    scores.masked_fill_(scores < lowest, -math.inf)


def _drop_ranks(scores: torch.Tensor, peaks: torch.Tensor, settings: RowSettings) -> None:
    """Set the scores [S, V] that top-k and top-p drop to -inf.

    In ascending order what a filter drops is a prefix, so one sort serves both.
    """
    rows, vocabulary = scores.shape
    ascending, order = scores.sort(dim=1, stable=True)
    ranks = torch.arange(vocabulary, device=scores.device)
    kept = settings.top_k.masked_fill(settings.top_k == 0, vocabulary).clamp(max=vocabulary)
    lowest = ascending.gather(1, vocabulary - kept.long()[:, None])  # [S, 1]
    ascending.masked_fill_(ascending < lowest, -math.inf)  # ties with the k-th stay
    padded = _padded(rows, vocabulary, scores.device)
    torch.sub(ascending, peaks[:, None], out=padded[:, :vocabulary])
    # In float32, as Transformers compares: 1 - 0.9 has to drop a token of probability 0.1.
    dropped, _ = _invert(padded.exp_(), vocabulary, (1 - settings.top_p).float().double())
    ascending.masked_fill_(ranks < dropped[:, None], -math.inf)
    scores.scatter_(1, order, ascending)


def _padded(rows: int, vocabulary: int, device: torch.device) -> torch.Tensor:
    """Make room for scores in whole blocks; what is after the vocabulary is -inf."""
    width = _block_width(vocabulary)
    padded = torch.empty(rows, -(-vocabulary // width) * width, device=device)
    padded[:, vocabulary:].fill_(-math.inf)
    return padded


def _block_width(vocabulary: int) -> int:
    """Return a power of two near the square root, so that all rows and blocks are aligned."""
    return 1 << math.isqrt(vocabulary - 1).bit_length()


def _invert(
    weights: torch.Tensor, vocabulary: int, points: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the token at which each row's cumulative weight passes a share of its total.

    Sums over blocks first and then inside the chosen one, which spares a cumulative sum over the
    whole vocabulary. Cumulative sums are of integers, which have one result in any order; a token
    has a share if and only if its weight is positive.

    Args:
        weights: Padded, [S, blocks * width], at most 1 each and not negative.
        vocabulary: V; weights after it are zero.
        points: Shares in [0, 1], float64 [S].

    Returns:
        Tokens, int64 [S], and totals, float64 [S].
    """
    width = _block_width(vocabulary)
    blocks = weights.view(len(weights), -1, width)
    scale = 2.0 ** (62 - vocabulary.bit_length())  # no sum of weights exceeds int64
    sizes = (blocks.sum(dim=2) * scale).ceil_().long()  # [S, blocks]
    ends = sizes.cumsum(dim=1)
    total = ends[:, -1:].double()
    # Below the total also for a share of 1, so that the block found is not empty.
    target = torch.minimum((points[:, None] * total).long(), ends[:, -1:] - 1)  # [S, 1]
    block = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[1] - 1)
    target = target - (ends.gather(1, block) - sizes.gather(1, block))
    inside = blocks.gather(1, block[:, :, None].expand(-1, 1, width))[:, 0]  # [S, width]
    inside = (inside * scale).ceil_().long().cumsum(dim=1)
    # The block's sum was rounded and may exceed that of its tokens: stay on the last with a share.
    target = torch.minimum(target, inside[:, -1:] - 1)
    token = torch.searchsorted(inside, target, right=True)
    found = (block * width + token).clamp_(max=vocabulary - 1)
    return found[:, 0], total[:, 0] / scale


# --- For callers that read their tokens at once


class Draws:
    """The settings of one completion, and the numbers that draw its tokens.

    Args:
        sampling: Of the completion.
        seed: Of `seed_of`; by default that of the settings.

    Attributes:
        reads_context: True if the tokens before change the distribution.
    """

    def __init__(self, sampling: Sampling, seed: int | None = None) -> None:
        self.sampling = sampling
        self.seed = seed_of(sampling) if seed is None else seed
        self.settings = settings_of(sampling)
        self.filters = filters_in([sampling])
        self.reads_context = self.filters.penalised
        self._points: list[float] = []
        self._first = 0  # the index of the first of them

    def point(self, index: int) -> float:
        """Return the uniform number that draws the token after `index` others."""
        if not 0 <= index - self._first < len(self._points):
            # Many at once: NumPy takes as long for one.
            indices = np.arange(index, index + _POINTS_AT_ONCE)
            self._first, self._points = index, uniforms(self.seed, indices).tolist()
        return self._points[index - self._first]


@torch.inference_mode()
def sample(
    logits: torch.Tensor,
    draws: Sequence[Draws],
    indices: Sequence[int],
    contexts: Sequence[Sequence[int]],
    unused: torch.Tensor | None = None,
) -> tuple[list[int], list[float]]:
    """Sample one token for each row with `choose`, and read them back.

    Args:
        logits: [S, V].
        draws: Of each row's completion, S of them.
        indices: The number of tokens sampled before in each completion, S of them.
        contexts: The tokens before, S of them; of draws that read none, empty ones.
        unused: Ids that are no tokens, which have no share in any distribution; None: there are
            none.

    Returns:
        The token ids and their log-probabilities under the distribution they were drawn from.

    Raises:
        FloatingPointError: There is a NaN among the logits.
    """
    filters = Filters(*map(any, zip(*(each.filters for each in draws), strict=True)))
    rows = [(*each.settings, each.point(index)) for each, index in zip(draws, indices, strict=True)]
    packed = torch.tensor(np.array(rows).T.copy()).to(logits.device)  # [6, S]
    ids, logprobs = choose(
        logits,
        RowSettings.unpack(packed),
        **filters._asdict(),
        seen=_seen(contexts, logits) if filters.penalised else None,
        unused=None if unused is None else unused.to(logits.device),
    )
    # Together, because a device is waited for each time; every id is exact in float64.
    read_ids, read_logprobs = torch.stack([ids.double(), logprobs]).tolist()
    if any(map(math.isnan, read_logprobs)):
        raise FloatingPointError("the model's logits are NaN: its weights have diverged")
    return list(map(int, read_ids)), read_logprobs


def _seen(contexts: Sequence[Sequence[int]], logits: torch.Tensor) -> torch.Tensor:
    """Mark the tokens of each context, bool [S, V]."""
    rows, vocabulary = logits.shape
    # One column more takes what fills up shorter contexts, and ids without a logit.
    ids = np.full((rows, max(map(len, contexts))), vocabulary, dtype=np.int64)
    for row, context in zip(ids, contexts, strict=True):
        row[: len(context)] = np.minimum(context, vocabulary)
    seen = torch.zeros(rows, vocabulary + 1, dtype=torch.bool, device=logits.device)
    return seen.scatter_(1, torch.tensor(ids).to(logits.device), True)[:, :vocabulary]
