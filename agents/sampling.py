"""Choose the next token of every row, and say how likely it was.

Filters (top-k, top-p, min-p, repetition penalty) are Transformers' own. Each request brings its
own random numbers, so what it samples depends on its logits and its seed, not on its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from gymnast.types import Sampling


@dataclass
class Draw:
    """How one request samples: its settings and its own stream of random numbers."""

    sampling: Sampling
    random: Random = field(init=False)
    filters: LogitsProcessorList = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.sampling.seed)
        self.filters = _filters(self.sampling)


def _filters(sampling: Sampling) -> LogitsProcessorList:
    """Transformers' processors for these settings, in the order `generate` applies them."""
    filters = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        filters.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature not in (0.0, 1.0):
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
    logits: torch.Tensor, draws: Sequence[Draw], contexts: Sequence[Sequence[int]]
) -> tuple[list[int], list[float]]:
    """Sample one token for each row.

    Greedy rows (temperature 0) take the most likely token and report its log-probability under
    the untempered distribution.

    Args:
        logits: [B, V].
        draws: How each row samples, B of them.
        contexts: The tokens before, for repetition penalties, B of them.

    Returns:
        The token ids and their log-probabilities under the distribution they were drawn from.
    """
    scores = logits.float()  # [B, V]
    for row, (draw, context) in enumerate(zip(draws, contexts, strict=True)):
        if draw.filters:
            seen = torch.tensor([list(context)], device=scores.device)
            scores[row] = draw.filters(seen, scores[row : row + 1].clone())[0]
    logprobs = torch.log_softmax(scores, dim=-1)
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    points = torch.tensor([draw.random.random() for draw in draws], dtype=torch.float64)
    points = points.to(scores.device)[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, points, right=True).clamp(max=scores.shape[-1] - 1)
    greedy = torch.tensor([draw.sampling.temperature == 0 for draw in draws], device=scores.device)
    ids = torch.where(greedy, scores.argmax(dim=-1), drawn[:, 0])  # [B]
    chosen = logprobs.gather(1, ids[:, None])[:, 0]
    return ids.tolist(), chosen.tolist()
