"""Choose the next token of every row, and say how likely it was.

Filters (top-k, top-p, min-p, repetition penalty) are Transformers' own. Each request brings its
own random numbers, so what it samples depends on its logits and its seed, not on its neighbours.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import torch
from torch.nn import functional as F
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from gymnast.types import Sampling


def as_unused(ids: Sequence[int], device: torch.device) -> torch.Tensor | None:
    """Ids that are no tokens, as `sample` takes them; None where there are none."""
    return torch.tensor(ids, device=device) if ids else None


@dataclass
class Draw:
    """How one request samples: its settings and its own stream of random numbers."""

    sampling: Sampling
    random: Random = field(init=False)
    filters: LogitsProcessorList = field(init=False)
    kind: Sampling = field(init=False)  # what requests with the same filters have in common

    def __post_init__(self) -> None:
        self.kind = replace(self.sampling, seed=None, stop_ids=(), max_new_tokens=1)
        self.random = Random(self.sampling.seed)
        self.filters = _filters(self.sampling)

    @property
    def reads_context(self) -> bool:
        """Whether what came before changes the distribution."""
        return self.sampling.repetition_penalty != 1.0


def _filters(sampling: Sampling) -> LogitsProcessorList:
    """Transformers' processors for these settings, in the order `generate` applies them."""
    filters = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        filters.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature == 0.0:  # nothing is drawn, so nothing is filtered
        return filters
    if sampling.temperature != 1.0:
        filters.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k > 0:
        filters.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        filters.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0.0:
        filters.append(MinPLogitsWarper(sampling.min_p))
    return filters


@torch.inference_mode()
def sample(
    logits: torch.Tensor,
    draws: Sequence[Draw],
    contexts: Sequence[Sequence[int]],
    unused: torch.Tensor | None = None,
) -> tuple[list[int], list[float]]:
    """Sample one token for each row.

    Greedy rows (temperature 0) take the most likely token and report its log-probability under
    the distribution at temperature 1, without filters.

    Args:
        logits: [B, V].
        draws: How each row samples, B of them.
        contexts: The tokens before, B of them; of draws that read none, empty ones.
        unused: Ids that are no tokens, which have no share in any distribution; None: there are
            none.

    Returns:
        The token ids and their log-probabilities under the distribution they were drawn from.

    Raises:
        FloatingPointError: There is a NaN among the logits.
    """
    scores = logits.float()
    if unused is not None:
        scores.index_fill_(-1, unused.to(scores.device), -math.inf)
    scores = _filtered(scores, draws, contexts)
    peaks, best = scores.max(dim=-1)  # [B]
    weights = (scores - peaks[:, None]).exp_()  # [B, V], in proportion to the probabilities
    points = torch.tensor([draw.random.random() for draw in draws], dtype=torch.float64)
    drawn, totals = _invert(weights, points.to(scores.device))
    if any(draw.sampling.temperature == 0 for draw in draws):
        greedy = torch.tensor([draw.sampling.temperature == 0 for draw in draws])
        drawn = torch.where(greedy.to(best.device), best, drawn)  # [B]
    chosen = (scores.gather(1, drawn[:, None])[:, 0] - peaks).double() - totals.log()
    # Together, because a device is waited for each time; every id is exact in float64.
    ids, logprobs = torch.stack([drawn.double(), chosen]).tolist()
    if any(map(math.isnan, logprobs)):
        raise FloatingPointError("the model's logits are NaN: its weights have diverged")
    return list(map(int, ids)), logprobs


def _filtered(
    scores: torch.Tensor, draws: Sequence[Draw], contexts: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Apply each row's filters to its scores [B, V], rows of one kind together."""
    kinds: dict[Sampling, list[int]] = defaultdict(list)
    for row, draw in enumerate(draws):
        if draw.filters:
            kinds[draw.kind].append(row)
    for rows in kinds.values():
        ids = torch.zeros((len(rows), 0), dtype=torch.long)
        if draws[rows[0]].reads_context:
            longest = max(len(contexts[row]) for row in rows)
            # A penalty counts a token once, so the first one may fill up the shorter contexts.
            seen = [[contexts[row][0]] * (longest - len(contexts[row])) for row in rows]
            ids = torch.tensor([[*s, *contexts[row]] for s, row in zip(seen, rows, strict=True)])
        index = torch.tensor(rows, device=scores.device)
        filters = draws[rows[0]].filters
        scores[index] = filters(ids.to(scores.device), scores[index])
    return scores


def _invert(weights: torch.Tensor, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The token at which each row's cumulative weight passes a share in [0, 1) of its total.

    Sums in double precision, over blocks first and then inside the chosen one, which spares a
    cumulative sum over the whole vocabulary.

    Args:
        weights: [B, V], not negative.
        points: [B], float64.

    Returns:
        Token ids and totals, [B] each.
    """
    vocabulary = weights.shape[1]
    width = math.isqrt(vocabulary) + 1
    blocks = F.pad(weights, (0, -vocabulary % width)).view(len(points), -1, width)
    ends = blocks.sum(dim=-1).double().cumsum(dim=-1)  # [B, V / width]
    target = points[:, None] * ends[:, -1:]  # [B, 1]
    block = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[1] - 1)  # [B, 1]
    target = target - torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(len(points), device=points.device), block[:, 0]]
    inside = inside.double().cumsum(dim=-1)  # [B, width]
    # Rounding may leave a point just past the block's end: stay on its last possible token.
    target = torch.minimum(target, inside[:, -1:] * (1 - 1e-12))
    token = torch.searchsorted(inside, target, right=True)[:, 0].clamp_(max=width - 1)
    return (block[:, 0] * width + token).clamp_(max=vocabulary - 1), ends[:, -1]
