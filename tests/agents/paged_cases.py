"""Steps of paged attention: rows that share prefixes at several levels, and items that cover them.

Slots that no token has written hold NaN, page 0 too, so whatever reads too much is seen.
"""

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from gymnast.agents.engine.paged_attention import PAGE, Work, attend_pages_plain
from gymnast.agents.models.attention import LayerSettings

Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
OPEN = 2**30  # the end of an item whose tokens' positions advance


@dataclass(frozen=True)
class Spec:
    """What a case is like; `seed` decides the rest: lengths, pages, sharing, splits, order."""

    seed: int
    rows: int = 4
    levels: int = 2  # of shared prefixes
    key_heads: int = 2
    group: int = 2
    width: int = 16
    value_width: int = 16
    dtype: torch.dtype = torch.float32
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    padding: int = 2  # tokens
    splits: int = 2  # of the keys of an item, at most
    narrow_rows: int = 16
    wide_rows: int = 32


@dataclass(frozen=True)
class Case:
    """A step: the arguments of `attend_pages`, and each row's keys and values one after another."""

    query: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    table_width: Tensor
    rows: Tensor
    positions: Tensor
    work: Work
    settings: LayerSettings
    padding: int
    most_pages: int

    def arguments(self) -> Arguments:
        places = (self.tables, self.table_width, self.rows, self.positions)
        return self.query, self.keys, self.values, *places

    def plain(self) -> Tensor:
        return attend_pages_plain(*self.arguments(), self.settings, self.most_pages)

    def context(self, token: int) -> tuple[Tensor, Tensor]:
        """The keys and values that a token sees, [Hkv, L, D] and [Hkv, L, Dv]."""
        row, position = int(self.rows[token]), int(self.positions[token])
        table = self.tables[row * int(self.table_width) :][: position // PAGE + 1].long()
        first = 0
        if self.settings.window is not None:
            first = max(0, position - self.settings.window + 1)
        key, value = (
            pool[table].transpose(0, 1).flatten(1, 2)[:, first : position + 1]
            for pool in (self.keys, self.values)
        )
        return key, value

    def expected(self) -> Tensor:
        """What attention is, token by token in float64; padding gets zeros."""
        tokens, heads, _ = self.query.shape
        out = torch.zeros(tokens, heads, self.values.shape[3], dtype=torch.float64)
        for token in range(tokens - self.padding):
            key, value = (each.double() for each in self.context(token))
            query = self.query[token].double().view(key.shape[0], -1, key.shape[2])
            scores = query @ key.transpose(1, 2) * self.settings.scale
            if self.settings.softcap is not None:
                scores = self.settings.softcap * torch.tanh(scores / self.settings.softcap)
            if self.settings.sinks is not None:
                sinks = self.settings.sinks.double().view(key.shape[0], -1, 1)
                scores = torch.cat([scores, sinks], dim=2)
            weights = torch.softmax(scores, dim=2)[..., : key.shape[1]]
            out[token] = (weights @ value).flatten(0, 1)
        return out

    def by_sdpa(self) -> Tensor:
        """The same by torch's own attention, for layers without soft caps and sinks."""
        tokens, heads, _ = self.query.shape
        out = self.query.new_zeros(tokens, heads, self.values.shape[3])
        for token in range(tokens - self.padding):
            key, value = self.context(token)
            query = self.query[token].view(key.shape[0], -1, key.shape[2])
            scale = self.settings.scale
            out[token] = F.scaled_dot_product_attention(query, key, value, scale=scale).flatten(
                0, 1
            )
        return out

    def to(self, device: torch.device) -> "Case":
        work = replace(
            self.work,
            items=self.work.items.to(device),
            wide_items=self.work.wide_items.to(device),
            parts=self.work.parts.to(device),
            part_slots=self.work.part_slots.to(device),
        )
        query, keys, values, tables, table_width, rows, positions = (
            each.to(device) for each in self.arguments()
        )
        sinks = self.settings.sinks
        return replace(
            self,
            query=query,
            keys=keys,
            values=values,
            tables=tables,
            table_width=table_width,
            rows=rows,
            positions=positions,
            work=work,
            settings=replace(self.settings, sinks=None if sinks is None else sinks.to(device)),
        )

    def advanced(self, steps: int) -> "Case":
        """The case as many tokens later, the items unchanged; for rows whose keys are written."""
        positions = self.positions.clone()
        positions[: positions.shape[0] - self.padding] += steps
        return replace(self, positions=positions)


@dataclass(frozen=True)
class _Run:
    """Keys that some rows have, from `begin` on."""

    members: range
    begin: int
    end: int


def make_case(spec: Spec, spare: int = 0, one_query: bool = False) -> Case:
    """Make a case.

    Args:
        spec: Of the case.
        spare: Tokens that each row has beyond the last query, for a case that is to advance.
        one_query: Whether each row has one query; otherwise some have more, as in prefill.
    """
    rng = random.Random(spec.seed)
    torch.manual_seed(spec.seed)
    pages: list[list[int]] = [[] for _ in range(spec.rows)]
    lengths = [0] * spec.rows
    runs: list[_Run] = []
    used = list(range(1, 1 + 32 * spec.rows))
    rng.shuffle(used)

    def divide(members: range, levels: int) -> None:
        begin = len(pages[members[0]])
        if levels == 0 or len(members) == 1:
            for row in members:
                lengths[row] = begin * PAGE + rng.randint(1, 50)
                while len(pages[row]) * PAGE < lengths[row] + spare:
                    pages[row].append(used.pop())
                runs.append(_Run(range(row, row + 1), begin * PAGE, lengths[row]))
            return
        shared = [used.pop() for _ in range(rng.randint(0, 3))]
        for row in members:
            pages[row] += shared
        if shared:
            runs.append(_Run(members, begin * PAGE, (begin + len(shared)) * PAGE))
        cuts = sorted({members.start, *rng.choices(members, k=2), members.stop})
        for first, last in pairwise(cuts):
            divide(range(first, last), levels - 1)

    divide(range(spec.rows), spec.levels)

    width = max(map(len, pages)) + rng.randint(0, 2)
    table_rows = rng.sample(range(spec.rows + 2), spec.rows + 1)  # the last is of padding
    tables = torch.zeros((spec.rows + 2) * width + 5, dtype=torch.int32)
    size = (max(max(each) for each in pages) + 1, spec.key_heads, PAGE)
    keys = torch.full((*size, spec.width), torch.nan, dtype=spec.dtype)
    values = torch.full((*size, spec.value_width), torch.nan, dtype=spec.dtype)
    for row in range(spec.rows):
        tables[table_rows[row] * width :][: len(pages[row])] = torch.tensor(pages[row])
        for index, page in enumerate(pages[row]):
            filled = min(PAGE, lengths[row] + spare - index * PAGE)
            if keys[page, 0, 0, 0].isnan():  # not yet, by another row
                keys[page, :, :filled] = torch.randn(spec.key_heads, filled, spec.width)
                values[page, :, :filled] = torch.randn(spec.key_heads, filled, spec.value_width)

    counts = [
        1 if one_query else rng.choice([1, 1, rng.randint(1, min(12, length))])
        for length in lengths
    ]
    firsts = [sum(counts[:row]) for row in range(spec.rows + 1)]
    tokens = firsts[-1] + spec.padding
    rows = [table_rows[row] for row in range(spec.rows) for _ in range(counts[row])]
    positions = [
        length - count + index
        for length, count in zip(lengths, counts, strict=True)
        for index in range(count)
    ]
    heads = spec.key_heads * spec.group
    query = torch.randn(heads, tokens, spec.width).to(spec.dtype).transpose(0, 1)  # as models do
    settings = LayerSettings(
        layer=0,
        scale=spec.width**-0.5,
        window=spec.window,
        softcap=spec.softcap,
        sinks=torch.randn(heads).to(spec.dtype) if spec.sinks else None,
    )
    return Case(
        query=query,
        keys=keys,
        values=values,
        tables=tables,
        table_width=torch.tensor([width], dtype=torch.int32),
        rows=torch.tensor(rows + [table_rows[-1]] * spec.padding, dtype=torch.int32),
        positions=torch.tensor(
            positions + [0] * spec.padding, dtype=rng.choice([torch.int32, torch.int64])
        ),
        work=_work(spec, rng, runs, firsts, table_rows, tokens, spare),
        settings=settings,
        padding=spec.padding,
        most_pages=width + 1,
    )


def _work(
    spec: Spec,
    rng: random.Random,
    runs: list[_Run],
    firsts: list[int],
    table_rows: list[int],
    tokens: int,
    spare: int,
) -> Work:
    """Cover all runs with items, split at random, in random order, among items that do nothing."""
    drawn: list[tuple[bool, list[int]]] = []
    slots = 0
    of_token: list[list[int]] = [[] for _ in range(tokens)]
    for run in runs:
        wide = rng.random() < 0.5
        tile = (spec.wide_rows if wide else spec.narrow_rows) // spec.group
        own = len(run.members) == 1
        cuts = sorted(
            rng.choices(range(run.begin, run.end + 20), k=rng.choice([0, 0, 1, spec.splits]))
        )
        if not own:
            cuts = [cut for cut in cuts if cut < run.end]
        end = OPEN if own and (cuts or spare or rng.random() < 0.5) else run.end
        last = firsts[run.members.stop]
        for begin, stop in pairwise([run.begin, *cuts, end]):
            for first in range(firsts[run.members.start], last, tile):
                count = min(tile, last - first)
                row = table_rows[rng.choice(run.members)]
                drawn.append((wide, [first, count, row, begin, stop, slots]))
                for index in range(count):
                    of_token[first + index].append(slots + index)
                slots += count
    for _, item in drawn:  # what one item computes alone needs no joining
        first, count = item[:2]
        alone = all(len(of_token[token]) == 1 for token in range(first, first + count))
        if alone and rng.random() < 0.7:
            item[5] = -1
            for token in range(first, first + count):
                of_token[token] = []
    nothing = [10**6, 0, 10**6, 0, OPEN, 10**6]
    drawn += [(rng.random() < 0.5, nothing) for _ in range(rng.randint(0, 3))]
    rng.shuffle(drawn)
    parts: list[list[int]] = []
    part_slots: list[int] = []
    for each in of_token:
        parts.append([len(part_slots), len(each)])
        part_slots += rng.sample(each, len(each))
    joined = bool(part_slots) or rng.random() < 0.5
    return Work(
        items=_int32([item for wide, item in drawn if not wide], 6),
        wide_items=_int32([item for wide, item in drawn if wide], 6),
        parts=_int32(parts, 2),
        part_slots=torch.tensor(part_slots or [0], dtype=torch.int32),
        joined=joined,
        slots=slots,
        narrow_rows=spec.narrow_rows,
        wide_rows=spec.wide_rows,
    )


def _int32(rows: list[list[int]], width: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32).view(-1, width)
