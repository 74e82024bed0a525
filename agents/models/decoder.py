"""The two parts of a causal language model: its decoder, and the head that makes logits.

Most heads are one matrix, which `trainers/learner/policy/head.py` computes itself. Others scale,
cut or transform: `OwnHead` runs the model's own code, its decoder replaced for the call by one that
returns the hidden states it is given.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from gymnast.errors import ModelError


def decoder_of(causal: Any) -> Any:
    """The part of a causal language model that computes its last hidden states.

    Args:
        causal: Of Transformers, without adapters around it.

    Raises:
        ModelError: It has no such part.
    """
    decoder = causal.get_decoder() if hasattr(causal, "get_decoder") else None
    if isinstance(decoder, PreTrainedModel) and decoder is not causal:
        return decoder
    inner = (module for module in causal.modules() if module is not causal)
    decoder = next((module for module in inner if isinstance(module, PreTrainedModel)), None)
    if decoder is None:
        raise ModelError(
            f"{type(causal).__name__} has no decoder beside its head: none of its modules is a "
            "PreTrainedModel. Choose a causal language model of Transformers."
        )
    return decoder


class OwnHead:
    """Logits from given hidden states, by the model's own forward.

    Args:
        causal: Of Transformers, without adapters around it.
    """

    def __init__(self, causal: Any) -> None:
        decoder = decoder_of(causal)
        self._causal = causal
        name = next(name for name, module in causal.named_modules() if module is decoder)
        parent, _, self._name = name.rpartition(".")
        self._modules = causal.get_submodule(parent)._modules
        with torch.no_grad():
            self._output = type(decoder(input_ids=_any_ids(1, causal.device), use_cache=False))

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, V] of hidden states [n, width]."""
        decoder = self._modules[self._name]
        self._modules[self._name] = _Given(self._output(last_hidden_state=hidden[None]))
        try:
            ids = _any_ids(len(hidden), hidden.device)
            logits: torch.Tensor = self._causal(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._modules[self._name] = decoder
        return logits


class _Given(nn.Module):
    """Returns what it was made with."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_: Any, **__: Any) -> Any:
        return self._output


def _any_ids(length: int, device: torch.device) -> torch.Tensor:
    return torch.ones(1, length, dtype=torch.long, device=device)
