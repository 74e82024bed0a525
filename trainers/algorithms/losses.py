"""Policy-gradient losses over action tokens: pure functions of log-probabilities and advantages.

A loss returns one value per action token; how these are summed is an aggregation
(`trainers/algorithms/aggregations.py`). Tool tokens appear nowhere: they are neither summed nor
counted.

A new loss is one decorated function: `@token_loss` with the signature of `clipped`, or
`@sequence_loss` with that of `gspo`, which is told the sequence of each token. Keyword-only
arguments are options of a config.

`sampled_logprobs` are those of the weights that sampled, computed by the trainer itself before the
first step of the batch, or by the engine where the loss is marked `@against_engine`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field

from gymnast.trainers.algorithms.registry import Registry

# Bounds every log-ratio: exp(20) is still far from overflow, in float32 and as a gradient.
LARGEST_LOG_RATIO = 20.0

Low = Annotated[float, Field(gt=0, le=1)]
High = Annotated[float, Field(gt=0)]
Loss = Callable[..., "TokenLosses"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class TokenLosses:
    """What a loss says of A action tokens.

    Attributes:
        losses: [A], differentiable.
        ratio: [A], how much likelier each token is now than when it was sampled; detached.
        clipped: [A], whether the clip changed the token's gradient.
    """

    losses: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor


LOSSES: Registry[TokenLosses] = Registry("loss", "gymnast.losses")


def against_engine(function: F) -> F:
    """Mark a loss whose ratios compare with the engine's log-probabilities, unless a config says.

    For ratios that weight tokens by how likely the engine was to sample them. A clip that bounds
    how far a step may go is no such ratio: an engine that rounds otherwise would use it up.
    """
    function.__dict__["against_engine"] = True
    return function


def bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    """A log-ratio within +-20; beyond, its gradient is zero."""
    return log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def log_ratio(logprobs: torch.Tensor, other_logprobs: torch.Tensor) -> torch.Tensor:
    """The difference of two log-probabilities of each token, [A], within +-20.

    Every ratio comes from here. Without the bound, a token that has become e^100 times likelier
    has a ratio of infinity, and a gradient of infinity times zero even where it is clipped.
    """
    return bounded(logprobs - other_logprobs)


def token_loss(function: F) -> F:
    """Let a config name a loss that looks at each token alone."""

    def call(
        logprobs: torch.Tensor,
        sampled_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        sequences: torch.Tensor,
        **options: Any,
    ) -> TokenLosses:
        result: TokenLosses = function(logprobs, sampled_logprobs, advantages, **options)
        return result

    LOSSES.add(function, call)
    return function


def sequence_loss(function: F) -> F:
    """Let a config name a loss that is told which tokens belong together."""
    LOSSES.add(function, function)
    return function


def _surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> TokenLosses:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), each [A]."""
    whole = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return TokenLosses(-torch.minimum(whole, bounded), ratio.detach(), (bounded < whole).detach())


@token_loss
def clipped(
    logprobs: torch.Tensor,
    sampled_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: Low = 0.2,
    clip_high: High = 0.2,
) -> TokenLosses:
    """PPO's clipped surrogate at every token.

        ratio = exp(logprobs - sampled_logprobs)
        loss  = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)

    Schulman et al. 2017 (arXiv:1707.06347), eq. 7; with separate clips, DAPO (arXiv:2503.14476),
    eq. 8.

    Args:
        logprobs: [A], under the policy being trained.
        sampled_logprobs: [A], under the policy that sampled.
        advantages: [A].
        clip_low: How far below 1 the ratio may go.
        clip_high: How far above 1 the ratio may go.
    """
    ratio = torch.exp(log_ratio(logprobs, sampled_logprobs))
    return _surrogate(ratio, advantages, clip_low, clip_high)


@token_loss
def two_sided(
    logprobs: torch.Tensor,
    sampled_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: Low = 0.2,
    clip_high: High = 0.2,
    clip_bound: Annotated[float, Field(gt=1)] = 3.0,
) -> TokenLosses:
    """PPO's clipped surrogate with a third bound, for tokens with a negative advantage.

        s    = min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)
        loss = -max(s, clip_bound * A)   where A < 0
        loss = -s                        elsewhere

    Dual-clip PPO (Ye et al. 2020, arXiv:1912.09729). Without the bound, one token that has become
    far likelier since it was sampled has a loss without limit.

    Args:
        logprobs: [A], under the policy being trained.
        sampled_logprobs: [A], under the policy that sampled.
        advantages: [A].
        clip_low: How far below 1 the ratio may go.
        clip_high: How far above 1 the ratio may go.
        clip_bound: The ratio above which a token with a negative advantage has no gradient;
            above 1 + clip_high.
    """
    ratio = torch.exp(log_ratio(logprobs, sampled_logprobs))
    inner = _surrogate(ratio, advantages, clip_low, clip_high)
    bounded = (advantages < 0) & (-inner.losses < clip_bound * advantages)
    losses = torch.where(bounded, -clip_bound * advantages, inner.losses)
    return TokenLosses(losses, inner.ratio, (inner.clipped | bounded).detach())


@token_loss
@against_engine
def cispo(
    logprobs: torch.Tensor,
    sampled_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: Low = 1.0,
    clip_high: High = 4.0,
) -> TokenLosses:
    """REINFORCE weighted by the clipped ratio, so that no token loses its gradient.

        weight = clip(ratio, 1 - clip_low, 1 + clip_high), without a gradient of its own
        loss   = -weight * A * logprobs

    CISPO (MiniMax-M1, 2025, arXiv:2506.13585), eq. 4 and 5. As there, the default has no lower
    bound; the upper one, a ratio of 5, is in the range of ScaleRL (arXiv:2510.13786).

    Args:
        logprobs: [A], under the policy being trained.
        sampled_logprobs: [A], under the policy that sampled.
        advantages: [A].
        clip_low: How far below 1 the weight may go.
        clip_high: How far above 1 the weight may go.
    """
    ratio = torch.exp(log_ratio(logprobs, sampled_logprobs)).detach()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return TokenLosses(-weight * advantages * logprobs, ratio, weight != ratio)


@token_loss
@against_engine
def reinforce(
    logprobs: torch.Tensor, sampled_logprobs: torch.Tensor, advantages: torch.Tensor
) -> TokenLosses:
    """The plain policy gradient: loss = -A * logprobs.

    Williams 1992 (doi:10.1007/BF00992696), eq. 4 and 11. It holds for tokens sampled from the
    policy being trained, that is for one optimisation step a batch.

    Args:
        logprobs: [A], under the policy being trained.
        sampled_logprobs: [A], under the policy that sampled; only reported on.
        advantages: [A].
    """
    ratio = torch.exp(log_ratio(logprobs, sampled_logprobs)).detach()
    return TokenLosses(-advantages * logprobs, ratio, torch.zeros_like(ratio, dtype=torch.bool))


@token_loss
def likelihood(
    logprobs: torch.Tensor, sampled_logprobs: torch.Tensor, advantages: torch.Tensor
) -> TokenLosses:
    """The negative log-likelihood, weighted by the advantage: loss = -A * logprobs.

    With A = 1 it is the loss of supervised learning, by which demonstrations are learned. Who wrote
    the tokens does not matter, so there is no ratio. Its value and gradient are those of
    `reinforce`, which reports on the ratio to the engine that sampled.

    Args:
        logprobs: [A], under the policy being trained.
        sampled_logprobs: [A], not used.
        advantages: [A].
    """
    ones = torch.ones_like(logprobs.detach())
    return TokenLosses(-advantages * logprobs, ones, torch.zeros_like(ones, dtype=torch.bool))


@sequence_loss
def gspo(
    logprobs: torch.Tensor,
    sampled_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    sequences: torch.Tensor,
    *,
    clip_low: Low = 3e-4,
    clip_high: High = 4e-4,
) -> TokenLosses:
    """PPO's clipped surrogate with one ratio for all action tokens of a sequence.

        s     = exp(mean of logprobs - sampled_logprobs over the sequence's action tokens)
        ratio = sg[s] * exp(logprobs - sg[logprobs]), whose value is s     (sg: without gradient)
        loss  = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)

    GSPO (Zheng et al. 2025, arXiv:2507.18071): the ratio of eq. 7 in the token-wise form of its
    section 4.3. A sequence is a trajectory or, of an episode with several contexts, each of these.
    Where all turns of a sequence have one advantage, the gradient is that of the sequence form;
    where they differ, each token follows its own turn's.

    Args:
        logprobs: [A], under the policy being trained.
        sampled_logprobs: [A], under the policy that sampled.
        advantages: [A].
        sequences: [A], int: which sequence each token is of, all of whose tokens are here.
        clip_low: How far below 1 the ratio may go.
        clip_high: How far above 1 the ratio may go.
    """
    differences = (logprobs - sampled_logprobs).detach()
    lengths = torch.bincount(sequences)  # [S]
    sums = differences.new_zeros(len(lengths)).index_add(0, sequences, differences)
    ratio = torch.exp(bounded(sums / lengths.clamp(min=1)))[sequences]
    ratio = ratio * torch.exp(logprobs - logprobs.detach())
    return _surrogate(ratio, advantages, clip_low, clip_high)
