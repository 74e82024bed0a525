"""From the last hidden states of a model to log-probabilities of given tokens.

Logits of a few hundred positions exist at a time, and are computed again in the backward pass, so
the full [tokens, vocabulary] tensor never does. The fused computation, for heads that are one
matrix, is in `trainers/learner/policy/token_logprobs.py`.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gymnast.agents.models.float32_head import Float32Head, logits_type
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.token_logprobs import token_logprobs

# Bytes of logits at once: enough rows for a fast matrix product, and little beside the rest.
CPU_LOGITS_BYTES = 2**25
GPU_LOGITS_BYTES = 2**28


class Head:
    """The head of a causal language model, scaled or soft-capped as its configuration says.

    Args:
        causal: Of Transformers, without adapters around it.
        temperature: At which the actions were sampled; divides the logits.

    Raises:
        ModelError: The model's logits are not a linear head on its last hidden states.
    """

    def __init__(self, causal: Any, *, temperature: float) -> None:
        self._causal = causal
        self._temperature = temperature
        self._check()

    def logprobs(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of `targets` [A] from hidden states [A, width]: [A], float32."""
        at_once = self._logits_at_once(hidden.device)
        if self._is_matrix(hidden):
            head, scale = self._causal.get_output_embeddings(), self._scale / self._temperature
            return token_logprobs(
                hidden,
                head.weight,
                head.bias,
                targets,
                scale=scale,
                at_once=at_once,
                dtype=logits_type(hidden) if type(head) is Float32Head else None,
            )
        parts = zip(hidden.split(at_once), targets.split(at_once), strict=True)
        return torch.cat([checkpoint(self._logprobs, *part, use_reentrant=False) for part in parts])

    def logprobs_and_entropies(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Log-probabilities, and the entropies of their distributions: [2, A], float32."""
        at_once = self._logits_at_once(hidden.device)
        parts = zip(hidden.split(at_once), targets.split(at_once), strict=True)
        return torch.cat(
            [checkpoint(self._with_entropies, *part, use_reentrant=False) for part in parts],
            dim=-1,
        )

    def _logits_at_once(self, device: torch.device) -> int:
        """How many positions have their logits at the same time."""
        most = CPU_LOGITS_BYTES if device.type == "cpu" else GPU_LOGITS_BYTES
        return max(1, most // (4 * self._config.vocab_size))

    @property
    def _config(self) -> Any:
        return self._causal.config.get_text_config()

    @property
    def _scale(self) -> float:
        """What the model's own forward multiplies its logits by."""
        scale = getattr(self._config, "logit_scale", None) or 1.0  # Cohere
        return float(scale / (getattr(self._config, "logits_scaling", None) or 1.0))  # Granite

    @property
    def _softcap(self) -> float | None:
        """The bound of the model's logits (Gemma)."""
        return getattr(self._config, "final_logit_softcapping", None) or None

    def _is_matrix(self, hidden: torch.Tensor) -> bool:
        """Whether the head is nothing but its weight, which is all here (not sharded)."""
        head = self._causal.get_output_embeddings()
        return (
            type(head) in (nn.Linear, Float32Head)
            and type(head.weight) is nn.Parameter
            and head.weight.shape == (head.out_features, head.in_features)
            and head.weight.dtype == hidden.dtype
            and not torch.is_autocast_enabled(hidden.device.type)
            and self._softcap is None
        )

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the model's own forward makes of its last hidden states: [..., V], float32."""
        logits: torch.Tensor = self._causal.get_output_embeddings()(hidden).float()
        logits = logits * self._scale
        if cap := self._softcap:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def _logprobs(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return -F.cross_entropy(self._scaled_logits(hidden), targets, reduction="none")

    def _with_entropies(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[2, a], of a positions."""
        logprobs = torch.log_softmax(self._scaled_logits(hidden), dim=-1)  # [a, V]
        entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
        return torch.stack([logprobs.gather(-1, targets[:, None])[:, 0], entropies])

    def _scaled_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits that actions are drawn from: [a, V], float32."""
        logits = self._logits(hidden)
        return logits if self._temperature == 1.0 else logits / self._temperature

    @torch.no_grad()
    def _check(self) -> None:
        ids = torch.arange(1, 5, device=self._causal.device)[None]
        theirs = self._causal(input_ids=ids, use_cache=False).logits.float()
        try:
            decoder = self._causal.get_decoder()
            ours = self._logits(decoder(input_ids=ids, use_cache=False).last_hidden_state)
        except (AttributeError, TypeError) as error:
            raise self._unknown(f"{type(error).__name__}: {error}") from error
        difference = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6)
        if not difference < 0.05:
            raise self._unknown(f"relative difference {difference:.2g} from its linear head")

    def _unknown(self, how: str) -> ModelError:
        return ModelError(
            f"{type(self._causal).__name__} makes its logits in a way that Gymnast does not "
            f"know ({how}): models whose logits are a linear head, scaled or soft-capped, can be "
            "trained."
        )
