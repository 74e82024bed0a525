"""Whether sequences of different lengths may share a forward pass, tried on a few tokens.

Sequences join and leave, decode together and take chunks together. In float64 what each gets must
be what the model alone gives to nine digits: a mask or a position that is wrong somewhere shows.
"""

import math
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
EXACT = 1e-9  # relative difference of logits that are the same in float64


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
    few, many = (run.one(_ids(0, n, vocabulary), None, 0)[1] for n in (FEW, MANY))
    two = run([_ids(0, FEW, vocabulary)] * 2, torch.arange(FEW, device=run.model.device)[None])[1]
    layout = find_layout(few, many, two, (FEW, MANY))
    if layout is None or not layout.dims:
        return None
    ids = [_ids(seed, length + MORE, vocabulary) for seed, length in enumerate(LENGTHS)]
    with precision.computing():
        trial = _Trial(run, layout, precision, ids)
        apart, together = trial.joins_and_leaves(chunks=continuation is Continuation.CHUNK)
        # Some compute in parts with constants of float32: alone they are as far from the whole.
        limit = max(EXACT, 4 * apart) if precision.in_float64 else precision.limit
        if not max(together) < limit:
            return None
        try:
            return Batching(layout, from_start=max(trial.begins()) < limit)
        except FAILURES:
            return Batching(layout, from_start=False)


class _Trial:
    """Some sequences, and how far what they get in a batch is from what the model alone gives.

    Args:
        run: The model's pass.
        layout: Of its caches.
        precision: In what to compare.
        ids: The tokens of each sequence.
    """

    def __init__(
        self, run: OwnPass, layout: Layout, precision: Precision, ids: list[list[int]]
    ) -> None:
        self._run, self._layout, self._precision, self._ids = run, layout, precision, ids
        self._whole = [run.one(each, None, 0, keep=False)[0] for each in ids]  # [n, V] each

    def joins_and_leaves(self, *, chunks: bool) -> tuple[float, list[float]]:
        """Have sequences join and leave.

        Returns:
            How far from the whole the model is alone, and in batches.
        """
        prompts = list(zip(self._ids, LENGTHS, strict=True))
        caches = [self._run.one(ids[:n], None, 0)[1] for ids, n in prompts]
        batch = CacheBatch(self._layout)
        batch.join(caches[:2], LENGTHS[:2])
        together = self._append(batch, [0, 1])
        batch.join(caches[2:], LENGTHS[2:])
        together += self._append(batch, [0, 1, 2])
        first, length = batch.row(0), batch.lengths[0]
        batch.leave(0)
        together += self._append(batch, [2, 1])
        if chunks:
            together += self._append(batch, [2, 1], tokens=3)
        together.append(self._alone(0, first, length))
        together.append(self._alone(1, batch.row(1), batch.lengths[1]))
        # What was copied in has not changed with the copy.
        apart = [self._alone(i, caches[i], n) for i, n in enumerate(LENGTHS)]
        return max(apart), together

    def begins(self) -> list[float]:
        """Pad the first tokens on the left."""
        prompts = [ids[:n] for ids, n in zip(self._ids, LENGTHS, strict=True)]
        logits, batch = begin_together(self._run, self._layout, prompts)
        first = [self._difference(i, 0, logits[i, -n:]) for i, n in enumerate(LENGTHS)]
        return [*first, self._alone(1, batch.row(1), LENGTHS[1])]

    def _append(self, batch: CacheBatch, rows: list[int], tokens: int = 1) -> list[float]:
        """Continue a batch of these sequences with their next tokens."""
        starts = list(batch.lengths)
        ids = [self._ids[i][at : at + tokens] for i, at in zip(rows, starts, strict=True)]
        logits = continue_together(self._run, batch, ids)
        return [self._difference(*each) for each in zip(rows, starts, logits, strict=True)]

    def _alone(self, row: int, cache: Any, start: int) -> float:
        logits, _ = self._run.one(self._ids[row][start : start + 1], cache, start)
        return self._difference(row, start, logits)

    def _difference(self, row: int, start: int, logits: torch.Tensor) -> float:
        """Between logits [n, V] and those of the whole; infinite where there is a NaN."""
        expected = self._whole[row][start : start + len(logits)]
        difference = self._precision.difference(logits, expected)
        return difference if math.isfinite(difference) else math.inf


def _ids(seed: int, length: int, vocabulary: int) -> list[int]:
    return [1 + (7 * seed + (5 + 2 * seed) * i) % (vocabulary - 1) for i in range(length)]
