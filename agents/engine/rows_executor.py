"""The executor that holds each context in one piece and computes a step when it is launched.

A step feeds one token of every decoding row and a chunk of every prefilling one through the model
in a single forward pass (`step_plan.py`). There are no CUDA graphs, so on a GPU it waits for Python
most of the time; `paged_executor.py` is for GPUs.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gymnast.agents.engine.executor import EngineTimes, Match, Part, Sampled
from gymnast.agents.engine.kv_cache import KVCache, Row
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.sampling import as_unused, sample
from gymnast.agents.engine.step_plan import Chunk, StepPlan, decoding_order
from gymnast.agents.models.attention import planned
from gymnast.agents.models.routing import Routers


@dataclass(frozen=True)
class RowMatch(Match):
    """A match, with the row that begins like the context."""

    source: Row | None


@dataclass(frozen=True)
class DoneLaunch:
    """A step that was computed when it was launched."""

    sampled: list[Sampled]
    done: bool = True


class RowsExecutor:
    """Runs a model over contiguous rows of keys and values; see `executor.Executor`.

    Args:
        model: A causal language model of Transformers, in evaluation mode.
        max_rows: Requests that run at once at most.
        budget_tokens: Tokens that the keys and values hold at most, over all contexts.
        routers: Of the model, to record the experts that it chooses; None records none.
        unused_ids: Ids with a logit and no token; they are never sampled.
    """

    max_unread = 0
    steps: tuple[int, ...] = (1,)

    def __init__(
        self,
        model: Any,
        *,
        max_rows: int,
        budget_tokens: int,
        routers: Routers | None = None,
        unused_ids: Sequence[int] = (),
    ) -> None:
        self.model = model
        self.max_rows = max_rows
        self.context_length = budget_tokens
        self.tokens_pushed = 0
        self._unused = as_unused(unused_ids, model.device)
        self._routers = routers
        self._device_s = 0.0
        # Twice the requests: episodes waiting for a tool keep their rows while others run.
        kept = None if routers is None else routers.kept
        self.cache = KVCache(2 * max_rows, budget_tokens, kept)

    @property
    def nbytes(self) -> int:
        """See `Executor`."""
        return self.cache.nbytes

    @property
    def times(self) -> EngineTimes:
        """See `Executor`."""
        return EngineTimes(self._device_s, wait_s=self._device_s)

    def find(self, ids: np.ndarray) -> RowMatch:
        """See `Executor`."""
        source, shared = self.cache.longest_prefix(ids)
        return RowMatch(shared, min(shared, source.computed) if source else 0, source)

    def allocate(self, request: Request, match: RowMatch) -> Row | None:
        """See `Executor`: the row holds the longest completion that the request may get."""
        ids = request.token_ids
        most = len(request.context) + request.most
        row = self.cache.take(ids, most, match.source, match.ready)
        if row is not None:
            row.request = request
        return row

    def reserve(self, row: Row, count: int) -> bool:
        """See `Executor`; `allocate` reserved everything."""
        return True

    def launch(self, parts: Sequence[Part], steps: int) -> DoneLaunch:
        """See `Executor`."""
        began = time.perf_counter()
        by_row: dict[Any, Part] = {part.row: part for part in parts}
        decoding = decoding_order(row for row in by_row if row.missing == 1)
        chunks: list[Chunk] = []
        sampling: list[Row] = []
        sampled_at: list[int] = []
        start = 0
        for row in [*decoding, *(row for row in by_row if row.missing > 1)]:
            part = by_row[row]
            end = start + part.count
            chunks.append(Chunk(row.index, start, end, row.computed, row.prefix))
            if part.samples:
                sampling.append(row)
                sampled_at.append(end - 1)
            row.computed += part.count
            start = end
        logits = self._forward(chunks, sampled_at)
        results = self._sample(sampling, logits)
        for row in sampling:
            row.length += 1
        self._device_s += time.perf_counter() - began
        return DoneLaunch(results)

    def read(self, launch: DoneLaunch) -> list[Sampled]:
        """See `Executor`."""
        return launch.sampled

    def append(self, row: Row, ids: Sequence[int]) -> None:
        """See `Executor`."""
        (token,) = ids
        self.cache.append(row, token)

    def experts(self, row: Row, count: int) -> np.ndarray | None:
        """See `Executor`."""
        if self.cache.experts is None:
            return None
        return self.cache.experts[row.index, :count].copy()

    def release(self, row: Row) -> None:
        """See `Executor`."""
        self.cache.release(row)

    def forget(self) -> int:
        """See `Executor`."""
        self.cache.clear()
        return sum(row.busy and row.computed > 0 for row in self.cache.rows)

    def _sample(self, rows: Sequence[Row], logits: torch.Tensor) -> list[Sampled]:
        """Sample a token for each row from logits [rows, V]."""
        requests = [row.request for row in rows if row.request is not None]
        if not requests:
            return []
        draws = [request.draws for request in requests]
        indices = [len(request.ids) for request in requests]
        contexts = [request.tokens if request.draws.reads_context else [] for request in requests]
        ids, logprobs = sample(logits, draws, indices, contexts, self._unused)
        return [
            Sampled(row, [token], [logprob])
            for row, token, logprob in zip(rows, ids, logprobs, strict=True)
        ]

    def _forward(self, chunks: list[Chunk], sampled_at: list[int]) -> torch.Tensor:
        """Run the packed tokens through the model; return logits [len(sampled_at), V]."""
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
