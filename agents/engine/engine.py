"""The engine's loop: admit requests, run one packed step, sample, hand back what is finished.

A step feeds one token of every decoding request and a chunk of every prefilling one through the
model in a single forward pass, so requests join and leave between steps and none waits for another.
It runs on its caller's thread; `agents/transformers_agent.py` gives it one of its own. There are no
CUDA graphs and no speculative decoding.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from gymnast.agents.engine.kv_cache import KVCache, Row
from gymnast.agents.engine.sampling import Draw, as_unused, sample, seed_of
from gymnast.agents.engine.step_plan import Chunk, StepPlan, decoding_order
from gymnast.agents.models.attention import planned
from gymnast.agents.models.routing import Routers
from gymnast.types import Completion, Sampling, VersionSpan

# Waiting for a prefix that another request is computing pays from this many tokens on.
WORTH_WAITING_FOR = 16


@dataclass(eq=False)
class Request:
    """One call of `generate` on its way through the engine."""

    context: list[int]
    sampling: Sampling
    future: "Future[Completion]"
    limit: int  # tokens that fit after the context
    seed: int = field(init=False)  # 64 bits
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    waited_s: float = 0.0
    experts: np.ndarray | None = None  # of the context and of `ids` but the last
    versions: list[VersionSpan] = field(default_factory=list)  # of the weights, of `ids`
    stop_ids: frozenset[int] = field(init=False)
    context_ids: np.ndarray = field(init=False)  # [T]
    arrived: float = field(init=False)

    def __post_init__(self) -> None:
        self.context_ids = np.array(self.context, dtype=np.int64)
        self.seed = seed_of(self.sampling)
        self.stop_ids = frozenset(self.sampling.stop_ids)
        self.arrived = time.perf_counter()

    def begin(self) -> None:
        """Note that the model is about to compute for it."""
        self.waited_s = time.perf_counter() - self.arrived

    @property
    def draw(self) -> Draw:
        """How its next token is sampled."""
        return Draw(self.sampling, self.seed, len(self.ids))

    @property
    def tokens(self) -> list[int]:
        """The context with what was sampled so far."""
        return self.context + self.ids

    @property
    def most(self) -> int:
        """How many tokens it samples at most."""
        return min(self.sampling.max_new_tokens, self.limit)

    def accept(self, token: int, logprob: float, version: int) -> bool:
        """Take a token that these weights sampled; returns whether the completion is finished."""
        self.ids.append(token)
        start = len(self.ids) - 1
        if self.versions and self.versions[-1].version == version:
            start = self.versions.pop().start
        self.versions.append(VersionSpan(start, len(self.ids), version))
        self.logprobs.append(logprob)
        return token in self.stop_ids or len(self.ids) >= self.most

    def completion(self) -> Completion:
        """The completion that was sampled."""
        stopped = self.ids[-1] in self.stop_ids
        reason: Literal["stop", "length"] = "stop" if stopped else "length"
        return Completion(
            self.ids,
            self.logprobs,
            reason,
            waited_s=self.waited_s,
            versions=self.versions,
            experts=self.experts,
        )


class Engine:
    """Batches requests in flight over one model and one cache.

    Args:
        model: A causal language model of Transformers, in evaluation mode.
        max_batch: How many requests run at once.
        budget_tokens: How many tokens the cache holds at most, over all contexts.
        prefill_tokens: How many context tokens one step computes at most.
        routers: Of the model, where completions are to say which experts it chose.
        unused_ids: Ids with a logit and no token; they are never sampled.

    Attributes:
        version: Of the weights, with which tokens are tagged.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_batch: int,
        budget_tokens: int,
        prefill_tokens: int,
        routers: Routers | None = None,
        unused_ids: Sequence[int] = (),
    ) -> None:
        self.model = model
        self._unused = as_unused(unused_ids, model.device)
        self.version = 0
        self.max_batch = max_batch
        self.prefill_tokens = prefill_tokens
        # Twice the batch: episodes waiting for a tool keep their rows while others run.
        kept = None if routers is None else routers.kept
        self.cache = KVCache(2 * max_batch, budget_tokens, kept)
        self._routers = routers
        self.waiting: list[Request] = []
        self.running: dict[Request, Row] = {}
        self.tokens_pushed = 0

    @property
    def kv_bytes(self) -> int:
        """How many bytes the keys and values take now."""
        return self.cache.nbytes

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running

    @torch.inference_mode()
    def step(self) -> None:
        """Admit what fits, run the model once, and resolve the requests that finished."""
        self._drop_cancelled()
        self._admit()
        chunks, sampled_at = self._chunks()
        if not chunks:
            return
        logits = self._forward(chunks, list(sampled_at.values()))
        requests = list(sampled_at)
        draws = [request.draw for request in requests]
        contexts = [request.tokens if request.draw.reads_context else [] for request in requests]
        ids, logprobs = sample(logits, draws, contexts, self._unused) if requests else ([], [])
        for request, token, logprob in zip(requests, ids, logprobs, strict=True):
            row = self.running[request]
            if request.accept(token, logprob, self.version):
                if self.cache.experts is not None:
                    request.experts = self.cache.experts[row.index, : row.computed].copy()
                self.cache.release(self.running.pop(request))
                with suppress(InvalidStateError):  # cancelled just now
                    request.future.set_result(request.completion())
            else:
                self.cache.append(row, token)

    def forget(self) -> int:
        """Let nothing that was computed serve another request.

        Returns:
            How many requests go on with what they have.
        """
        self.cache.clear()
        return sum(row.computed > 0 for row in self.running.values())

    def fail(self, error: BaseException) -> None:
        """Give every request this error and forget the cache."""
        for request in [*self.waiting, *self.running]:
            with suppress(InvalidStateError):
                request.future.set_exception(error)
        self.waiting.clear()
        for row in self.running.values():
            self.cache.release(row)
        self.running.clear()
        self.cache.clear()

    def _drop_cancelled(self) -> None:
        self.waiting = [request for request in self.waiting if not request.future.cancelled()]
        for request in [request for request in self.running if request.future.cancelled()]:
            self.cache.release(self.running.pop(request))

    def _admit(self) -> None:
        """Give waiting requests rows, oldest first, unless a prefix of theirs is on its way."""
        for request in list(self.waiting):
            if len(self.running) == self.max_batch:
                break
            ids = request.context_ids
            # The last token is always computed anew: its logits give the first sample.
            source, shared = self.cache.longest_prefix(ids[:-1])
            ready = min(shared, source.computed) if source else 0
            if shared - ready >= WORTH_WAITING_FOR:
                continue
            most = len(ids) + request.most
            row = self.cache.take(ids, most, source, ready)
            if row is None:
                break
            self.waiting.remove(request)
            self.running[request] = row
            request.begin()

    def _chunks(self) -> tuple[list[Chunk], dict[Request, int]]:
        """What each row appends now, and at which packed token each finished request samples."""
        requests = {row: request for request, row in self.running.items()}
        decoding = decoding_order(row for row in requests if _missing(row) == 1)
        prefilling = [row for row in requests if _missing(row) > 1]
        chunks: list[Chunk] = []
        sampled_at: dict[Request, int] = {}
        start, budget = 0, self.prefill_tokens
        for row in [*decoding, *prefilling]:
            missing = _missing(row)
            length = 1 if missing == 1 else min(missing, budget)
            if length == 0:
                break
            budget -= length if missing > 1 else 0
            chunks.append(Chunk(row.index, start, start + length, row.computed, row.prefix))
            start += length
            row.computed += length
            if row.computed == row.length:
                sampled_at[requests[row]] = start - 1
        return chunks, sampled_at

    def _forward(self, chunks: list[Chunk], sampled_at: list[int]) -> torch.Tensor:
        """Run the packed tokens through the model; returns logits [len(sampled_at), V]."""
        device = self.model.device
        plan = StepPlan(self.cache, chunks, device)
        self.tokens_pushed += len(plan.ids)
        with planned(self.model), self._recording() as chosen:
            logits: torch.Tensor = self.model(
                input_ids=plan.ids[None],
                position_ids=plan.positions[None],
                use_cache=False,
                plan=plan,
                logits_to_keep=torch.tensor(sampled_at, dtype=torch.long, device=device),
            ).logits[0]
        if self.cache.experts is not None:
            at = plan.positions.cpu().numpy()
            self.cache.experts[plan.rows, at] = chosen[0].cpu().numpy()
        return logits

    def _recording(self) -> AbstractContextManager[list[torch.Tensor]]:
        return nullcontext([]) if self._routers is None else self._routers.recording()


def _missing(row: Row) -> int:
    return row.length - row.computed
