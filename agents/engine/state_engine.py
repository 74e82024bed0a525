"""An engine for models whose cache cannot be cut at a token: Mamba, linear attention, hybrids.

Like `agents/engine/engine.py` it lets requests join and leave between steps, and computes only what
no earlier context began with. But every sequence has a cache of its own, made by Transformers, and
one forward pass takes one sequence: right for every causal model, and slower. In a step each
decoding request gets one token, and prefilling ones share a budget.

A state, the cache after exactly some tokens, can be continued but not cut. So it serves only the
contexts that begin with all of its tokens. The least recently used states go first.
"""

import copy
from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch

from gymnast.agents.engine.engine import WORTH_WAITING_FOR, Request
from gymnast.agents.engine.sampling import sample
from gymnast.agents.models.own_forward import Continuation, OwnForward, nbytes
from gymnast.errors import UsageError

KV_BUDGET_BYTES = 2**32


@dataclass(eq=False)
class State:
    """What a model keeps of the tokens it has seen.

    Attributes:
        tokens: These tokens.
        cache: Transformers' cache after exactly these tokens; None where there are none.
        shared: Whether several sequences may begin with it (it is the end of a prompt), so that
            each takes a copy.
    """

    tokens: list[int]
    cache: Any
    shared: bool = False
    nbytes: int = 0
    used: int = 0
    ids: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.ids = np.array(self.tokens, dtype=np.int64)
        self.nbytes = nbytes(self.cache)


class StateStore:
    """Keeps states within a budget.

    Attributes:
        states: Those kept.
        epoch: How often they were forgotten; a state computed in an earlier one is not kept.
    """

    def __init__(self) -> None:
        self.states: list[State] = []
        self.epoch = 0
        self._clock = count(1)

    @property
    def nbytes(self) -> int:
        """What the kept states take, in bytes."""
        return sum(state.nbytes for state in self.states)

    def clear(self) -> None:
        """Forget all states, those in use included: they are not kept when they return."""
        self.states.clear()
        self.epoch += 1

    def keep(self, state: State, epoch: int) -> None:
        """Keep a state that was computed since `epoch`."""
        if epoch != self.epoch or state.cache is None:
            return
        state.used = next(self._clock)
        same = [s for s in self.states if np.array_equal(s.ids, state.ids)]
        if same:
            same[0].shared |= state.shared
            same[0].used = state.used
        else:
            self.states.append(state)

    def longest(self, ids: np.ndarray) -> State | None:
        """The longest state whose tokens all stand at the beginning of `ids`."""
        fitting = [state for state in self.states if _begins_with(ids, state.ids)]
        return max(fitting, key=lambda state: len(state.ids), default=None)

    def take(self, state: State) -> Any:
        """The cache of a state, to be continued: a copy where others may want it too."""
        state.used = next(self._clock)
        if state.shared:
            return copy.deepcopy(state.cache)
        self.states.remove(state)
        return state.cache

    def shrink(self, most_bytes: int) -> None:
        """Forget the least recently used states until the others take `most_bytes` or less."""
        self.states.sort(key=lambda state: state.used)
        while self.states and self.nbytes > most_bytes:
            self.states.pop(0)


@dataclass(eq=False)
class _Progress:
    """How far a running request is.

    Attributes:
        ids: Its context.
        tokens: Its context and what was sampled.
        cache: After the first `computed` tokens.
        stops: Lengths at which the state is kept for others, ascending.
        epoch: The store's, when it began.
        reserved: What its cache is going to take, in bytes.
    """

    ids: np.ndarray
    tokens: list[int]
    cache: Any
    computed: int
    stops: list[int]
    epoch: int
    reserved: int


class StateEngine:
    """Takes requests in flight through a model, one sequence a forward pass.

    Args:
        model: A causal language model of Transformers, in evaluation mode.
        max_batch: How many requests run at once.
        prefill_tokens: How many context tokens one step computes at most.
        kv_budget_bytes: What the states in use and those kept may take. A request that would
            take more alone fails; others wait, and kept states go.

    Raises:
        ModelError: The model is not a causal language model.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_batch: int,
        prefill_tokens: int,
        kv_budget_bytes: int = KV_BUDGET_BYTES,
    ) -> None:
        self.forward = OwnForward(model)
        self.max_batch = max_batch
        self.prefill_tokens = prefill_tokens
        self.kv_budget_bytes = kv_budget_bytes
        self.cache = StateStore()
        self.waiting: list[Request] = []
        self.running: dict[Request, _Progress] = {}
        self.tokens_pushed = 0

    @property
    def kv_bytes(self) -> int:
        """What the states take, those in use at what they may come to."""
        return self.cache.nbytes + self._reserved

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running

    @torch.inference_mode()
    def step(self) -> None:
        """Admit what fits, run the model for each request, resolve those that finished."""
        self._drop_cancelled()
        self._admit()
        logits: dict[Request, torch.Tensor] = {}
        budget = self.prefill_tokens
        for request, progress in self.running.items():
            before = progress.computed
            prefilling = len(progress.tokens) - before > 1
            if prefilling and budget <= 0:
                continue
            predicted = self._advance(progress, budget)
            if prefilling:
                budget -= progress.computed - before
            if predicted is not None:
                logits[request] = predicted
        if logits:
            self._sample(logits)

    def fail(self, error: BaseException) -> None:
        """Give every request this error and forget all states."""
        for request in [*self.waiting, *self.running]:
            _fail(request, error)
        self.waiting.clear()
        self.running.clear()
        self.cache.clear()

    def _advance(self, progress: _Progress, budget: int) -> torch.Tensor | None:
        """Compute the next part of a request; returns logits [V] once its last token is in."""
        target = len(progress.tokens)
        if not self.forward.fits(progress.computed, target):
            progress.cache, progress.computed = None, 0
        start = progress.computed
        ahead = [
            stop for stop in progress.stops if stop > start and self.forward.fits(stop, target)
        ]
        end = self.forward.end_of_chunk(start, min([*ahead, target]), budget, target)
        first = 0 if self.forward.continuation is Continuation.NOTHING else start
        new = progress.tokens[first:end]
        predicted, progress.cache = self.forward(new, progress.cache, first)
        progress.computed = end
        self.tokens_pushed += len(new)
        if end in ahead:
            kept = State(progress.tokens[:end], progress.cache, shared=True)
            self._keep(kept, progress.epoch)
            if kept in self.cache.states:  # what is kept stays as it is
                progress.cache = copy.deepcopy(progress.cache)
        return predicted if end == target else None

    def _sample(self, logits: dict[Request, torch.Tensor]) -> None:
        draws = [request.draw for request in logits]
        contexts = [request.tokens if request.draw.filters else [] for request in logits]
        ids, logprobs = sample(torch.stack(list(logits.values())), draws, contexts)
        for request, token, logprob in zip(logits, ids, logprobs, strict=True):
            if request.accept(token, logprob):
                self._release(request)
                with suppress(InvalidStateError):  # cancelled just now
                    request.future.set_result(request.completion())
            else:
                self.running[request].tokens.append(token)

    def _drop_cancelled(self) -> None:
        self.waiting = [request for request in self.waiting if not request.future.cancelled()]
        for request in [request for request in self.running if request.future.cancelled()]:
            self._release(request)

    def _release(self, request: Request) -> None:
        """End a request. Its state stays for the next turn."""
        progress = self.running.pop(request)
        self._keep(State(progress.tokens[: progress.computed], progress.cache), progress.epoch)

    def _keep(self, state: State, epoch: int) -> None:
        self.cache.keep(state, epoch)
        self.cache.shrink(self.kv_budget_bytes - self._reserved)

    @property
    def _reserved(self) -> int:
        return sum(progress.reserved for progress in self.running.values())

    def _admit(self) -> None:
        """Begin with waiting requests, oldest first, unless a prefix of theirs is on its way."""
        for request in list(self.waiting):
            if len(self.running) == self.max_batch:
                break
            most = len(request.context) + request.most
            needed = self.forward.state_bytes(most)
            if needed > self.kv_budget_bytes:
                self.waiting.remove(request)
                _fail(request, self._too_large(most, needed))
                continue
            if self._reserved + needed > self.kv_budget_bytes:
                break
            ids = np.array(request.context, dtype=np.int64)
            # The last token is always computed anew: its logits give the first sample.
            state = self.cache.longest(ids[:-1])
            ready = len(state.ids) if state else 0
            self._ask_for_common(ids[:-1], ready)
            if self._on_its_way(ids[:-1], ready):
                continue
            self.waiting.remove(request)
            self.running[request] = self._begin(request, ids, state, needed)
            request.begin()
            self.cache.shrink(self.kv_budget_bytes - self._reserved)

    def _begin(
        self, request: Request, ids: np.ndarray, state: State | None, needed: int
    ) -> _Progress:
        computed = len(state.ids) if state else 0
        stops = []
        # A context that continues a completion belongs to one episode; any other may be shared.
        if state is None or state.shared:
            stops = self._stops(ids, computed)
        cache = self.cache.take(state) if state else None
        return _Progress(
            ids, list(request.context), cache, computed, stops, self.cache.epoch, needed
        )

    def _stops(self, ids: np.ndarray, computed: int) -> list[int]:
        """Where to keep the state: at the prompt's end, and where another prompt departs."""
        prompt = len(ids) - 1
        if self.forward.continuation is Continuation.NOTHING or prompt == 0:
            return []
        stops = [prompt]
        if self.forward.continuation is Continuation.CHUNK:
            others = [np.array(request.context, dtype=np.int64) for request in self.waiting]
            others += [progress.ids for progress in self.running.values()]
            others += [state.ids for state in self.cache.states]
            common = _shared_length(ids, others, below=prompt)
            if common - computed >= WORTH_WAITING_FOR:
                stops.insert(0, common)
        return stops

    def _ask_for_common(self, ids: np.ndarray, ready: int) -> None:
        """Let running requests leave a state where this context departs from theirs."""
        if self.forward.continuation is not Continuation.CHUNK:
            return
        for progress in self.running.values():
            common = _shared_length(ids, [progress.ids], below=len(progress.ids))
            if common - max(ready, progress.computed) >= WORTH_WAITING_FOR:
                progress.stops = sorted({*progress.stops, common})

    def _on_its_way(self, ids: np.ndarray, ready: int) -> bool:
        """Whether a running request is about to leave a state that saves much of this context."""
        return any(
            stop > progress.computed
            and stop - ready >= WORTH_WAITING_FOR
            and _begins_with(ids, progress.ids[:stop])
            for progress in self.running.values()
            for stop in progress.stops
        )

    def _too_large(self, tokens: int, needed: int) -> UsageError:
        return UsageError(
            f"generate: a sequence of {tokens} tokens (context and max_new_tokens) needs a state "
            f"of {needed} bytes, and kv_budget_bytes is {self.kv_budget_bytes}. Raise the budget, "
            "or lower max_new_tokens or the environment's context_length."
        )


def _fail(request: Request, error: BaseException) -> None:
    with suppress(InvalidStateError):
        request.future.set_exception(error)


def _begins_with(ids: np.ndarray, prefix: np.ndarray) -> bool:
    """Whether `ids` begin with all of `prefix`."""
    return len(prefix) <= len(ids) and bool((ids[: len(prefix)] == prefix).all())


def _shared_length(ids: np.ndarray, others: Sequence[np.ndarray], below: int) -> int:
    """The longest common prefix of `ids` with any of the others, among those below a length."""
    longest = 0
    for other in others:
        width = min(len(ids), len(other))
        different = ids[:width] != other[:width]
        length = int(different.argmax()) if different.any() else width
        if longest < length < below:
            longest = length
    return longest
