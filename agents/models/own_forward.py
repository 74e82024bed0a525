"""A model's own forward pass on one sequence, and the cache it leaves for the next one.

Transformers gives every model a cache of some kind: keys and values, convolution and recurrent
states, or all of these. How a cache may be used differs, so it is tried once on a few tokens.
Models that keep their cache inside themselves compute the whole context anew.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import torch

from gymnast.agents.models.context_limits import rope_changes_beyond
from gymnast.agents.models.double_precision import FAILURES, Precision
from gymnast.errors import ModelError

# The names under which models take and return the cache.
CACHE_NAMES = ("past_key_values", "cache_params", "state")
FIRST, SECOND = 13, 7  # tokens of the trial's two passes


class Continuation(Enum):
    """What a kept cache may be continued with."""

    CHUNK = "any number of tokens"
    TOKEN = "one token at a time"
    NOTHING = "nothing: every pass computes the whole context"


class OwnForward:
    """Runs a model on one sequence at a time.

    Args:
        model: A causal language model of Transformers, in evaluation mode.

    Attributes:
        continuation: How its caches may be continued.

    Raises:
        ModelError: The model's logits depend on tokens that come later, or it cannot be run.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._takes = frozenset(inspect.signature(inner.forward).parameters)
        self._cache_name = next((name for name in CACHE_NAMES if name in self._takes), None)
        self._rope_changes_beyond = rope_changes_beyond(model)
        self._fixed_bytes, self._bytes_per_token = 0, 0
        self.continuation = self._try()

    def __call__(self, ids: list[int], cache: Any, length: int) -> tuple[torch.Tensor, Any]:
        """Compute a sequence's next tokens.

        Args:
            ids: The tokens to append, at least one.
            cache: Of the tokens before; it is used up. None where there are none.
            length: How many tokens come before.

        Returns:
            The logits [V] that predict the token after `ids`, and the cache that includes them
            (None where nothing can be kept).
        """
        if self.continuation is Continuation.NOTHING:
            return self._pass(ids, None, 0, keep=False, last=True)[0][-1], None
        logits, cache = self._pass(ids, cache, length, last=True)
        return logits[-1], cache

    def state_bytes(self, length: int) -> int:
        """How many bytes the cache of a sequence is expected to take at most."""
        return self._fixed_bytes + self._bytes_per_token * length

    def end_of_chunk(self, start: int, stop: int, most: int, target: int) -> int:
        """Where a pass that begins at `start` may end, on its way to `stop`.

        Args:
            start: How many tokens are computed.
            stop: Where the pass ends at the latest.
            most: How many tokens one pass should take at most.
            target: How many tokens the sequence has.
        """
        if self.continuation is Continuation.NOTHING:
            return target
        if self.continuation is Continuation.TOKEN:
            return start + 1 if start else stop
        changes = self._rope_changes_beyond
        # Of a sequence beyond that length, no pass may see a position of a shorter one only.
        least = changes + 1 if changes is not None and target > changes else 0
        return min(stop, max(start + most, least))

    def fits(self, length: int, target: int) -> bool:
        """Whether the cache of `length` tokens is one of a sequence of `target` tokens."""
        changes = self._rope_changes_beyond
        if self.continuation is Continuation.NOTHING:
            return length == 0
        return changes is None or length == 0 or (length > changes) == (target > changes)

    def _pass(
        self, ids: list[int], cache: Any, length: int, *, keep: bool = True, last: bool = False
    ) -> tuple[torch.Tensor, Any]:
        """Logits [n or 1, V] of the tokens, and the cache after them."""
        arguments: dict[str, Any] = {"input_ids": torch.tensor([ids], device=self.model.device)}
        # Models that leave the positions to the caller take zero for the first of each chunk.
        if "position_ids" in self._takes:
            positions = torch.arange(length, length + len(ids), device=self.model.device)
            arguments["position_ids"] = positions[None]
        if last and "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = 1
        if "use_cache" in self._takes:
            arguments["use_cache"] = keep
        if cache is not None:
            arguments[str(self._cache_name)] = cache
        output = self.model(**arguments)
        kept = getattr(output, str(self._cache_name), None) if keep else None
        return output.logits[0], kept

    @torch.inference_mode()
    def _try(self) -> Continuation:
        """Compare continued passes with one over the whole."""
        name = type(self.model).__name__
        vocabulary = self.model.config.get_text_config().vocab_size
        ids = [1 + 5 * i % (vocabulary - 1) for i in range(FIRST + SECOND)]
        precision = Precision(self.model, ids)
        with precision.computing():
            whole, _ = self._pass(ids, None, 0, keep=False)  # [n, V]
            begun, _ = self._pass(ids[:FIRST], None, 0, keep=False)
        if precision.differ(begun, whole[:FIRST]) is not None:
            raise ModelError(
                f"{name}: its logits depend on tokens that come later, so it is no causal language "
                "model (or one whose configuration says is_decoder: false). Choose another model."
            )
        if self._cache_name is None:
            return Continuation.NOTHING
        try:
            self._measure(ids)
            with precision.computing():
                return self._try_cache(ids, whole, precision)
        except FAILURES:
            return Continuation.NOTHING

    def _try_cache(self, ids: list[int], whole: torch.Tensor, precision: Precision) -> Continuation:
        def differ(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
            return precision.differ(ours, theirs) is not None

        first, cache = self._pass(ids[:FIRST], None, 0)
        if cache is None or differ(first, whole[:FIRST]):
            return Continuation.NOTHING
        untouched, noisy = copy.deepcopy(cache), copy.deepcopy(cache)
        at_once, _ = self._pass(ids[FIRST:], copy.deepcopy(cache), FIRST)
        one_by_one = []
        for at in range(FIRST, len(ids)):
            token, cache = self._pass(ids[at : at + 1], cache, at)
            one_by_one.append(token)
        if differ(torch.cat(one_by_one), whole[FIRST:]):
            return Continuation.NOTHING
        # The copies must not have changed with the original.
        again, _ = self._pass(ids[FIRST:], untouched, FIRST)
        if differ(again, at_once):
            return Continuation.NOTHING
        if differ(at_once, whole[FIRST:]):
            return Continuation.TOKEN
        noise = (again - at_once).norm().item()
        whole_state = self._chunks_see_all_of(noisy, ids, at_once, noise)
        return Continuation.CHUNK if whole_state else Continuation.TOKEN

    def _chunks_see_all_of(
        self, cache: Any, ids: list[int], logits: torch.Tensor, noise: float
    ) -> bool:
        """Whether a pass over several tokens uses every part of the cache.

        Some models drop their recurrent state there. With random weights, or in half precision,
        that changes the logits by little; that a part has no effect at all cannot be missed.

        Args:
            cache: Of the first tokens.
            ids: All tokens.
            logits: What follows from the cache as it is, [n, V].
            noise: How much two computations of them differ (some GPU kernels are not exact).
        """
        kinds = {kind for kind, tensor in tensors(cache) if _holds_numbers(tensor)}
        for kind in sorted(kinds):
            changed = copy.deepcopy(cache)
            for other, tensor in tensors(changed):
                if other == kind and _holds_numbers(tensor):
                    tensor.add_(torch.ones_like(tensor).cumsum(-1))
            effect = (self._pass(ids[FIRST:], changed, FIRST)[0] - logits).norm().item()
            if effect <= 10 * noise:  # a NaN is an effect
                return False
        return True

    def _measure(self, ids: list[int]) -> None:
        """How much memory caches take, in the model's own precision."""
        cache = self._pass(ids[:FIRST], None, 0)[1]
        first = nbytes(cache)
        both = nbytes(self._pass(ids[FIRST:], cache, FIRST)[1])
        self._bytes_per_token = -(-(both - first) // SECOND)
        self._fixed_bytes = max(0, first - FIRST * self._bytes_per_token)


def _holds_numbers(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0  # and is no count of tokens


def tensors(cache: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a cache holds, each once, with the name of the attribute they are in."""
    seen: set[int] = set()

    def walk(name: str, part: Any) -> Iterator[tuple[str, torch.Tensor]]:
        if id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            yield name, part
        elif isinstance(part, Mapping):
            for key, inner in part.items():
                yield from walk(name if isinstance(key, int) else f"{name}.{key}", inner)
        elif isinstance(part, list | tuple):
            for inner in part:
                yield from walk(name, inner)
        elif type(part).__module__.startswith("transformers.") and hasattr(part, "__dict__"):
            for key, inner in vars(part).items():
                yield from walk(key, inner)

    return walk("", cache)


def nbytes(cache: Any) -> int:
    """How much memory a cache's tensors take, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in tensors(cache))
