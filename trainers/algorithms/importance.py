"""Importance weights: what makes up for an engine with other probabilities than the trainer's.

Tokens are sampled by the engine's probabilities q and learned from as if by the trainer's p, before
the first optimisation step of a batch. The weight p / q of each token, or of all tokens of its
context, corrects for that; a cap, or leaving out what is beyond bounds, keeps it from growing
without limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch

from gymnast.errors import ConfigError
from gymnast.trainers.algorithms.losses import bounded, log_ratio
from gymnast.trainers.base.settings import check_one_of, check_positive

Level = Literal["token", "sequence", "sequence_mean"]


class Weighted(NamedTuple):
    """The weights of A action tokens.

    Attributes:
        weights: [A], 0 where a token is left out.
        capped: [A], whether the cap holds.
        masked: [A], whether the token is left out.
    """

    weights: torch.Tensor
    capped: torch.Tensor
    masked: torch.Tensor


@dataclass(frozen=True)
class Importance:
    """How tokens are weighted by how much likelier they were to the trainer than to the engine.

    With w the ratio p / q at a level, the weight is min(w, cap), and 0 where w is not within the
    bounds. By token with a cap it is truncated importance sampling (Yao et al. 2025, "Your
    efficient RL framework secretly brings you off-policy RL training"), by sequence with a cap or
    with bounds the Seq-TIS and Seq-MIS of Liu et al. 2025 ("When speed kills stability"); by token
    with bounds it is IcePop (Ling Team 2025, arXiv:2510.18855).

    Attributes:
        level: "token": w is the token's own ratio. "sequence": the product of the ratios of all
            action tokens of its context. "sequence_mean": their geometric mean.
        cap: The largest weight; None: there is none.
        bounds: The smallest and the largest w that are learned from; None: all are.

    Raises:
        ConfigError: There is neither a cap nor bounds, or the two are out of their range.
    """

    level: Level = "token"
    cap: float | None = None
    bounds: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_one_of(get_args(Level), importance_level=self.level)
        if self.cap is not None:
            check_positive(importance_cap=self.cap)
        if self.bounds is not None:
            if len(self.bounds) != 2 or not 0 <= self.bounds[0] < 1 < self.bounds[1]:
                raise ConfigError(
                    f"importance_bounds: must be two numbers [low, high] with 0 <= low < 1 < high, "
                    f"got {list(self.bounds)}; a ratio of 1 is that of an engine that agrees"
                )
            if self.cap is not None and self.cap >= self.bounds[1]:
                raise ConfigError(
                    f"importance_cap: must be below the upper of importance_bounds, "
                    f"{self.bounds[1]:g}, got {self.cap:g}; what is above that is left out already"
                )

    def __call__(
        self, logprobs: torch.Tensor, engine_logprobs: torch.Tensor, sequences: torch.Tensor
    ) -> Weighted:
        """The weights of A action tokens.

        Args:
            logprobs: [A], the trainer's.
            engine_logprobs: [A], the engine's.
            sequences: [A], int: which context each token is of, all of whose tokens are here.
        """
        ratio = torch.exp(self._log_ratio(logprobs, engine_logprobs, sequences))
        weights, none = ratio, torch.zeros_like(ratio, dtype=torch.bool)
        capped = masked = none
        if self.cap is not None:
            capped, weights = ratio >= self.cap, ratio.clamp(max=self.cap)
        if self.bounds is not None:
            low, high = self.bounds
            masked = (ratio < low) | (ratio > high)
            weights, capped = weights.masked_fill(masked, 0.0), capped & ~masked
        return Weighted(weights, capped, masked)

    def _log_ratio(
        self, logprobs: torch.Tensor, engine_logprobs: torch.Tensor, sequences: torch.Tensor
    ) -> torch.Tensor:
        """Log w of each token, [A], within +-20."""
        if self.level == "token":
            return log_ratio(logprobs, engine_logprobs)
        differences = logprobs - engine_logprobs
        lengths = torch.bincount(sequences)  # [S]
        sums = differences.new_zeros(len(lengths)).index_add(0, sequences, differences)
        of_each = sums / lengths.clamp(min=1) if self.level == "sequence_mean" else sums
        return bounded(of_each)[sequences]


def make_importance(
    level: Level, cap: float | None, bounds: Sequence[float] | None
) -> Importance | None:
    """The weights of a config, or None without any.

    Raises:
        ConfigError: A level is set, and nothing that it is the level of; or see `Importance`.
    """
    if cap is None and bounds is None:
        check_one_of(get_args(Level), importance_level=level)
        if level != "token":
            raise ConfigError(
                f"importance_level: is {level}, and nothing is weighted; set importance_cap or "
                "importance_bounds too"
            )
        return None
    return Importance(level, cap, bounds)
