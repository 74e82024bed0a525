"""One step of a model over pages of keys and values, with fixed shapes: what a CUDA graph replays.

A step takes all its numbers from one array that the host sends (`StepInputs`): tokens, positions,
page tables, work items, settings of sampling. Tokens that were sampled by the step before stay on
the device, so a step can be launched before the last one is read, and replayed several times.

The same step runs eagerly on any device, with attention in plain torch where there is no Triton:
that is how it is tested without a GPU, and how models run that no graph can hold.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from gymnast.agents.engine.device_random import uniforms_by_kernel, uniforms_plain
from gymnast.agents.engine.paged_attention import (
    PAGE,
    Work,
    attend_pages,
    attend_pages_plain,
    write_pages,
    write_pages_plain,
)
from gymnast.agents.engine.sampling import Filters, RowSettings, as_unused, choose, filters_in
from gymnast.agents.models.attention import LayerSettings, planned
from gymnast.agents.models.routing import Routers
from gymnast.errors import first_line
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

NO_FILTERS = filters_in([])
SETTINGS = 5  # rows of `RowSettings` but the points
DOUBLE = 2  # a float64 takes this many int32


@dataclass(frozen=True)
class StepShape:
    """All that a CUDA graph fixes.

    Attributes:
        tokens: Packed tokens, N.
        samples: Rows that sample, S.
        steps: Steps of one launch, K; above 1 if all tokens come from slots.
        items: Narrow work items, I.
        wide_items: Wide work items, J.
        slots: Partial results, C.
        wide_rows: Rows of a wide tile.
        joined: See `paged_attention.Work`.
        filters: In use.
    """

    tokens: int
    samples: int
    steps: int = 1
    items: int = 0
    wide_items: int = 0
    slots: int = 0
    wide_rows: int = 16
    joined: bool = False
    filters: Filters = NO_FILTERS


@dataclass(frozen=True)
class StepInputs:
    """The numbers of one launch: views of one int32 array, of NumPy's or torch's.

    Attributes:
        settings: float64 [5, S]; rows of `RowSettings` but the points.
        seeds: [2, S]: low and high words.
        begins: [S]: the length of each context, at which its completion begins.
        counter: [1]: the number of steps done.
        table_width: [1]: W.
        source: [N]: the slot whose last sampled token this is; -1 where `ids` and `positions` say.
        ids: [N].
        positions: [N].
        rows: [N]: the table row of each token.
        sample_at: [S]: the packed token after which each row samples.
        sample_slot: [S]: the slot that its token goes to.
        items: [I, 6], and the next three: see `paged_attention.Work`.
        wide_items: [J, 6].
        parts: [N, 2].
        part_slots: [C].
        tables: What is left, [R * W] and more.
    """

    settings: Any
    seeds: Any
    begins: Any
    counter: Any
    table_width: Any
    source: Any
    ids: Any
    positions: Any
    rows: Any
    sample_at: Any
    sample_slot: Any
    items: Any
    wide_items: Any
    parts: Any
    part_slots: Any
    tables: Any

    @classmethod
    def of(cls, array: Any, shape: StepShape) -> "StepInputs":
        """Return the views of an array, int32 [n]."""
        float64: Any = np.float64 if isinstance(array, np.ndarray) else torch.float64
        at = 0

        def view(*size: int) -> Any:
            nonlocal at
            part = array[at : at + math.prod(size)].reshape(size)
            at += math.prod(size)
            return part

        def doubles(rows: int) -> Any:
            return view(rows, DOUBLE * shape.samples).view(float64)

        # The doubles come first: their addresses are multiples of 8 bytes.
        return cls(
            settings=doubles(SETTINGS),
            seeds=view(2, shape.samples),
            begins=view(shape.samples),
            counter=view(1),
            table_width=view(1),
            source=view(shape.tokens),
            ids=view(shape.tokens),
            positions=view(shape.tokens),
            rows=view(shape.tokens),
            sample_at=view(shape.samples),
            sample_slot=view(shape.samples),
            items=view(shape.items, 6),
            wide_items=view(shape.wide_items, 6),
            parts=view(shape.tokens, 2),
            part_slots=view(shape.slots),
            tables=array[at:],
        )

    @staticmethod
    def numbers_before_tables(shape: StepShape) -> int:
        """Count the numbers of all parts but the tables."""
        by_sample = (DOUBLE * SETTINGS + 5) * shape.samples
        items = 6 * (shape.items + shape.wide_items)
        return by_sample + 2 + 6 * shape.tokens + items + shape.slots


@dataclass(frozen=True)
class LayerShape:
    """The sizes of a layer's attention.

    Attributes:
        heads: H.
        key_heads: Hkv.
        head_width: D.
        value_width: Dv.
        dtype: Of keys and values.
    """

    heads: int
    key_heads: int
    head_width: int
    value_width: int
    dtype: torch.dtype

    @property
    def page_bytes(self) -> int:
        """Bytes of the keys and values of one page."""
        return PAGE * self.key_heads * (self.head_width + self.value_width) * self.dtype.itemsize


class _ShapeProbe:
    """A plan that notes the sizes of each layer and attends to nothing."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings
    ) -> torch.Tensor:
        sizes = (query.shape[1], key.shape[1], key.shape[2], value.shape[2])
        self.layers[settings.layer] = LayerShape(*sizes, key.dtype)
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


@torch.inference_mode()
def layer_shapes(model: Any) -> dict[int, LayerShape]:
    """Find the sizes of each layer's attention by a pass over two tokens."""
    probe = _ShapeProbe()
    ids = torch.ones(1, 2, dtype=torch.long, device=model.device)
    positions = torch.arange(2, device=model.device)[None]
    with planned(model):
        model(input_ids=ids, position_ids=positions, use_cache=False, plan=probe)
    return probe.layers


@dataclass
class StepLaunch:
    """Steps that were begun.

    Attributes:
        results: Ids and log-probabilities, float64 [K * 2 * S], once it is done.
        shape: Of the step.
        experts: Of each packed token, [N, layers, chosen], once it is done; None if none are kept.
        began: When the device begins; None on a CPU.
        ended: When everything is on the host.
        computed_s: On a CPU, the seconds it took.
    """

    results: np.ndarray
    shape: StepShape
    experts: torch.Tensor | None
    began: Any = None
    ended: Any = None
    computed_s: float = 0.0

    @property
    def done(self) -> bool:
        """True if reading it does not wait."""
        return self.ended is None or bool(self.ended.query())


class StaticStep:
    """Launches steps of a model over pages.

    Args:
        model: A causal language model of Transformers, in evaluation mode.
        layers: Of `layer_shapes`.
        pages: Pages in memory, the scratch page included.
        slots: Rows that run at once at most; one more slot takes the tokens of padding.
        most_tokens: Packed tokens of a step at most.
        most_samples: Rows of a step that sample at most, padding included.
        most_numbers: Numbers of `StepInputs` at most.
        most_steps: Steps of a launch at most.
        unread: Launches that are not read at a time.
        attention: "kernels" for Triton, "plain" for torch.
        routers: To record the experts that the model chooses.
        unused_ids: Ids that are never sampled.
        use_graphs: Replay CUDA graphs; False runs every step eagerly.

    Attributes:
        graph_error: Why steps are not captured, in a line; None if they are.
        captures: Graphs that were captured so far.
        capture_s: Seconds that their captures took, compiling their kernels included.
    """

    def __init__(
        self,
        model: Any,
        layers: dict[int, LayerShape],
        *,
        pages: int,
        slots: int,
        most_tokens: int,
        most_samples: int,
        most_numbers: int,
        most_steps: int,
        unread: int,
        attention: Literal["kernels", "plain"],
        routers: Routers | None = None,
        unused_ids: Sequence[int] = (),
        use_graphs: bool = True,
    ) -> None:
        self.model = model
        device = self.device = model.device
        self.junk_slot = slots
        self.captures = 0
        self.capture_s = 0.0
        self.graph_error: str | None = None
        self._attention = attention
        self._pages_in_use = 0  # of the longest row of a launch; for plain attention
        self._routers = routers
        self._unused = as_unused(unused_ids, device)
        self._use_graphs = use_graphs and device.type == "cuda"
        self._graphs: dict[StepShape, Any] = {}
        self._graph_pool: Any = None
        self._weights = self._where_weights_are()
        self._weights_may_have_moved = False
        self._narrow_rows = tile_rows(max(each.heads // each.key_heads for each in layers.values()))
        # Zeros: what was never written is read and hidden, and 0 * NaN would be NaN.
        self._keys = {
            layer: torch.zeros(
                (pages, each.key_heads, PAGE, each.head_width), dtype=each.dtype, device=device
            )
            for layer, each in layers.items()
        }
        self._values = {
            layer: torch.zeros(
                (pages, each.key_heads, PAGE, each.value_width), dtype=each.dtype, device=device
            )
            for layer, each in layers.items()
        }
        self.last = torch.zeros(slots + 1, dtype=torch.long, device=device)
        self.position = torch.zeros(slots + 1, dtype=torch.long, device=device)
        self._seen: torch.Tensor | None = None  # [slots + 1, V], once somebody penalises
        self._inputs = torch.zeros(most_numbers, dtype=torch.int32, device=device)
        self._results = torch.zeros(
            most_steps * 2 * most_samples, dtype=torch.float64, device=device
        )
        self._experts: torch.Tensor | None = None
        if routers is not None:
            self._experts = torch.zeros(
                (most_tokens, *routers.shape), dtype=torch.int16, device=device
            )
        with self._as_current_device():
            self._staging: deque[_Staging] = deque(
                _Staging(most_numbers, self._results.numel(), self._experts, device)
                for _ in range(unread + 2)
            )

    @property
    def nbytes(self) -> int:
        """Bytes that the keys and values take."""
        return sum(each.nbytes for each in (*self._keys.values(), *self._values.values()))

    def launch(self, shape: StepShape, numbers: np.ndarray, pages_in_use: int) -> StepLaunch:
        """Send the inputs and begin to compute.

        Whatever calls the device may lose Python's lock to another thread, so there are few calls.

        Args:
            shape: Of the step.
            numbers: `StepInputs` of this shape, cut after the last table; int32. May be changed as
                soon as this returns.
            pages_in_use: Pages of the longest row.
        """
        with self._as_current_device():
            return self._launch(shape, numbers, pages_in_use)

    def _as_current_device(self) -> AbstractContextManager[Any]:
        """Make the model's device that of this thread: Triton, streams and events use that one."""
        if self.device.type == "cuda" and torch.cuda.is_available():  # not in a test of shapes
            return torch.cuda.device(self.device)
        return nullcontext()

    def _launch(self, shape: StepShape, numbers: np.ndarray, pages_in_use: int) -> StepLaunch:
        if self._weights_may_have_moved:
            self._check_weights()
        self._pages_in_use = pages_in_use
        graph = self._graph(shape)
        staging = self._staging[0]
        self._staging.rotate(-1)
        staging.wait()
        staging.numbers[: len(numbers)] = numbers
        began = time.perf_counter()
        # In pieces of a power of two, of which there are few.
        sent = min(1 << (len(numbers) - 1).bit_length(), len(self._inputs))
        self._inputs[:sent].copy_(staging.inputs[:sent], non_blocking=True)
        if staging.began is not None:
            staging.began.record()
        if graph is None:
            for _ in range(shape.steps):
                self._step(shape)
        else:
            graph.replay()
        results = self._results[: shape.steps * 2 * shape.samples]
        host = staging.results[: len(results)]
        host.copy_(results, non_blocking=True)
        experts = None
        if self._experts is not None and staging.experts is not None:
            experts = staging.experts[: shape.tokens]
            experts.copy_(self._experts[: shape.tokens], non_blocking=True)
        launch = StepLaunch(host.numpy(), shape, experts, staging.began, staging.ended)
        if staging.ended is not None:
            staging.ended.record()
        else:
            launch.computed_s = time.perf_counter() - began
        return launch

    def read(self, launch: StepLaunch) -> tuple[np.ndarray, np.ndarray]:
        """Wait for a launch; return ids, int64 [K, S], and log-probabilities, float64 [K, S]."""
        if launch.ended is not None:
            launch.ended.synchronize()
            launch.computed_s = launch.began.elapsed_time(launch.ended) / 1000
        shape = launch.shape
        results = launch.results.reshape(shape.steps, 2, shape.samples)
        return results[:, 0].astype(np.int64), results[:, 1].copy()

    def begin_row(self, slot: int, token: int, position: int) -> None:
        """Put the next token of a row on the device, as if it had been sampled there."""
        self.last[slot].fill_(token)
        self.position[slot].fill_(position)

    def mark_seen(self, slot: int, ids: np.ndarray) -> None:
        """Note the tokens of a row's context, for repetition penalties."""
        if self._seen is None:
            vocabulary = self.model.config.get_text_config().vocab_size
            self._seen = torch.zeros(
                (self.junk_slot + 1, vocabulary), dtype=torch.bool, device=self.device
            )
        row = self._seen[slot]
        row.zero_()
        known = ids[ids < len(row)]
        row.index_fill_(0, torch.from_numpy(known).to(self.device), True)

    def weights_may_have_moved(self) -> None:
        """Look before the next launch if the weights lie elsewhere."""
        self._weights_may_have_moved = True

    def _check_weights(self) -> None:
        """Drop the graphs if the weights lie elsewhere now; values that changed need nothing."""
        self._weights_may_have_moved = False
        weights = self._where_weights_are()
        if weights != self._weights:
            self._weights = weights
            self._graphs.clear()

    def _where_weights_are(self) -> tuple[Any, ...]:
        """The addresses of all weights, and which adapters are switched off."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        switched = (getattr(m, "disable_adapters", None) for m in self.model.modules())
        return (
            *(tensor.data_ptr() for tensor in tensors),
            *(each for each in switched if isinstance(each, bool)),
        )

    def _graph(self, shape: StepShape) -> Any:
        """The graph of a shape, captured now if it is new; None runs it eagerly."""
        if not self._use_graphs:
            return None
        if shape not in self._graphs:
            began = time.perf_counter()
            try:
                self._graphs[shape] = self._capture(shape)
                self.captures += 1
                self.capture_s += time.perf_counter() - began
            except RuntimeError as error:  # a value that is read, a size that depends on values
                self._use_graphs = False
                self._graphs.clear()
                self.graph_error = first_line(error)
                logger.info(
                    "%s samples without CUDA graphs, several times slower: %s",
                    type(self.model).__name__,
                    self.graph_error,
                )
                return None
        return self._graphs[shape]

    def step_on_padding(self, shape: StepShape) -> None:
        """Compute a step of padding alone, which changes nobody's state."""
        self._inputs.zero_()
        inputs = StepInputs.of(self._inputs, shape)
        inputs.source.fill_(-1)
        inputs.sample_slot.fill_(self.junk_slot)
        self._step(shape)
        inputs.counter.zero_()

    def _capture(self, shape: StepShape) -> Any:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # This compiles kernels and makes workspaces, which a capture cannot.
            self.step_on_padding(shape)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._graph_pool, capture_error_mode="thread_local"
        ):  # other threads go on to use the device
            for _ in range(shape.steps):
                self._step(shape)
        if self._graph_pool is None:
            self._graph_pool = graph.pool()
        return graph

    def _step(self, shape: StepShape) -> None:
        """Compute one step from `self._inputs`; results go to where `launch` reads them."""
        inputs = StepInputs.of(self._inputs, shape)
        slots = inputs.source.long()
        from_slot, slots = slots >= 0, slots.clamp(min=0)
        ids = torch.where(from_slot, self.last[slots], inputs.ids.long())  # [N]
        positions = torch.where(from_slot, self.position[slots], inputs.positions.long())
        sample_at = inputs.sample_at.long()  # [S]
        plan = _PagedPlan(self._attend_with(inputs, positions, shape))
        with planned(self.model), self._recording() as chosen_experts:
            logits = self.model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                plan=plan,
                logits_to_keep=sample_at,
            ).logits[0]  # [S, V]
        step = inputs.counter.long()  # [1]
        sample_slot = inputs.sample_slot.long()  # [S]
        seen = None
        if shape.filters.penalised:
            assert self._seen is not None
            seen = self._seen[sample_slot]
        after = positions[sample_at] + 1  # of the tokens that are sampled, [S]
        uniforms = uniforms_by_kernel if self._attention == "kernels" else uniforms_plain
        points = uniforms(inputs.seeds, after - inputs.begins)
        chosen, logprobs = choose(
            logits,
            RowSettings.unpack(torch.vstack([inputs.settings, points])),
            **shape.filters._asdict(),
            seen=seen,
            unused=self._unused,
        )
        if self._seen is not None and shape.filters.penalised:
            # A scalar would be copied from the host, which a graph cannot.
            self._seen.index_put_((sample_slot, chosen), torch.ones_like(chosen, dtype=torch.bool))
        self.last.index_copy_(0, sample_slot, chosen)
        self.position.index_copy_(0, sample_slot, after)
        results = torch.stack([chosen.double(), logprobs])[None]  # [1, 2, S]
        taken = self._results[: shape.steps * results.numel()]
        taken.view(shape.steps, 2, shape.samples).index_copy_(0, step, results)
        if self._experts is not None:
            self._experts[: shape.tokens].copy_(chosen_experts[0])
        inputs.counter.add_(1)

    def _recording(self) -> AbstractContextManager[list[torch.Tensor]]:
        return nullcontext([]) if self._routers is None else self._routers.recording()

    def _attend_with(
        self, inputs: StepInputs, positions: torch.Tensor, shape: StepShape
    ) -> Callable[..., torch.Tensor]:
        """Return the attention of this step: writes keys and values, then attends."""
        where = (inputs.tables, inputs.table_width, inputs.rows, positions)
        work = Work(
            items=inputs.items,
            wide_items=inputs.wide_items,
            parts=inputs.parts,
            part_slots=inputs.part_slots,
            joined=shape.joined,
            slots=shape.slots,
            narrow_rows=self._narrow_rows,
            wide_rows=shape.wide_rows,
        )

        def attend(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings
        ) -> torch.Tensor:
            keys, values = self._keys[settings.layer], self._values[settings.layer]
            if self._attention == "kernels":
                write_pages(key, value, keys, values, *where)
                return attend_pages(query, keys, values, *where, work, settings)
            write_pages_plain(key, value, keys, values, *where)
            return attend_pages_plain(query, keys, values, *where, settings, self._pages_in_use)

        return attend


@dataclass(frozen=True)
class _PagedPlan:
    """A `gymnast.agents.models.attention.Plan`."""

    attend: Callable[..., torch.Tensor]


class _Staging:
    """Host memory of one launch, and its events."""

    def __init__(
        self, numbers: int, results: int, experts: torch.Tensor | None, device: torch.device
    ) -> None:
        on_gpu = device.type == "cuda"
        self.inputs = torch.zeros(numbers, dtype=torch.int32, pin_memory=on_gpu)
        self.numbers = self.inputs.numpy()
        self.results = torch.zeros(results, dtype=torch.float64, pin_memory=on_gpu)
        self.experts: torch.Tensor | None = None
        if experts is not None:
            self.experts = torch.zeros(experts.shape, dtype=experts.dtype, pin_memory=on_gpu)
        self.began: Any = torch.cuda.Event(enable_timing=True) if on_gpu else None
        self.ended: Any = torch.cuda.Event(enable_timing=True) if on_gpu else None

    def wait(self) -> None:
        """Wait until the device no longer uses it."""
        if self.ended is not None:
            self.ended.synchronize()


def tile_rows(heads_per_key: int) -> int:
    """Return the rows of a tile for one query: a power of 2, 16 at least."""
    return max(16, 1 << (heads_per_key - 1).bit_length())
