"""A model's own forward pass over one sequence, or over several that are padded on the left."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch

# The names under which models take and return the cache.
CACHE_NAMES = ("past_key_values", "cache_params", "state")


class OwnPass:
    """Runs a model on token ids and a cache of its own kind.

    Args:
        model: A causal language model of Transformers, in evaluation mode.

    Attributes:
        cache_name: What the model calls its cache; None where it has none.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._takes = frozenset(inspect.signature(inner.forward).parameters)
        self.cache_name = next((name for name in CACHE_NAMES if name in self._takes), None)

    def __call__(
        self,
        ids: Sequence[Sequence[int]],
        positions: torch.Tensor,
        cache: Any = None,
        mask: torch.Tensor | None = None,
        *,
        keep: bool = True,
        last: bool = False,
    ) -> tuple[torch.Tensor, Any]:
        """Compute the next tokens of some sequences.

        Args:
            ids: The tokens of each, B times n.
            positions: Where they stand, [B, n].
            cache: Of the tokens before; it is used up. None where there are none.
            mask: Which tokens are no padding, those of the cache included, [B, cached + n].
            keep: Whether to return a cache.
            last: Whether the logits of the last tokens are enough.

        Returns:
            The logits [B, n or 1, V], and the cache after the tokens (None where there is none).
        """
        arguments: dict[str, Any] = {"input_ids": torch.tensor(ids, device=self.model.device)}
        # Models that leave the positions to the caller take zero for the first of each chunk.
        if "position_ids" in self._takes:
            arguments["position_ids"] = positions
        if mask is not None and "attention_mask" in self._takes:
            arguments["attention_mask"] = mask
        if last and "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = 1
        if "use_cache" in self._takes:
            arguments["use_cache"] = keep
        if cache is not None:
            arguments[str(self.cache_name)] = cache
        output = self.model(**arguments)
        kept = getattr(output, str(self.cache_name), None) if keep else None
        return output.logits, kept

    def one(
        self, ids: Sequence[int], cache: Any, length: int, *, keep: bool = True, last: bool = False
    ) -> tuple[torch.Tensor, Any]:
        """The same for one sequence of `length` tokens before: logits [n or 1, V]."""
        positions = torch.arange(length, length + len(ids), device=self.model.device)
        logits, kept = self([ids], positions[None], cache, keep=keep, last=last)
        return logits[0], kept
