"""One call of `generate` on its way through an engine."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gymnast.agents.engine.sampling import Draws
from gymnast.types import Completion, Sampling, VersionSpan


@dataclass(eq=False)
class Request:
    """A context to continue, and what was sampled for it so far.

    Attributes:
        context: The token ids to continue.
        sampling: Of the caller.
        future: Resolved with the completion.
        limit: Tokens that fit after the context.
        ids: The sampled tokens.
        logprobs: Their log-probabilities.
        waited_s: Seconds until the model first computed for it.
        experts: Of the context and of `ids` but the last, [T, layers, chosen].
        most: Tokens that are sampled at most.
        finished: True once nothing more is sampled.
    """

    context: list[int]
    sampling: Sampling
    future: "Future[Completion]"
    limit: int
    draws: Draws = field(init=False)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    waited_s: float = 0.0
    experts: np.ndarray | None = None
    stop_ids: frozenset[int] = field(init=False)
    context_ids: np.ndarray = field(init=False)  # [T]
    arrived: float = field(init=False)
    most: int = field(init=False)
    begun: bool = field(default=False, init=False)
    finished: bool = field(default=False, init=False)
    _versions: list[tuple[int, int]] = field(default_factory=list, init=False)  # (start, version)

    def __post_init__(self) -> None:
        self.context_ids = np.array(self.context, dtype=np.int64)
        self.draws = Draws(self.sampling)
        self.stop_ids = frozenset(self.sampling.stop_ids)
        self.most = min(self.sampling.max_new_tokens, self.limit)
        self.arrived = time.perf_counter()

    def begin(self) -> None:
        """Note the time when the model first computes for it."""
        if not self.begun:
            self.begun = True
            self.waited_s = time.perf_counter() - self.arrived

    @property
    def tokens(self) -> list[int]:
        """The context with the tokens sampled so far."""
        return self.context + self.ids

    @property
    def token_ids(self) -> np.ndarray:
        """The context with the tokens sampled so far, [T]."""
        if not self.ids:
            return self.context_ids
        return np.concatenate([self.context_ids, np.array(self.ids, dtype=np.int64)])

    @property
    def versions(self) -> list[VersionSpan]:
        """The versions of the weights that sampled `ids`, in order."""
        ends = [start for start, _ in self._versions[1:]] + [len(self.ids)]
        return [
            VersionSpan(start, end, version)
            for (start, version), end in zip(self._versions, ends, strict=True)
        ]

    def accept(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> int:
        """Add tokens that these weights sampled, up to the one that ends the completion.

        Returns:
            How many were added; fewer than there are once the completion is finished.
        """
        count = min(len(ids), self.most - len(self.ids))
        for number, token in enumerate(ids[:count], 1):
            if token in self.stop_ids:
                count, self.finished = number, True
                break
        if not self._versions or self._versions[-1][1] != version:
            self._versions.append((len(self.ids), version))
        self.ids += ids[:count]
        self.logprobs += logprobs[:count]
        self.finished |= len(self.ids) >= self.most
        return count

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
