"""The model as the loss sees it: log-probabilities of action tokens, at a bounded peak of memory.

Logits exist only at the positions that predict action tokens, a few hundred at a time, and are
computed again in the backward pass, so the full [tokens, vocabulary] tensor never does.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gymnast.agents.attention import planned
from gymnast.agents.check_model import check_model
from gymnast.errors import ModelError
from gymnast.trainers.batch import MicroBatch
from gymnast.trainers.packing import TreePlan

# Bytes of logits at once. On a CPU, allocations above 32 MiB go back to the system each time and
# their pages must be cleared anew, which costs more than the computation.
CPU_LOGITS_BYTES = 2**24
GPU_LOGITS_BYTES = 2**28


class Policy(nn.Module):
    """Wraps a causal language model, with or without adapters.

    Args:
        model: Of Transformers, or of peft around one.
        temperature: At which the actions were sampled; divides the logits.

    Raises:
        ModelError: The model's logits are not a linear head on its last hidden states.
    """

    def __init__(self, model: Any, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        check_model(model)
        self._check_head()

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        """Log-probabilities of the action tokens, [A], float32."""
        device = batch.targets.device
        ids = torch.tensor(batch.packed.ids, device=device)[None]  # [1, N]
        positions = torch.tensor(batch.packed.positions, device=device)[None]
        plan = TreePlan(batch.packed, device)
        with planned(self.model):
            hidden = self._decoder(
                input_ids=ids, position_ids=positions, use_cache=False, plan=plan
            ).last_hidden_state[0]  # [N, width]
        hidden = hidden.index_select(0, batch.predicted_from)  # [A, width]
        at_once = self._logits_at_once(device)
        chunks = zip(hidden.split(at_once), batch.targets.split(at_once), strict=True)
        return torch.cat(
            [
                checkpoint(self._logprobs, part, targets, use_reentrant=False)
                for part, targets in chunks
            ]
        )

    def _logits_at_once(self, device: torch.device) -> int:
        """How many positions have their logits at the same time."""
        most = CPU_LOGITS_BYTES if device.type == "cpu" else GPU_LOGITS_BYTES
        return max(1, most // (4 * self.model.config.get_text_config().vocab_size))

    @property
    def _causal(self) -> Any:
        model = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    @property
    def _decoder(self) -> Any:
        return self._causal.get_decoder()

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the model's own forward makes of its last hidden states: [..., V], float32."""
        logits: torch.Tensor = self._causal.get_output_embeddings()(hidden).float()
        config = self.model.config.get_text_config()
        if scale := getattr(config, "logit_scale", None):  # Cohere
            logits = logits * scale
        if scale := getattr(config, "logits_scaling", None):  # Granite
            logits = logits / scale
        if cap := getattr(config, "final_logit_softcapping", None):  # Gemma
            logits = cap * torch.tanh(logits / cap)
        return logits

    def _logprobs(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self._logits(hidden)
        if self.temperature != 1.0:
            logits = logits / self.temperature
        return -F.cross_entropy(logits, targets, reduction="none")

    @torch.no_grad()
    def _check_head(self) -> None:
        ids = torch.arange(1, 5, device=self.model.device)[None]
        theirs = self.model(input_ids=ids, use_cache=False).logits.float()
        try:
            ours = self._logits(self._decoder(input_ids=ids, use_cache=False).last_hidden_state)
        except (AttributeError, TypeError) as error:
            raise self._unknown_head(f"{type(error).__name__}: {error}") from error
        difference = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6)
        if not difference < 0.05:
            raise self._unknown_head(f"relative difference {difference:.2g} from its linear head")

    def _unknown_head(self, how: str) -> ModelError:
        return ModelError(
            f"{type(self._causal).__name__} makes its logits in a way that Gymnast does not "
            f"know ({how}): models whose logits are a linear head, scaled or soft-capped, can be "
            "trained."
        )
