"""On-policy distillation: how far the policy is from a teacher on the tokens it sampled itself.

The teacher reads the policy's own episodes and gives each action token a probability q. The policy,
which gives it p, learns to lower the reverse divergence KL(p || q) of each token's distribution:

    sampled   from the tokens that were sampled: each has the advantage log q - log p, whose
              policy gradient is that of the divergence on average. A token that the policy never
              samples teaches nothing.
    exact     from the whole vocabulary: the divergence itself is in the loss. It may also be the
              forward divergence KL(q || p), which raises tokens that the policy gives almost no
              probability, or the Jensen-Shannon divergence between the two.

Agarwal et al. 2023 (GKD, arXiv:2306.13649); Gu et al. 2023 (MiniLLM, arXiv:2306.08543); Thinking
Machines 2025, "On-Policy Distillation". A teacher that is the policy itself, and is told more:
Snell et al. 2022 (arXiv:2209.15189), Zhao et al. 2026 (OPSD, arXiv:2601.18734). As in these, a
token answers for itself alone: what it brings about in later tokens is not counted.

Which model the teacher is, and what it is told, is in `trainers/learner/teaching.py`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from gymnast.errors import ConfigError
from gymnast.trainers.algorithms.estimators import RewardBatch, by_turn, estimator
from gymnast.trainers.algorithms.losses import log_ratio
from gymnast.trainers.base.settings import check_one_of, check_positive

# The teachers that are no other model: the policy as it is, and as it was before training.
POLICY, BASE = "policy", "base"
# Less likely tokens count as this likely: 0 * log 0 has no value, and no gradient.
LEAST_LOGPROB = -100.0

DivergenceName = Literal["reverse_kl", "forward_kl", "jsd"]
EstimatorName = Literal["sampled", "exact"]
TeacherDtype = Literal["bfloat16", "float16", "float32"]


def reverse_kl(logprobs: torch.Tensor, teacher_logprobs: torch.Tensor) -> torch.Tensor:
    """KL(p || q), the sum of p (log p - log q) over the vocabulary, [A].

    Args:
        logprobs: [A, V], log p, of the policy.
        teacher_logprobs: [A, V], log q, of the teacher.
    """
    return _kl(logprobs, teacher_logprobs)


def forward_kl(logprobs: torch.Tensor, teacher_logprobs: torch.Tensor) -> torch.Tensor:
    """KL(q || p), the sum of q (log q - log p) over the vocabulary, [A].

    Args:
        logprobs: [A, V], log p, of the policy.
        teacher_logprobs: [A, V], log q, of the teacher.
    """
    return _kl(teacher_logprobs, logprobs)


def jsd(logprobs: torch.Tensor, teacher_logprobs: torch.Tensor) -> torch.Tensor:
    """The Jensen-Shannon divergence, KL(p || m) / 2 + KL(q || m) / 2 with m = (p + q) / 2, [A].

    At most log 2 a token; GKD (arXiv:2306.13649), eq. 1 with beta = 1/2.

    Args:
        logprobs: [A, V], log p, of the policy.
        teacher_logprobs: [A, V], log q, of the teacher.
    """
    middle = torch.logaddexp(logprobs, teacher_logprobs) - math.log(2)
    return (_kl(logprobs, middle) + _kl(teacher_logprobs, middle)) / 2


def _kl(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    first, second = first.clamp(min=LEAST_LOGPROB), second.clamp(min=LEAST_LOGPROB)
    return (first.exp() * (first - second)).sum(dim=-1)


@estimator
@by_turn
def distillation(batch: RewardBatch) -> list[torch.Tensor]:
    """Zero: a teacher alone says what was good, and rewards are not looked at.

    Args:
        batch: N trajectories.

    Returns:
        N tensors, [turns] each.
    """
    return [torch.zeros(len(turns)) for turns in batch.turn_rewards]


distillation.__dict__["needs_teacher"] = True  # without one, it would learn nothing


VocabularyDivergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
DIVERGENCES: dict[str, VocabularyDivergence] = {
    "reverse_kl": reverse_kl,
    "forward_kl": forward_kl,
    "jsd": jsd,
}


@dataclass(frozen=True)
class Teacher:
    """Whom the policy learns from, beside its rewards.

    Attributes:
        model: A name as `load_model` takes it, or a loaded model: another model, frozen; "policy":
            the policy's weights as they are, which need a hint to know more; "base": the model
            before training. None where `urls` are given.
        weight: Multiplies the teacher's part of the advantage, or the divergence in the loss.
        divergence: "reverse_kl", "forward_kl" or "jsd".
        estimator: "sampled" or "exact"; see the top of this file.
        clip: Bounds the sampled log q - log p of each token from both sides; None: +-20.
        hints: Whether the teacher sees the environment's `hint`; None: "policy" and "base" do.
        dtype: Of another model's weights; None: the checkpoint's own.
        urls: Of vLLM servers that have another model, instead of `model`; they say what sampled
            tokens are worth at temperature 1.
        served_model: The name that they serve it under.
        api_key_env: The environment variable with their key; none is sent where it is unset.
        request_timeout_s: How long one episode may take before its server counts as lost.
        lost_after_s: How long to wait for a server while none answers.

    Raises:
        ConfigError: One of them is none of these, or does not go with another.
    """

    model: Any = None
    weight: float = 1.0
    divergence: DivergenceName = "reverse_kl"
    estimator: EstimatorName = "sampled"
    clip: float | None = None
    hints: bool | None = None
    dtype: TeacherDtype | None = None
    urls: Sequence[str] | None = None
    served_model: str = "teacher"
    api_key_env: str = "VLLM_API_KEY"
    request_timeout_s: float = 1800.0
    lost_after_s: float = 120.0

    def __post_init__(self) -> None:
        check_positive(**{"algorithm.teacher.weight": self.weight})
        check_one_of(list(DIVERGENCES), **{"algorithm.teacher.divergence": self.divergence})
        check_one_of(get_args(EstimatorName), **{"algorithm.teacher.estimator": self.estimator})
        if self.clip is not None:
            check_positive(**{"algorithm.teacher.clip": self.clip})
        self._check_model()
        if not self.is_exact and self.divergence != "reverse_kl":
            raise ConfigError(
                f"algorithm.teacher.divergence: must be reverse_kl with the estimator sampled, got "
                f"{self.divergence}; set algorithm.teacher.estimator to exact"
            )
        if self.is_exact and self.clip is not None:
            raise ConfigError(
                f"algorithm.teacher.clip: is {self.clip:g}, which bounds sampled tokens, and "
                "algorithm.teacher.estimator is exact; leave one of the two out"
            )
        if self.is_policy and not self.uses_hints:
            raise ConfigError(
                "algorithm.teacher.hints: must be true where algorithm.teacher.model is policy, "
                "got false: without a hint the policy has nothing to learn from itself"
            )
        if self.dtype is not None and not self.is_other:
            raise ConfigError(
                f"algorithm.teacher.dtype: is {self.dtype}, and the teacher {self.model!r:.80} has "
                "the dtype of the policy; leave it out"
            )

    def _check_model(self) -> None:
        """There is one teacher, and what is asked of it can be had there."""
        if (self.model is None) == (self.urls is None):
            raise ConfigError(
                "algorithm.teacher: needs a model, which is another model's name, base or policy, "
                "or the urls of vLLM servers (urls: [http://...]), and one of the two alone"
            )
        if not self.is_served:
            return
        times = {name: getattr(self, name) for name in ("request_timeout_s", "lost_after_s")}
        check_positive(**{f"algorithm.teacher.{name}": value for name, value in times.items()})
        if self.is_exact:
            raise ConfigError(
                "algorithm.teacher.estimator: is exact, which needs the teacher's whole "
                "vocabulary, and servers (algorithm.teacher.urls) give the log-probabilities of "
                "sampled tokens alone; set it to sampled, or load the teacher in this process "
                "(algorithm.teacher.model)"
            )
        if self.dtype is not None:
            raise ConfigError(
                f"algorithm.teacher.dtype: is {self.dtype}, and servers (algorithm.teacher.urls) "
                "have their own; leave it out"
            )

    @property
    def is_served(self) -> bool:
        """Whether vLLM servers have the teacher."""
        return self.urls is not None

    @property
    def is_exact(self) -> bool:
        """Whether the divergence is that of the whole vocabulary."""
        return self.estimator == "exact"

    @property
    def is_policy(self) -> bool:
        """Whether the policy as it is teaches itself."""
        return isinstance(self.model, str) and self.model == POLICY

    @property
    def is_base(self) -> bool:
        """Whether the policy as it was before training is the teacher."""
        return isinstance(self.model, str) and self.model == BASE

    @property
    def is_other(self) -> bool:
        """Whether the teacher is another model."""
        return not self.is_policy and not self.is_base

    @property
    def uses_hints(self) -> bool:
        """Whether the environment is asked for hints."""
        return not self.is_other if self.hints is None else self.hints

    def advantages(self, logprobs: torch.Tensor, teacher_logprobs: torch.Tensor) -> torch.Tensor:
        """The teacher's part of the advantage of sampled tokens, [A].

        It is not centred: where policy and teacher agree, it is zero.

        Args:
            logprobs: [A], log p, under the policy.
            teacher_logprobs: [A], log q, under the teacher.
        """
        difference = log_ratio(teacher_logprobs, logprobs)
        if self.clip is not None:
            difference = difference.clamp(-self.clip, self.clip)
        return self.weight * difference

    def divergences(self, logprobs: torch.Tensor, teacher_logprobs: torch.Tensor) -> torch.Tensor:
        """The divergence over the vocabulary, [A]; not yet multiplied by the weight.

        Args:
            logprobs: [A, V], log p, under the policy.
            teacher_logprobs: [A, V], log q, under the teacher.
        """
        return DIVERGENCES[self.divergence](logprobs, teacher_logprobs)
