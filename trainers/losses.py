"""Policy-gradient losses over action tokens: pure functions of log-probabilities and advantages.

A loss returns one value per action token; `Trainer` sums them and divides by the number of action
tokens of the whole batch, over all processes (the token mean of DAPO, Yu et al. 2025,
arXiv:2503.14476, eq. 8). Tool tokens appear nowhere: they are neither summed nor counted.

A new loss is one function with the signature of `clipped`.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenLosses:
    """What a loss says of A action tokens.

    Attributes:
        losses: [A], differentiable.
        ratio: [A], how much likelier each token is now than when it was sampled; detached.
        clipped: [A], whether the clip took the token's gradient away.
    """

    losses: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor


def clipped(
    logprobs: torch.Tensor,
    sampled_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
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
    ratio = torch.exp(logprobs - sampled_logprobs)
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = -torch.minimum(ratio * advantages, bounded * advantages)
    return TokenLosses(losses, ratio.detach(), (bounded * advantages < ratio * advantages).detach())
