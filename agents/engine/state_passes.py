"""Which sequences share a forward pass of a model's own, and with which tokens.

A padded token would leave its trace in a recurrent state. So a pass gives every sequence equally
many tokens: one each while decoding, whatever their lengths, or a chunk of equal length each. Only
where nothing was computed yet may shorter sequences be padded, on the left. Decoding sequences
stay in one batch from step to step; the others have caches of their own.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gymnast.agents.caches.continuation import Continuation
from gymnast.agents.caches.own_forward import OwnForward
from gymnast.agents.models.routing import Routers

# A pass of its own costs about as much as this many tokens of padding.
PASS_TOKENS = 64


Results = list[tuple["Progress", torch.Tensor]]


@dataclass(eq=False)
class Progress:
    """How far a running request is.

    Attributes:
        ids: Its context.
        tokens: Its context and what was sampled.
        cache: After the first `computed` tokens; None where there are none, or in the batch.
        borrowed: Whether the cache is somebody else's too, and must be copied to be changed.
        computed: How many tokens the model has seen.
        stops: Lengths at which the state is kept for others, ascending.
        epoch: The store's, when it began.
        most: How many tokens it may come to.
        alone: Whether it takes passes of its own.
        experts: Chosen for the first `computed` tokens, [most, layers, chosen]; None where they are
            not asked for.
    """

    ids: np.ndarray
    tokens: list[int]
    cache: Any
    borrowed: bool
    computed: int
    stops: list[int]
    epoch: int
    most: int
    alone: bool
    experts: np.ndarray | None = None

    @property
    def chosen(self) -> np.ndarray | None:
        """A copy of the experts of the tokens that the model has seen."""
        return None if self.experts is None else self.experts[: self.computed].copy()

    @property
    def missing(self) -> int:
        """How many tokens are to be computed before the next is sampled."""
        return len(self.tokens) - self.computed


class StatePasses:
    """Runs a model for sequences in progress.

    Args:
        forward: The model's own forward.
        routers: Of the model, where sequences are to note which experts it chose.

    Attributes:
        tokens_pushed: How many tokens entered the model so far.
    """

    def __init__(self, forward: OwnForward, routers: Routers | None = None) -> None:
        self.forward = forward
        self._routers = routers
        self.tokens_pushed = 0
        self._rows: list[Progress] = []  # of the batch
        self._batch = forward.batch() if forward.batching else None

    @property
    def nbytes(self) -> int:
        """What the batch takes, in bytes."""
        return self._batch.nbytes if self._batch else 0

    def holds(self, progress: Progress) -> bool:
        """Whether it is in the batch."""
        return progress in self._rows

    def decodes(self, progress: Progress) -> bool:
        """Whether its next token goes through the model with those of others."""
        if self._batch is None or progress.alone or progress.computed == 0:
            return False
        return progress.missing == 1 or self.forward.continuation is Continuation.TOKEN

    def decode(self, decoding: Sequence[Progress]) -> Results:
        """Compute one token of each, those of the batch among them.

        Returns:
            Each, and the logits [V] that predict its next token.
        """
        assert self._batch is not None
        joining = [each for each in decoding if each not in self._rows]
        if joining:
            most = max(each.most for each in decoding)
            lengths = [each.computed for each in joining]
            self._batch.join([each.cache for each in joining], lengths, most)
            self._rows += joining
            for each in joining:
                each.cache, each.borrowed = None, False
        ids = [[each.tokens[each.computed]] for each in self._rows]
        with self._noting({each: each.computed + 1 for each in self._rows}):
            logits = self.forward.together(self._batch, ids)
        for each in self._rows:
            self._computed(each, each.computed + 1)
        return list(zip(self._rows, logits, strict=True))

    def prefill(self, chunks: Sequence[tuple[Progress, int]]) -> Results:
        """Compute a chunk of each sequence, up to a length.

        Returns:
            Each, and the logits [V] that predict the token after its chunk.
        """
        ends = dict(chunks)
        results: Results = []
        for group in self._groups(chunks):
            if len(group) == 1:
                results.append((group[0], self._alone(group[0], ends[group[0]])))
                continue
            new = [each.tokens[each.computed : ends[each]] for each in group]
            if group[0].computed:
                batch = self.forward.batch()
                batch.join([each.cache for each in group], [each.computed for each in group])
                with self._noting({each: ends[each] for each in group}):
                    logits = self.forward.together(batch, new)
            else:
                with self._noting({each: ends[each] for each in group}):
                    logits, batch = self.forward.begin(new)
            for row, each in enumerate(group):
                each.cache, each.borrowed = batch.row(row), False
                self._computed(each, ends[each])
            results += zip(group, logits, strict=True)
        return results

    def _groups(self, chunks: Sequence[tuple[Progress, int]]) -> list[list[Progress]]:
        """Those that share a pass."""
        alone: list[list[Progress]] = []
        fresh: list[tuple[int, Progress]] = []
        equal: dict[int, list[Progress]] = defaultdict(list)
        for each, end in chunks:
            if not self._may_share(each):
                alone.append([each])
            elif each.computed == 0:
                fresh.append((end, each))
            else:
                equal[end - each.computed].append(each)
        return [*alone, *equal.values(), *_near(fresh)]

    def _may_share(self, each: Progress) -> bool:
        batching = self.forward.batching
        if batching is None or each.alone:
            return False
        return batching.from_start or each.computed > 0

    def _alone(self, each: Progress, end: int) -> torch.Tensor:
        """Compute one sequence up to a length; returns logits [V]."""
        start = each.computed
        if each.borrowed:
            each.cache, each.borrowed = self.forward.copy(each.cache, start), False
        with self._noting({each: end}):
            logits, each.cache = self.forward(each.tokens[start:end], each.cache, start)
        self._computed(each, end)
        return logits

    @contextmanager
    def _noting(self, ends: Mapping[Progress, int]) -> Iterator[None]:
        """Within the block, one pass is made; note the experts that it chooses.

        Args:
            ends: The sequences of the pass, in its order, and up to which length it computes each.
        """
        if self._routers is None:
            yield
            return
        with self._routers.recording() as noted:
            yield
        longest = max(end - each.computed for each, end in ends.items())
        rows = noted[0].cpu().numpy().reshape(len(ends), longest, *self._routers.shape)
        for (each, end), row in zip(ends.items(), rows, strict=True):
            assert each.experts is not None
            each.experts[each.computed : end] = row[each.computed - end :]  # padding comes first

    def _computed(self, each: Progress, end: int) -> None:
        self.tokens_pushed += end - each.computed
        each.computed = end

    def state(self, progress: Progress) -> Any:
        """Its cache as it is now; that of a row is copied."""
        if self.holds(progress):
            assert self._batch is not None
            return self._batch.row(self._rows.index(progress))
        return progress.cache

    def end(self, progress: Progress) -> None:
        """Forget a sequence."""
        if self.holds(progress):
            assert self._batch is not None
            row = self._rows.index(progress)
            self._batch.leave(row)
            self._rows[row] = self._rows[-1]
            self._rows.pop()
        progress.cache = None

    def trim(self) -> None:
        """Give back the memory of sequences that have left the batch."""
        if self._batch and self._rows:
            self._batch.trim(max(each.most for each in self._rows))

    def clear(self) -> None:
        """Forget all sequences."""
        self._rows = []
        self._batch = self.forward.batch() if self.forward.batching else None


def _near(fresh: list[tuple[int, Progress]]) -> list[list[Progress]]:
    """Sequences of which the shorter ones are padded to the longest, not by much."""
    groups: list[list[Progress]] = []
    longest = 0
    for length, each in sorted(fresh, key=lambda pair: -pair[0]):
        if not groups or longest - length > PASS_TOKENS:
            groups.append([])
            longest = length
        groups[-1].append(each)
    return groups
