"""The model as the loss sees it: log-probabilities of action tokens, at a bounded peak of memory.

Logits exist only at the positions that predict action tokens, a few hundred at a time, and are
computed again in the backward pass, so the full [tokens, vocabulary] tensor never does. With
gradient checkpointing, so is what the layers hold: of each layer only its input is kept.

A policy gradient is that of the policy that sampled, so the model computes in training as it does
when it samples: in evaluation mode. Dropout, router noise and whatever else its configuration has
for training stay off. Only the dropout of adapters (`lora.dropout`) acts in training mode.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from gymnast.agents.models.attention import planned
from gymnast.agents.models.check_model import check_model
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.micro_batches import MicroBatch
from gymnast.trainers.learner.policy.packing import TreePlan
from gymnast.trainers.learner.policy.token_logprobs import token_logprobs

# Bytes of logits at once: enough rows for a fast matrix product, and little beside the rest.
CPU_LOGITS_BYTES = 2**25
GPU_LOGITS_BYTES = 2**28


class Policy(nn.Module):
    """Wraps a causal language model, with or without adapters, and puts it in evaluation mode.

    Args:
        model: Of Transformers, or of peft around one; it stays in evaluation mode.
        temperature: At which the actions were sampled; divides the logits.
        gradient_checkpointing: Compute each layer a second time in the backward pass instead of
            keeping what it holds: a third more computation for a fraction of the memory. It is a
            setting of the model and stays.

    Raises:
        ModelError: The model's logits are not a linear head on its last hidden states, or its
            layers cannot be computed a second time.
    """

    def __init__(
        self, model: Any, *, temperature: float = 1.0, gradient_checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self._checkpointed: list[Any] = []
        self.eval()
        check_model(model)
        self._check_head()
        if gradient_checkpointing:
            self._checkpoint_layers()

    def train(self, mode: bool = True) -> "Policy":
        """Turn the dropout of adapters on or off; see the top of this file."""
        super().train(False)
        self.training = mode
        for adapter in _adapters(self.model):
            adapter.training = mode
            for part in _own_parts(adapter):
                part.train(mode)
        for layer in self._checkpointed:  # how Transformers is told to compute it again
            layer.training = mode
        return self

    @property
    def device(self) -> torch.device:
        """Where the model is, and where micro-batches have to be."""
        device: torch.device = self.model.device
        return device

    @property
    def has_dropout(self) -> bool:
        """Whether its log-probabilities are others in training mode, drawn anew in every pass."""
        parts = (part for adapter in _adapters(self.model) for part in _own_parts(adapter))
        modules = (module for part in parts for module in part.modules())
        return any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules)

    def forward(self, batch: MicroBatch, *, entropy: bool = False) -> torch.Tensor:
        """Log-probabilities of the action tokens, [A], float32.

        With `entropy` [2, A]: those, and the entropies of the distributions they were drawn from.
        """
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
        if not entropy and self._head_is_matrix(hidden):
            return self._fused_logprobs(hidden, batch.targets, at_once)
        chunks = zip(hidden.split(at_once), batch.targets.split(at_once), strict=True)
        score = self._logprobs_and_entropies if entropy else self._logprobs
        return torch.cat(
            [checkpoint(score, part, targets, use_reentrant=False) for part, targets in chunks],
            dim=-1,
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

    @property
    def _logit_scale(self) -> float:
        """What the model's own forward multiplies its logits by."""
        config = self.model.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
        return float(scale / (getattr(config, "logits_scaling", None) or 1.0))  # Granite

    @property
    def _softcap(self) -> float | None:
        """The bound of the model's logits (Gemma)."""
        config = self.model.config.get_text_config()
        return getattr(config, "final_logit_softcapping", None) or None

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the model's own forward makes of its last hidden states: [..., V], float32."""
        logits: torch.Tensor = self._causal.get_output_embeddings()(hidden).float()
        logits = logits * self._logit_scale
        if cap := self._softcap:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def _head_is_matrix(self, hidden: torch.Tensor) -> bool:
        """Whether the head is nothing but its weight, which is all here (not sharded)."""
        head = self._causal.get_output_embeddings()
        return (
            type(head) is nn.Linear
            and type(head.weight) is nn.Parameter
            and head.weight.shape == (head.out_features, head.in_features)
            and head.weight.dtype == hidden.dtype
            and not torch.is_autocast_enabled(hidden.device.type)
            and self._softcap is None
        )

    def _fused_logprobs(
        self, hidden: torch.Tensor, targets: torch.Tensor, at_once: int
    ) -> torch.Tensor:
        head, scale = self._causal.get_output_embeddings(), self._logit_scale / self.temperature
        return token_logprobs(hidden, head.weight, head.bias, targets, scale=scale, at_once=at_once)

    def _logprobs(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return -F.cross_entropy(self._scaled_logits(hidden), targets, reduction="none")

    def _logprobs_and_entropies(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[2, a], of a positions."""
        logprobs = torch.log_softmax(self._scaled_logits(hidden), dim=-1)  # [a, V]
        entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
        return torch.stack([logprobs.gather(-1, targets[:, None])[:, 0], entropies])

    def _scaled_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits that actions are drawn from: [a, V], float32."""
        logits = self._logits(hidden)
        return logits if self.temperature == 1.0 else logits / self.temperature

    def _checkpoint_layers(self) -> None:
        # The layers are computed again in the backward pass, after `forward` has left `planned`.
        def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
            return nullcontext(), planned(self.model)

        settings = {"use_reentrant": False, "context_fn": contexts}
        causal = self._causal
        # The second is the first one's name before Transformers 5.15 or so, and warns after it.
        enable = getattr(causal, "activation_checkpointing_enable", None)
        enable = enable or causal.gradient_checkpointing_enable
        try:
            enable(settings)
        except ValueError as error:
            raise ModelError(
                f"{type(causal).__name__} cannot compute its layers a second time ({error}): set "
                "gradient_checkpointing to false."
            ) from error
        kind = GradientCheckpointingLayer
        self._checkpointed = [module for module in causal.modules() if isinstance(module, kind)]
        if not self._checkpointed:
            raise ModelError(
                f"{type(causal).__name__} cannot compute its layers a second time: none of them is "
                "a GradientCheckpointingLayer of Transformers. Set gradient_checkpointing to false."
            )
        for layer in self._checkpointed:
            again = layer._gradient_checkpointing_func
            layer._gradient_checkpointing_func = partial(_checkpointed, layer, again)

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


def has_dropout(policy: nn.Module) -> bool:
    """Whether a `Policy`, wrapped for several processes or not, draws in each pass of training."""
    return any(module.has_dropout for module in policy.modules() if isinstance(module, Policy))


def _adapters(model: nn.Module) -> list[nn.Module]:
    """The layers of peft that stand around one of the model's own."""
    return [module for module in model.modules() if hasattr(module, "base_layer")]


def _own_parts(adapter: nn.Module) -> list[nn.Module]:
    """All of an adapter but the layer that it stands around."""
    return [part for name, part in adapter.named_children() if name != "base_layer"]


def _checkpointed(
    layer: nn.Module, checkpoint: Callable[..., Any], forward: Callable[..., Any], *inputs: Any
) -> Any:
    """A layer in training mode, in which Transformers checkpoints it, computed in evaluation mode.

    Args:
        layer: Whose own mode it is; adapters within keep theirs.
        checkpoint: Calls a function now, and again in the backward pass.
        forward: Of the layer.
        *inputs: Of its forward.
    """

    def evaluated(*inputs: Any) -> Any:
        layer.training = False
        try:
            return forward(*inputs)
        finally:
            layer.training = True

    return checkpoint(evaluated, *inputs)


class Reference:
    """The policy as it was before training: the base under its adapters, or a frozen copy.

    Args:
        model: Of Transformers, or of peft around one, before its first update.
        temperature: At which the actions are sampled.
    """

    def __init__(self, model: Any, *, temperature: float = 1.0) -> None:
        self._adapted = hasattr(model, "disable_adapter")
        if not self._adapted:
            model = copy.deepcopy(model).eval().requires_grad_(False)
        self._model = model
        self._policy = Policy(model, temperature=temperature)

    @torch.no_grad()
    def logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Log-probabilities of the action tokens, [A], float32."""
        with self._model.disable_adapter() if self._adapted else nullcontext():
            return self._policy(batch)
