"""An engine for models whose cache cannot be cut at a token: Mamba, linear attention, hybrids.

Like `agents/engine/engine.py` it lets requests join and leave between steps, and computes only what
no earlier context began with. But it runs the model's own forward, with caches made by
Transformers, which `state_store.py` keeps: right for every causal model. In a step each decoding
request gets one token, and prefilling ones share a budget; `state_passes.py` says which of them
share a forward pass.
"""

from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress

import numpy as np
import torch

from gymnast.agents.caches.continuation import Continuation
from gymnast.agents.caches.own_forward import OwnForward
from gymnast.agents.engine.engine import WORTH_WAITING_FOR
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.sampling import as_unused, sample
from gymnast.agents.engine.state_passes import Progress, StatePasses
from gymnast.agents.engine.state_store import State, StateStore, begins_with, shared_length
from gymnast.agents.models.routing import Routers
from gymnast.errors import UsageError

KV_BUDGET_BYTES = 2**32


class StateEngine:
    """Takes requests in flight through a model's own forward.

    Args:
        forward: Of a causal language model of Transformers, in evaluation mode.
        max_batch: How many requests run at once.
        prefill_tokens: How many context tokens one step computes at most.
        kv_budget_bytes: What the states in use and those kept may take. A request that would
            take more alone fails; others wait, and kept states go.
        routers: Of the model, where completions are to say which experts it chose.
        unused_ids: See `Engine`.

    Attributes:
        version: Of the weights, with which tokens are tagged.
    """

    def __init__(
        self,
        forward: OwnForward,
        *,
        max_batch: int,
        prefill_tokens: int,
        kv_budget_bytes: int = KV_BUDGET_BYTES,
        routers: Routers | None = None,
        unused_ids: Sequence[int] = (),
    ) -> None:
        self.forward = forward
        self._unused = as_unused(unused_ids, forward.model.device)
        self.version = 0
        self.max_batch = max_batch
        self.prefill_tokens = prefill_tokens
        self.kv_budget_bytes = kv_budget_bytes
        self.cache = StateStore()
        self.waiting: list[Request] = []
        self.running: dict[Request, Progress] = {}
        self.passes = StatePasses(self.forward, routers)
        self._routers = routers

    @property
    def kv_bytes(self) -> int:
        """What the states take, those in use at what they may come to."""
        return self.cache.nbytes + self._reserved

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running

    @property
    def tokens_pushed(self) -> int:
        """How many tokens entered the model so far."""
        return self.passes.tokens_pushed

    @torch.inference_mode()
    def step(self) -> None:
        """Admit what fits, run the model, and resolve the requests that finished."""
        self._drop_cancelled()
        self._admit()
        decoding = [each for each in self.running.values() if self.passes.decodes(each)]
        chunks = self._chunks([each for each in self.running.values() if each not in decoding])
        results = self.passes.decode(decoding) if decoding else []
        results += self.passes.prefill(chunks)
        for progress, _ in results:
            if progress.computed in progress.stops:
                self._share(progress)
        logits = {progress: logits for progress, logits in results if progress.missing == 0}
        sampling = {
            request: logits[progress]
            for request, progress in self.running.items()
            if progress in logits
        }
        if sampling:
            self._sample(sampling)
        self._stay_within_budget()

    def forget(self) -> int:
        """See `Engine.forget`."""
        self.cache.clear()
        return sum(progress.computed > 0 for progress in self.running.values())

    def fail(self, error: BaseException) -> None:
        """Give every request this error and forget all states."""
        for request in [*self.waiting, *self.running]:
            _fail(request, error)
        self.waiting.clear()
        self.running.clear()
        self.passes.clear()
        self.cache.clear()

    def _chunks(self, progresses: list[Progress]) -> list[tuple[Progress, int]]:
        """Up to which length each is computed now."""
        budget = self.prefill_tokens
        chunks = []
        for each in progresses:
            prefilling = each.missing > 1
            if prefilling and budget <= 0:
                continue
            target = len(each.tokens)
            if not self.forward.fits(each.computed, target):
                each.cache, each.borrowed, each.computed = None, False, 0
            start = each.computed
            ahead = [s for s in each.stops if s > start and self.forward.fits(s, target)]
            most = max(budget, 1)  # what decodes takes none of the budget
            end = self.forward.end_of_chunk(start, min([*ahead, target]), most, target)
            chunks.append((each, end))
            if prefilling:
                budget -= end - start
        return chunks

    def _share(self, progress: Progress) -> None:
        """Keep the state that was reached, for others."""
        end = progress.computed
        cache, experts = self.passes.state(progress), progress.chosen
        kept = State(progress.tokens[:end], cache, shared=True, experts=experts)
        self._keep(kept, progress.epoch)
        # What is kept stays as it is.
        progress.borrowed = kept in self.cache.states and kept.cache is progress.cache

    def _sample(self, logits: dict[Request, torch.Tensor]) -> None:
        draws = [request.draws for request in logits]
        indices = [len(request.ids) for request in logits]
        contexts = [request.tokens if request.draws.reads_context else [] for request in logits]
        rows = torch.stack(list(logits.values()))
        ids, logprobs = sample(rows, draws, indices, contexts, self._unused)
        for request, token, logprob in zip(logits, ids, logprobs, strict=True):
            request.accept([token], [logprob], self.version)
            if request.finished:
                request.experts = self.running[request].chosen
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
        state = None
        if progress.epoch == self.cache.epoch and not progress.borrowed:
            tokens = progress.tokens[: progress.computed]
            state = State(tokens, self.passes.state(progress), experts=progress.chosen)
        self.passes.end(progress)
        if state is not None:
            self._keep(state, progress.epoch)

    def _keep(self, state: State, epoch: int) -> None:
        self.cache.keep(state, epoch)
        self._stay_within_budget()

    def _stay_within_budget(self) -> None:
        if self.kv_bytes > self.kv_budget_bytes:
            self.passes.trim()
            self.cache.shrink(self.kv_budget_bytes - self._reserved)

    @property
    def _reserved(self) -> int:
        alone, together = self._needed()
        joining = [e for e in self.running.values() if not e.alone and not self.passes.holds(e)]
        to_join = sum(self.forward.state_bytes(each.most) for each in joining)
        return alone + max(together, self.passes.nbytes + to_join)

    def _needed(self, more: int = 0) -> tuple[int, int]:
        """What the states in use may come to, in bytes: those alone, and those that share passes.

        The latter take as much as the longest, each; `more` is the length of another one.
        """
        running = self.running.values()
        alone = sum(self.forward.state_bytes(each.most) for each in running if each.alone)
        mosts = [each.most for each in running if not each.alone] + [more] * (more > 0)
        return alone, len(mosts) * self.forward.state_bytes(max(mosts, default=0))

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
            # Beside a much longer one it may fit only if it is not padded.
            fits = sum(self._needed(most)) <= self.kv_budget_bytes
            alone = not (fits and self.forward.shares(most))
            if alone and sum(self._needed()) + needed > self.kv_budget_bytes:
                break
            ids = request.context_ids
            # The last token is always computed anew: its logits give the first sample.
            state = self.cache.longest(ids[:-1])
            ready = len(state.ids) if state else 0
            self._ask_for_common(ids[:-1], ready)
            if self._on_its_way(ids[:-1], ready):
                continue
            self.waiting.remove(request)
            self.running[request] = self._begin(request, ids, state, alone)
            request.begin()
            self._stay_within_budget()

    def _begin(
        self, request: Request, ids: np.ndarray, state: State | None, alone: bool
    ) -> Progress:
        computed = len(state.ids) if state else 0
        most = len(request.context) + request.most
        stops = []
        # A context that continues a completion belongs to one episode; any other may be shared.
        if state is None or state.shared:
            stops = self._stops(ids, computed)
        return Progress(
            ids=ids,
            tokens=list(request.context),
            cache=self.cache.take(state) if state else None,
            borrowed=state is not None and state.shared,
            computed=computed,
            stops=stops,
            epoch=self.cache.epoch,
            most=most,
            alone=alone,
            experts=self._experts(most, state),
        )

    def _experts(self, most: int, state: State | None) -> np.ndarray | None:
        """Room for the experts of so many tokens, [most, layers, chosen]; a state's are in it."""
        if self._routers is None:
            return None
        experts = np.empty((most, *self._routers.shape), self._routers.kept.dtype)
        if state is not None and state.experts is not None:
            experts[: len(state.ids)] = state.experts
        return experts

    def _stops(self, ids: np.ndarray, computed: int) -> list[int]:
        """Where to keep the state: at the prompt's end, and where another prompt departs."""
        prompt = len(ids) - 1
        if self.forward.continuation is Continuation.NOTHING or prompt == 0:
            return []
        stops = [prompt]
        if self.forward.continuation is Continuation.CHUNK:
            others = [request.context_ids for request in self.waiting]
            others += [progress.ids for progress in self.running.values()]
            others += [state.ids for state in self.cache.states]
            common = shared_length(ids, others, below=prompt)
            if common - computed >= WORTH_WAITING_FOR:
                stops.insert(0, common)
        return stops

    def _ask_for_common(self, ids: np.ndarray, ready: int) -> None:
        """Let running requests leave a state where this context departs from theirs."""
        if self.forward.continuation is not Continuation.CHUNK:
            return
        for progress in self._reusable:
            common = shared_length(ids, [progress.ids], below=len(progress.ids))
            if common - max(ready, progress.computed) >= WORTH_WAITING_FOR:
                progress.stops = sorted({*progress.stops, common})

    def _on_its_way(self, ids: np.ndarray, ready: int) -> bool:
        """Whether a running request is about to leave a state that saves much of this context."""
        return any(
            stop > progress.computed
            and stop - ready >= WORTH_WAITING_FOR
            and begins_with(ids, progress.ids[:stop])
            for progress in self._reusable
            for stop in progress.stops
        )

    @property
    def _reusable(self) -> list[Progress]:
        """The running requests whose states may be kept."""
        return [each for each in self.running.values() if each.epoch == self.cache.epoch]

    def _too_large(self, tokens: int, needed: int) -> UsageError:
        return UsageError(
            f"generate: a sequence of {tokens} tokens (context and max_new_tokens) needs a state "
            f"of {needed} bytes, and kv_budget_bytes is {self.kv_budget_bytes}. Raise the budget, "
            "or lower max_new_tokens or the environment's context_length."
        )


def _fail(request: Request, error: BaseException) -> None:
    with suppress(InvalidStateError):
        request.future.set_exception(error)
