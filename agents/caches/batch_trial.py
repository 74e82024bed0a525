"""Whether sequences of different lengths may share a forward pass, tried on a few tokens.

Sequences join and leave, decode together and take chunks together. In float64 what each gets must
be what the model alone gives to nine digits: a mask or a position that is wrong somewhere shows.
"""

from dataclasses import dataclass
from typing import Any

import torch

from gymnast.agents.caches.batch import CacheBatch
from gymnast.agents.caches.continuation import Continuation
from gymnast.agents.caches.layout import Layout, find_layout
from gymnast.agents.caches.own_pass import OwnPass
from gymnast.agents.models.double_precision import FAILURES, Precision

LENGTHS = (12, 5, 9)  # of the sequences when they join
MORE = 8  # tokens that follow
FEW, MANY = 3, 13  # tokens of the caches that are compared


@dataclass(frozen=True)
class Batching:
    """How sequences share passes.

    Attributes:
        layout: Of the model's caches.
        from_start: Whether they can do so from their first tokens on, the shorter ones padded on
            the left.
    """

    layout: Layout
    from_start: bool


def continue_together(
    run: OwnPass, batch: CacheBatch, ids: list[list[int]], *, last: bool = False
) -> torch.Tensor:
    """Append equally many tokens to every sequence of a batch; returns logits [B, n or 1, V]."""
    new, device = len(ids[0]), run.model.device
    mask = batch.mask(new, device) if batch.layout.grows else None
    positions = batch.positions(new, device)
    logits, cache = run(ids, positions, batch.cache, mask, last=last)
    batch.grew(cache, new)
    return logits


def begin_together(
    run: OwnPass, layout: Layout, prompts: list[list[int]], *, last: bool = False
) -> tuple[torch.Tensor, CacheBatch]:
    """Compute the first tokens of some sequences.

    Returns:
        The logits [B, n or 1, V], those of shorter ones padded on the left, and their caches.
    """
    lengths = [len(prompt) for prompt in prompts]
    padding = [max(lengths) - length for length in lengths]
    ids = [[0] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)]
    columns = torch.arange(max(lengths), device=run.model.device)
    places = columns - torch.tensor(padding, device=run.model.device)[:, None]  # [B, n]
    logits, cache = run(ids, places.clamp(min=0), None, (places >= 0).long(), last=last)
    return logits, CacheBatch.of(layout, cache, lengths)


def find_batching(
    run: OwnPass, continuation: Continuation, vocabulary: int, precision: Precision
) -> Batching | None:
    """Try it.

    Returns:
        None where every sequence needs a pass of its own.
    """
    ids = [_ids(seed, length + MORE, vocabulary) for seed, length in enumerate(LENGTHS)]
    few, many = (run.one(_ids(0, n, vocabulary), None, 0)[1] for n in (FEW, MANY))
    two = run([_ids(0, FEW, vocabulary)] * 2, torch.arange(FEW, device=run.model.device)[None])[1]
    layout = find_layout(few, many, two, (FEW, MANY))
    if layout is None or not layout.dims:
        return None
    with precision.computing():
        whole = [run.one(each, None, 0, keep=False)[0] for each in ids]
        trial = _Trial(run, layout, ids, whole, precision)
        if not trial.joins_and_leaves(chunks=continuation is Continuation.CHUNK):
            return None
        try:
            return Batching(layout, trial.begins())
        except FAILURES:
            return Batching(layout, from_start=False)


@dataclass
class _Trial:
    """Some sequences and what the model alone gives for them."""

    run: OwnPass
    layout: Layout
    ids: list[list[int]]
    whole: list[torch.Tensor]
    precision: Precision

    def joins_and_leaves(self, *, chunks: bool) -> bool:
        """Whether a batch gives the same whoever is in it."""
        alone = [
            self.run.one(ids[:n], None, 0)[1] for ids, n in zip(self.ids, LENGTHS, strict=True)
        ]
        batch, rows = CacheBatch(self.layout), [0, 1]
        batch.join(alone[:2], LENGTHS[:2])
        same = self._same(batch, rows) and self._same(batch, rows)
        batch.join(alone[2:], LENGTHS[2:])
        rows = [0, 1, 2]
        same = same and self._same(batch, rows)
        left = batch.row(0), batch.lengths[0]
        batch.leave(0)
        rows = [2, 1]
        same = same and self._same(batch, rows)
        if chunks:
            same = same and self._same(batch, rows, tokens=3)
        left_late = batch.row(1), batch.lengths[1]
        return (
            same
            and self._same_alone(0, *left)
            and self._same_alone(1, *left_late)
            # What was copied in has not changed with the copy.
            and all(self._same_alone(i, alone[i], LENGTHS[i]) for i in range(len(alone)))
        )

    def begins(self) -> bool:
        """Whether padding on the left of the first tokens leaves no trace."""
        prompts = [ids[:n] for ids, n in zip(self.ids, LENGTHS, strict=True)]
        logits, batch = begin_together(self.run, self.layout, prompts)
        return all(
            self._agree(logits[i, -n:], self.whole[i][:n]) and self._same_alone(i, batch.row(i), n)
            for i, n in enumerate(LENGTHS)
        )

    def _same(self, batch: CacheBatch, rows: list[int], tokens: int = 1) -> bool:
        """Append the next tokens of these sequences."""
        spans = [(i, n, n + tokens) for i, n in zip(rows, batch.lengths, strict=True)]
        ids = [self.ids[i][start:end] for i, start, end in spans]
        logits = continue_together(self.run, batch, ids)
        expected = torch.stack([self.whole[i][start:end] for i, start, end in spans])
        return self._agree(logits, expected)

    def _same_alone(self, i: int, cache: Any, length: int) -> bool:
        logits, _ = self.run.one(self.ids[i][length : length + 1], cache, length)
        return self._agree(logits, self.whole[i][length : length + 1])

    def _agree(self, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        return self.precision.differ(ours, theirs, exactly=True) is None


def _ids(seed: int, length: int, vocabulary: int) -> list[int]:
    return [1 + (7 * seed + (5 + 2 * seed) * i) % (vocabulary - 1) for i in range(length)]
