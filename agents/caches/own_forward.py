"""A model's own forward pass, the caches it leaves, and what was found out about both.

Transformers gives every model a cache of some kind: keys and values, convolution and recurrent
states, or all of these. How a cache may be used differs, so it is tried once on a few tokens:
`continuation.py` says what one may be continued with, `batch_trial.py` whether several may share
a pass. Models that keep their cache inside themselves compute the whole context anew.
"""

import copy
from typing import Any

import torch

from gymnast.agents.caches.batch import CacheBatch
from gymnast.agents.caches.batch_trial import (
    Batching,
    begin_together,
    continue_together,
    find_batching,
)
from gymnast.agents.caches.continuation import Continuation, find_continuation
from gymnast.agents.caches.own_pass import OwnPass
from gymnast.agents.caches.parts import nbytes
from gymnast.agents.models.context_limits import rope_changes_beyond, slots_count_beyond
from gymnast.agents.models.double_precision import FAILURES, Precision
from gymnast.errors import ModelError

FIRST, SECOND = 13, 7  # tokens of the trial's two passes


class OwnForward:
    """Runs a model on sequences, with its own caches.

    Args:
        model: A causal language model of Transformers, in evaluation mode.

    Attributes:
        continuation: How its caches may be continued.
        batching: How sequences share passes; None where each needs one of its own.
        shared_up_to: The longest sequence that may share a pass; None where any may.

    Raises:
        ModelError: The model's logits depend on tokens that come later, or it cannot be run.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._run = OwnPass(model)
        self._rope_changes_beyond = rope_changes_beyond(model)
        changes = (self._rope_changes_beyond, slots_count_beyond(model))
        self.shared_up_to = min((n for n in changes if n is not None), default=None)
        self._fixed_bytes, self._bytes_per_token = 0, 0
        self.continuation = Continuation.NOTHING
        self.batching: Batching | None = None
        self._try()

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
            return self._run.one(ids, None, 0, keep=False, last=True)[0][-1], None
        logits, cache = self._run.one(ids, cache, length, last=True)
        return logits[-1], cache

    def begin(self, prompts: list[list[int]]) -> tuple[torch.Tensor, CacheBatch]:
        """Compute the first tokens of several sequences, of any lengths; needs `batching`.

        Returns:
            The logits [B, V] that predict the token after each, and their caches.
        """
        assert self.batching is not None
        logits, batch = begin_together(self._run, self.batching.layout, prompts, last=True)
        return logits[:, -1], batch

    def together(self, batch: CacheBatch, ids: list[list[int]]) -> torch.Tensor:
        """Compute the next tokens of all sequences of a batch, equally many of each.

        Returns:
            The logits [B, V] that predict the token after them.
        """
        return continue_together(self._run, batch, ids, last=True)[:, -1]

    def shares(self, length: int) -> bool:
        """Whether a sequence that comes to `length` tokens may share passes with others."""
        if self.batching is None:
            return False
        return self.shared_up_to is None or length <= self.shared_up_to

    def batch(self) -> CacheBatch:
        """A batch without sequences; needs `batching`."""
        assert self.batching is not None
        return CacheBatch(self.batching.layout)

    def copy(self, cache: Any, length: int) -> Any:
        """A copy of a sequence's cache, after `length` tokens, to be continued."""
        if self.batching is None:
            return copy.deepcopy(cache)
        return self.batching.layout.copy(cache, length)

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

    @torch.inference_mode()
    def _try(self) -> None:
        vocabulary = self.model.config.get_text_config().vocab_size
        ids = [1 + 5 * i % (vocabulary - 1) for i in range(FIRST + SECOND)]
        precision = Precision(self.model, ids)
        with precision.computing():
            whole, _ = self._run.one(ids, None, 0, keep=False)  # [n, V]
            begun, _ = self._run.one(ids[:FIRST], None, 0, keep=False)
        if precision.differ(begun, whole[:FIRST]) is not None:
            raise ModelError(
                f"{type(self.model).__name__}: its logits depend on tokens that come later, so it "
                "is no causal language model (or one whose configuration says is_decoder: false). "
                "Choose another model."
            )
        if self._run.cache_name is None:
            return
        try:
            self._measure(ids)
            with precision.computing():
                self.continuation = find_continuation(self._run, ids, FIRST, whole, precision)
        except FAILURES:
            return
        self.batching = self._try_batching(vocabulary, precision)

    def _try_batching(self, vocabulary: int, precision: Precision) -> Batching | None:
        if self.continuation is Continuation.NOTHING:
            return None
        try:
            return find_batching(self._run, self.continuation, vocabulary, precision)
        except FAILURES:
            return None

    def _measure(self, ids: list[int]) -> None:
        """How much memory caches take, in the model's own precision."""
        cache = self._run.one(ids[:FIRST], None, 0)[1]
        first = nbytes(cache)
        both = nbytes(self._run.one(ids[FIRST:], cache, FIRST)[1])
        self._bytes_per_token = -(-(both - first) // SECOND)
        self._fixed_bytes = max(0, first - FIRST * self._bytes_per_token)
