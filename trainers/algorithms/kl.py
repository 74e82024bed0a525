"""How far the policy has moved from a reference, as a penalty in the loss or in the reward.

Each estimator of KL(policy || reference) sees the log-probabilities that both give to tokens which
the policy sampled (Schulman 2020, "Approximating KL divergence",
http://joschu.net/blog/kl-approx.html). What is right depends on the place:

    in the reward   k1: its mean over samples is the divergence
    in the loss     k2: its gradient is, on average, that of the divergence; k3: GRPO's choice,
                    always positive; k1: not useful, its gradient is zero on average

Differences of log-probabilities are bounded as those of the losses are (`losses.log_ratio`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from gymnast.trainers.algorithms.losses import log_ratio
from gymnast.trainers.base.settings import check_at_least, check_one_of, check_positive

Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def k1(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """The difference log p - log q, [A]: unbiased, of either sign.

    Args:
        logprobs: [A], log p, under the policy.
        reference_logprobs: [A], log q, under the reference.
    """
    return log_ratio(logprobs, reference_logprobs)


def k2(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """(log p - log q)^2 / 2, [A]: biased, never negative.

    Args:
        logprobs: [A], log p, under the policy.
        reference_logprobs: [A], log q, under the reference.
    """
    return log_ratio(logprobs, reference_logprobs) ** 2 / 2


def k3(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """The sum q / p - 1 - (log q - log p), [A]: unbiased, never negative.

    Also in GRPO (Shao et al. 2024, arXiv:2402.03300), eq. 4.

    Args:
        logprobs: [A], log p, under the policy.
        reference_logprobs: [A], log q, under the reference.
    """
    difference = log_ratio(reference_logprobs, logprobs)
    return torch.expm1(difference) - difference


DIVERGENCES: dict[str, Divergence] = {"k1": k1, "k2": k2, "k3": k3}


@dataclass(frozen=True)
class Kl:
    """A penalty for moving away from the reference.

    Attributes:
        coefficient: What one nat of divergence at one token costs.
        estimator: "k1", "k2" or "k3".
        place: "loss": added to every token's loss. "reward": taken from the reward of each turn,
            summed over the turn's tokens, before advantages are estimated.
        refresh_every_steps: After how many steps, each time, the policy as it is then becomes the
            reference; 0: it stays the model before training. ProRL (Liu et al. 2025,
            arXiv:2505.24864).

    Raises:
        ConfigError: One of them is none of these.
    """

    coefficient: float
    estimator: Literal["k1", "k2", "k3"] = "k3"
    place: Literal["loss", "reward"] = "loss"
    refresh_every_steps: int = 0

    def __post_init__(self) -> None:
        check_positive(**{"kl.coefficient": self.coefficient})
        check_one_of(list(DIVERGENCES), **{"kl.estimator": self.estimator})
        check_one_of(["loss", "reward"], **{"kl.place": self.place})
        check_at_least(0, **{"kl.refresh_every_steps": self.refresh_every_steps})

    def __call__(self, logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
        """The divergence at each token, [A]; not yet multiplied by the coefficient."""
        return DIVERGENCES[self.estimator](logprobs, reference_logprobs)
