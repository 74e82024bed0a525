"""The executor for GPUs: pages of keys and values that contexts share, and CUDA graphs.

Every step has one of few shapes, so a graph captured once serves all steps of its kind:

    decoding    one token of each row, padded to the next size of `SIZES`
    mixed       chunks of contexts too, padded to the next of 64, 96, 128, 192, 256, ...

Rows that decode are ordered so that those which share pages are neighbours; a long shared prefix is
read once for all of them (`work_items.py`). Pages are taken one at a time, as a row needs them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from gymnast.agents.engine.executor import EngineTimes, Match, Part, Row, Sampled
from gymnast.agents.engine.paged_attention import PAGE, tiles
from gymnast.agents.engine.pages import SCRATCH, Found, Page, PagePool
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.sampling import Filters, filters_in
from gymnast.agents.engine.static_step import (
    NO_FILTERS,
    LayerShape,
    StaticStep,
    StepInputs,
    StepLaunch,
    StepShape,
    layer_shapes,
    tile_rows,
)
from gymnast.agents.engine.work_items import (
    OPEN,
    SHORTEST_PIECE,
    WORTH_JOINING,
    Segment,
    divide,
    find_shared,
)
from gymnast.agents.models.routing import Routers
from gymnast.errors import UsageError

# Steps of a launch: more, in one graph, when Python does not come back in time. A step takes a GPU
# a few milliseconds; among busy threads of tools Python takes 10 to 50 ms to come back, so that 16
# steps keep the GPU at work. After a stop id the steps of up to two launches are in vain.
STEPS = (1, 4, 16)
# Numbers of decoding rows that have a graph; beyond the last, multiples of it.
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SMALLEST_MIXED = 64  # tokens
# A wide tile has as many rows as a tensor core's instructions take at once.
WIDE_ROWS = 64
PROGRAMS_PER_PROCESSOR = 8  # of a GPU's multiprocessors, enough to hide the latency of memory
# On a CPU, where the items of a step are computed one after another.
CPU_PROCESSORS = 8


@dataclass(eq=False, kw_only=True)
class PagedRow(Row):
    """A running context over pages.

    Attributes:
        slot: Of the device's memory for the last token.
        tokens: The known tokens, and room for more, [n].
        known: The number of known tokens.
        pages: In the order of the tokens.
        filled: Pages that have memory, from the first on.
        settled: Pages whose tokens are known and computed, from the first on.
    """

    slot: int
    tokens: np.ndarray
    known: int
    pages: list[Page]
    filled: int
    settled: int


@dataclass(frozen=True)
class PagedMatch(Match):
    """A match, with its pages."""

    found: Found


@dataclass
class PagedLaunch:
    """A launch, the rows that sample in it, and where its experts belong.

    Attributes:
        launch: Of `StaticStep`.
        rows: In the order of its results.
        experts_at: Pages and places in them of the packed tokens, [2, n]; None without experts.
    """

    launch: StepLaunch
    rows: Sequence[PagedRow]
    experts_at: np.ndarray | None = None

    @property
    def done(self) -> bool:
        """See `executor.Launch`."""
        return self.launch.done


class _Plan:
    """The inputs of a step on the host; they serve many launches while the same rows decode.

    Args:
        rows: Those of the packed tokens, in their order.
        sampling: The rows that sample, in the order of the results.
        shape: Of the step.
        table_numbers: Room for the page tables.
        junk_slot: Where the tokens of padding go.
    """

    def __init__(
        self,
        rows: list[PagedRow],
        sampling: list[PagedRow],
        shape: StepShape,
        table_numbers: int,
        junk_slot: int,
    ) -> None:
        self.rows, self.sampling, self.shape = rows, sampling, shape
        self.before_tables = StepInputs.numbers_before_tables(shape)
        self.numbers = np.zeros(self.before_tables + table_numbers, dtype=np.int32)
        self.inputs = inputs = StepInputs.of(self.numbers, shape)
        self.slots = np.array([row.slot for row in rows])
        self.lengths = np.array([row.length for row in rows])  # when it was made
        # All is padding but what is written after this: it is greedy, and reads and writes scratch.
        inputs.source[:] = -1
        inputs.rows[:] = len(rows)
        inputs.sample_slot[:] = junk_slot
        inputs.settings[:] = np.array([0.0, 0.0, 1.0, 0.0, 1.0])[:, None]
        requests = [_request(row) for row in sampling]
        count = len(sampling)
        inputs.sample_slot[:count] = [row.slot for row in sampling]
        if requests:
            inputs.settings[:, :count] = np.array(
                [request.draws.settings for request in requests]
            ).T
            seeds = np.array([request.draws.seed for request in requests], dtype="<u8")
            inputs.seeds[:, :count] = seeds.view("<i4").reshape(-1, 2).T
            inputs.begins[:count] = [len(request.context) for request in requests]

    def fill_in(self, table: np.ndarray, width: int) -> np.ndarray:
        """Write what changes from launch to launch.

        Args:
            table: Pages by slot, [slots, most pages].
            width: Pages of the longest row.

        Returns:
            The numbers up to the last table.
        """
        inputs = self.inputs
        inputs.counter[0] = 0
        inputs.table_width[0] = width
        used = len(self.slots) * width
        inputs.tables[:used].reshape(-1, width)[:] = table[self.slots, :width]
        inputs.tables[used : used + width] = SCRATCH  # the row of the padding
        return self.numbers[: self.before_tables + used + width]


class PagedExecutor:
    """Runs a model over pages of keys and values; see `executor.Executor`.

    Args:
        model: A causal language model of Transformers that attends through a plan, in evaluation
            mode.
        max_rows: Requests that run at once at most.
        kv_budget_bytes: Bytes of all pages together.
        context_length: The longest context with its completion, in tokens.
        prefill_tokens: Tokens of contexts that one step computes at most.
        attention: "kernels" needs Triton and a GPU (or Triton's interpreter); "plain" is torch's.
        use_graphs: Replay CUDA graphs, where the device has them.
        routers: Of the model, to record the experts that it chooses; None records none.
        unused_ids: Ids with a logit and no token; they are never sampled.

    Attributes:
        worth_joining: Shared prefixes are read once where that spares so many bytes in a layer.

    Raises:
        UsageError: The budget does not hold two pages.
    """

    max_unread = 1

    def __init__(
        self,
        model: Any,
        *,
        max_rows: int,
        kv_budget_bytes: int,
        context_length: int,
        prefill_tokens: int,
        attention: Literal["kernels", "plain"],
        use_graphs: bool = True,
        routers: Routers | None = None,
        unused_ids: Sequence[int] = (),
    ) -> None:
        layers = layer_shapes(model)
        self.page_bytes = sum(layer.page_bytes for layer in layers.values())
        # More pages than all rows need twice over, the idle contexts included, are of no use.
        count = min(
            kv_budget_bytes // self.page_bytes, 2 * max_rows * -(-context_length // PAGE) + 2
        )
        if count < 2:
            raise UsageError(
                f"kv_budget_bytes={kv_budget_bytes}: a page of {PAGE} tokens of "
                f"{type(model).__name__} takes {self.page_bytes} bytes, and there must be room for "
                "two. Give more."
            )
        self.max_rows = max_rows
        self.worth_joining = WORTH_JOINING
        self._vocabulary = len(model.get_input_embeddings().weight)
        # Experts are read back for one step of a launch alone.
        self.steps: tuple[int, ...] = (1,) if routers is not None else STEPS
        self.tokens_pushed = 0
        self.context_length = min(context_length, (count - 1) * PAGE)
        self._pool = PagePool(count)
        self._free_slots = list(range(max_rows))[::-1]
        self._rows: set[PagedRow] = set()
        self._items_needed = attention == "kernels"
        self._set_tiles(layers, model.device)
        # A launch of several steps may go beyond the last token of a row.
        width = -(-(self.context_length + STEPS[-1]) // PAGE)
        self._table = np.zeros((max_rows + 1, width), dtype=np.int32)
        self._samples = padded_size(max_rows)
        self._most_tokens = max(mixed_size(max_rows + prefill_tokens), self._samples)
        self._plan: _Plan | None = None
        self._device_s = self._wait_s = 0.0
        self._kept_experts: np.ndarray | None = None
        if routers is not None:
            self._kept_experts = np.zeros((count, PAGE, *routers.shape), routers.kept.dtype)
        largest = self._shape(
            self._most_tokens, self._samples, NO_FILTERS, wide=True, prefilling=True
        )
        before_tables = StepInputs.numbers_before_tables(largest)
        self.static = StaticStep(
            model,
            layers,
            pages=count,
            slots=max_rows,
            most_tokens=self._most_tokens,
            most_samples=self._samples,
            most_numbers=before_tables + (max_rows + 1) * width,
            most_steps=self.steps[-1],
            unread=self.max_unread,
            attention=attention,
            routers=routers,
            unused_ids=unused_ids,
            use_graphs=use_graphs,
        )

    @property
    def nbytes(self) -> int:
        """See `Executor`."""
        return self.static.nbytes

    @property
    def times(self) -> EngineTimes:
        """See `Executor`."""
        static = self.static
        return EngineTimes(self._device_s, self._wait_s, static.capture_s, static.captures)

    # --- Memory

    def find(self, ids: np.ndarray) -> PagedMatch:
        """See `Executor`; prefixes are found in full pages."""
        found = self._pool.find(ids)
        return PagedMatch(len(found.pages) * PAGE, found.ready * PAGE, found)

    def allocate(self, request: Request, match: PagedMatch) -> PagedRow | None:
        """See `Executor`: pages for the context have to be there, none for what it samples."""
        ids = request.token_ids
        unknown = ids[(ids < 0) | (ids >= self._vocabulary)]
        if len(unknown):  # on a GPU they would end the process's use of it
            raise IndexError(
                f"id {unknown[0]} is in the context, and the model has ids from 0 to "
                f"{self._vocabulary - 1}"
            )
        shared = self._pool.use(match.found.pages[: match.found.ready])
        needed = -(-len(ids) // PAGE) - len(shared)
        if self._rows:  # the next page of each of those that run, and their contexts
            needed += sum(1 + len(row.pages) - row.filled for row in self._rows)
        if not self._free_slots or needed > self._pool.available:
            self._pool.release(shared)
            return None
        tokens = np.zeros(len(ids) + min(request.most, 512), dtype=np.int64)
        tokens[: len(ids)] = ids
        row = PagedRow(
            request=request,
            length=len(ids),
            computed=len(shared) * PAGE,
            slot=self._free_slots.pop(),
            tokens=tokens,
            known=len(ids),
            pages=shared,
            filled=len(shared),
            settled=len(shared),
        )
        self._table[row.slot] = SCRATCH
        self._table[row.slot, : len(shared)] = [page.index for page in shared]
        self._pool.promise(row.pages, ids)
        self._rows.add(row)
        if row.missing == 1:
            self.static.begin_row(row.slot, int(ids[-1]), row.computed)
        if request.sampling.repetition_penalty != 1:
            self.static.mark_seen(row.slot, ids)
        return row

    def reserve(self, row: PagedRow, count: int) -> bool:
        """See `Executor`."""
        while row.filled * PAGE < row.computed + count:
            if row.filled == len(row.pages):
                self._pool.extend(row.pages)
            page = row.pages[row.filled]
            if not self._pool.fill(page):
                return False
            self._table[row.slot, row.filled] = page.index
            row.filled += 1
        return True

    def append(self, row: PagedRow, ids: Sequence[int]) -> None:
        """See `Executor`."""
        known = row.known + len(ids)
        if known > len(row.tokens):
            row.tokens = np.concatenate([row.tokens, np.zeros(known, dtype=np.int64)])
        row.tokens[row.known : known] = ids
        row.known = known
        self._settle(row)

    def release(self, row: PagedRow) -> None:
        """See `Executor`."""
        self._settle(row)
        self._pool.release(row.pages)
        self._free_slots.append(row.slot)
        self._rows.discard(row)

    def forget(self) -> int:
        """See `Executor`."""
        self._pool.forget()
        self.static.weights_may_have_moved()
        return sum(row.computed > 0 for row in self._rows)

    def experts(self, row: PagedRow, count: int) -> np.ndarray | None:
        """See `Executor`."""
        if self._kept_experts is None:
            return None
        at = np.arange(count)
        return self._kept_experts[self._table[row.slot, at // PAGE], at % PAGE]

    def _settle(self, row: PagedRow) -> None:
        """Let other contexts find the pages whose tokens are known and computed."""
        while (row.settled + 1) * PAGE <= min(row.known, row.computed):
            page = row.pages[row.settled]
            page.ready = True
            start = row.settled * PAGE
            self._pool.enter(page, row.tokens[start : start + PAGE])
            row.settled += 1

    # --- Steps

    def launch(self, parts: Sequence[Part], steps: int) -> PagedLaunch:
        """See `Executor`."""
        if all(part.row.missing == 1 for part in parts):
            plan = self._plan = self._decoding_plan(parts, steps)
        else:
            plan, self._plan = self._mixed_plan(parts), None
        experts_at = self._experts_at(parts, plan) if self._kept_experts is not None else None
        width = max(row.filled for row in plan.rows)
        launch = self.static.launch(plan.shape, plan.fill_in(self._table, width), width)
        for part in parts:
            row: Any = part.row
            last_is_next = row.missing == part.count + 1
            row.computed += part.count * steps
            self.tokens_pushed += part.count * steps
            if last_is_next:  # it decodes next, from a token that no step has sampled
                self.static.begin_row(row.slot, int(row.tokens[row.computed]), row.computed)
        for row in plan.sampling:
            row.length += steps
        for row in plan.rows:
            self._settle(row)
        return PagedLaunch(launch, plan.sampling, experts_at)

    def read(self, launch: PagedLaunch) -> list[Sampled]:
        """See `Executor`; a NaN is among the log-probabilities then."""
        began = time.perf_counter()
        ids, logprobs = self.static.read(launch.launch)  # [K, S]
        on_cpu = launch.launch.ended is None
        self._wait_s += launch.launch.computed_s if on_cpu else time.perf_counter() - began
        self._device_s += launch.launch.computed_s
        if launch.experts_at is not None and launch.launch.experts is not None:
            assert self._kept_experts is not None
            pages, places = launch.experts_at
            self._kept_experts[pages, places] = launch.launch.experts[: len(pages)].numpy()
        columns = zip(ids.T.tolist(), logprobs.T.tolist(), strict=True)
        return [
            Sampled(row, row_ids, row_logprobs)
            for row, (row_ids, row_logprobs) in zip(launch.rows, columns, strict=False)
        ]

    def _decoding_plan(self, parts: Sequence[Part], steps: int) -> _Plan:
        """The plan of steps in which all rows decode; the last one if it still fits."""
        rows: list[Any] = [part.row for part in parts]
        plan = self._plan
        if plan is not None and plan.shape.steps == steps and set(rows) == set(plan.rows):
            grown = plan.rows[0].length - plan.lengths[0]  # all rows grow alike
            if grown < SHORTEST_PIECE // 2:
                return plan
        order, own, shared = self._decoding_segments(rows)
        rows = [rows[index] for index in order]
        size, count = padded_size(len(rows)), len(rows)
        simple = not shared and all(segment.keys <= SHORTEST_PIECE for segment in own)
        most_queries = max((segment.count for segment in shared), default=1)
        shape = self._shape(
            size,
            size,
            filters_in([_request(row).sampling for row in rows]),
            steps=steps,
            wide=not simple,
            rows_of_a_tile=most_queries * self._group,
        )
        plan = self._new_plan(rows, rows, shape)
        plan.inputs.source[:count] = plan.slots
        plan.inputs.rows[:count] = np.arange(count)
        plan.inputs.sample_at[:] = np.arange(size)
        self._write_items(plan, own, shared, [])
        return plan

    def _mixed_plan(self, parts: Sequence[Part]) -> _Plan:
        """The plan of a step in which some rows compute contexts."""
        decoding: list[Any] = [part.row for part in parts if part.row.missing == 1]
        prefilling = [part for part in parts if part.row.missing > 1]
        order, own, shared = self._decoding_segments(decoding)
        rows: list[Any] = [decoding[index] for index in order]
        count = len(rows)
        sampling = rows + [part.row for part in prefilling if part.samples]
        shape = self._shape(
            mixed_size(sum(part.count for part in parts)),
            self._samples,
            filters_in([_request(row).sampling for row in sampling]),
            wide=True,
            prefilling=True,
        )
        plan = self._new_plan(rows + [part.row for part in prefilling], sampling, shape)
        inputs = plan.inputs
        inputs.source[:count] = plan.slots[:count]
        inputs.rows[:count] = inputs.sample_at[:count] = np.arange(count)
        start, sample = count, count
        contexts: list[Segment] = []
        for number, part in enumerate(prefilling, count):
            row: Any = part.row
            end, first, last = start + part.count, row.computed, row.computed + part.count
            inputs.ids[start:end] = row.tokens[first:last]
            inputs.positions[start:end] = np.arange(first, last)
            inputs.rows[start:end] = number
            contexts.append(Segment(start, part.count, number, 0, last, last))
            if part.samples:
                inputs.sample_at[sample] = end - 1
                sample += 1
            start = end
        self._write_items(plan, own, shared, contexts)
        return plan

    def _new_plan(self, rows: list[PagedRow], sampling: list[PagedRow], shape: StepShape) -> _Plan:
        table_numbers = (len(rows) + 1) * self._table.shape[1]
        return _Plan(rows, sampling, shape, table_numbers, self.static.junk_slot)

    def _decoding_segments(
        self, rows: Sequence[PagedRow]
    ) -> tuple[list[int], list[Segment], list[Segment]]:
        """Order decoding rows; return their own segments, and those of shared prefixes."""
        if not rows or not self._items_needed:
            return list(range(len(rows))), [], []
        lengths = np.array([row.computed for row in rows])
        width = max(row.filled for row in rows)
        shared = find_shared(self._table[[row.slot for row in rows], :width], lengths)
        order = shared.order.tolist()
        begins, segments = shared.own_from, list(shared.segments)
        if shared.saved * self._layer_token_bytes < self.worth_joining:
            begins, segments = np.zeros_like(begins), []
        own = [
            Segment(place, 1, place, int(begin), OPEN, int(lengths[index] + 1 - begin))
            for place, (index, begin) in enumerate(zip(order, begins, strict=True))
        ]
        return order, own, segments

    def _write_items(
        self,
        plan: _Plan,
        own: Sequence[Segment],
        shared: Sequence[Segment],
        contexts: Sequence[Segment],
    ) -> None:
        """Divide the attention of a step into items.

        Args:
            plan: Gets the items.
            own: Of the decoding rows, what no other row shares.
            shared: The prefixes that decoding rows share.
            contexts: Of the rows that compute contexts.
        """
        if not self._items_needed:
            return
        shape = plan.shape
        fit = partial(
            divide,
            tokens=shape.tokens,
            queries_per_tile=max(1, shape.wide_rows // self._group),
            most_items=shape.items,
            most_wide_items=shape.wide_items,
            most_slots=shape.slots,
        )
        try:
            items = fit(own, [*shared, *contexts])
        except ValueError:
            # Prefixes of very many levels have more parts than there is room for. Each row alone
            # always has room: an item for each, and one for each tile of a context.
            own = [replace(part, begin=0, keys=part.begin + part.keys) for part in own]
            items = fit(own, contexts)
        plan.inputs.items[:] = items.items
        plan.inputs.wide_items[:] = items.wide_items
        plan.inputs.parts[:] = items.parts
        plan.inputs.part_slots[:] = items.part_slots

    def _experts_at(self, parts: Sequence[Part], plan: _Plan) -> np.ndarray:
        """Find the pages of the packed tokens and their places in them, [2, N]."""
        counts = {part.row: part.count for part in parts}
        found = []
        for row in plan.rows:
            at = np.arange(row.computed, row.computed + counts[row])
            found.append(np.stack([self._table[row.slot, at // PAGE], at % PAGE]))
        return np.concatenate(found, axis=1)

    def _set_tiles(self, layers: dict[int, LayerShape], device: torch.device) -> None:
        """Derive the sizes of work items from the model and the device."""
        self._group = max(layer.heads // layer.key_heads for layer in layers.values())
        widest = (
            max(tiles(layer.head_width, layer.value_width, layer.dtype))
            for layer in layers.values()
            if self._items_needed
        )
        self._widest_tile = min([WIDE_ROWS, *widest])
        self._layer_token_bytes = self.page_bytes / PAGE / len(layers)
        processors = CPU_PROCESSORS
        if device.type == "cuda":
            processors = torch.cuda.get_device_properties(device).multi_processor_count
        key_heads = min(layer.key_heads for layer in layers.values())
        self._spare_items = -(-PROGRAMS_PER_PROCESSOR * processors // key_heads)

    def _shape(
        self,
        tokens: int,
        samples: int,
        filters: Filters,
        *,
        wide: bool,
        steps: int = 1,
        prefilling: bool = False,
        rows_of_a_tile: int = WIDE_ROWS,
    ) -> StepShape:
        """The shape of a step.

        Args:
            tokens: N.
            samples: S.
            filters: In use.
            steps: K.
            wide: False if every row attends in one short item of its own.
            prefilling: Whether contexts are computed.
            rows_of_a_tile: Rows that a wide tile should have.
        """
        plain = StepShape(tokens, samples, steps, filters=filters)
        if not self._items_needed:
            return plain
        if not wide:
            return replace(plain, items=tokens)
        narrow_rows = tile_rows(self._group)
        wide_rows = max(narrow_rows, min(self._widest_tile, tile_rows(rows_of_a_tile)))
        spare = self._spare_items
        items = samples + spare
        # Each row's prefix is in tiles of several queries, or the tile is its own.
        wide_items = samples + spare
        slots = items + 16 * samples + 64
        if prefilling:
            wide_items += tokens // max(1, wide_rows // self._group) + self.max_rows
            slots += 2048
        return replace(
            plain,
            items=items,
            wide_items=wide_items,
            slots=slots,
            wide_rows=wide_rows,
            joined=True,
        )


def padded_size(rows: int) -> int:
    """Return the number of rows of the graph that serves so many."""
    largest = SIZES[-1]
    if rows > largest:
        return -(-rows // largest) * largest
    return next(size for size in SIZES if size >= rows)


def mixed_size(tokens: int) -> int:
    """Return the number of tokens of the mixed graph that serves so many."""
    power = max(SMALLEST_MIXED, 1 << (tokens - 1).bit_length())
    return 3 * power // 4 if power > SMALLEST_MIXED and tokens <= 3 * power // 4 else power


def _request(row: Row) -> Request:
    assert row.request is not None, "rows that are over compute nothing"
    return row.request
