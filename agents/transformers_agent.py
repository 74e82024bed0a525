"""An agent that samples from a Transformers model in this process.

It takes requests from any event loop, runs an engine on a thread of its own while there is work,
and hands completions back. The engine is `agents/engine/engine.py` with one of its executors, or
`agents/engine/state_engine.py` for models that cannot be driven with packed sequences.
"""

import asyncio
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from numbers import Integral
from typing import Any, Literal, get_args

import torch

from gymnast.agents.caches.own_forward import OwnForward
from gymnast.agents.engine.cpu import release_team
from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.paged_attention import supported
from gymnast.agents.engine.paged_executor import PagedExecutor
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.rows_executor import RowsExecutor
from gymnast.agents.engine.self_check import LIMITS, check_engine
from gymnast.agents.engine.state_engine import StateEngine
from gymnast.agents.engine.static_step import layer_shapes
from gymnast.agents.engine.thread import EngineThread
from gymnast.agents.loading.vocabulary import unused_ids_of
from gymnast.agents.models.adapters import folded
from gymnast.agents.models.check_model import check_model
from gymnast.agents.models.context_limits import longest_context
from gymnast.agents.models.copies import copied, take_adapters, take_weights
from gymnast.agents.models.evaluation_mode import evaluate
from gymnast.agents.models.kernel_choice import fuse_as_requested
from gymnast.agents.models.quantized import has_quantized_layers, use_exact_layers
from gymnast.agents.models.routing import Routers
from gymnast.agents.policy import PolicyWeights
from gymnast.errors import ModelError, UsageError, first_line
from gymnast.types import Completion, Sampling
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

# The longest context if neither the model nor the caller sets one.
LONGEST_CONTEXT = 2**20
# Tokens of contexts that a step computes: a GPU needs more of them to be busy, and many tokens
# take it as long as the few that decode next to them.
CPU_PREFILL_TOKENS, GPU_PREFILL_TOKENS = 1024, 4096
# Python lets a busy thread run for 5 ms before another one gets its turn, in which a GPU computes
# one or two steps. Among eight busy threads the engine's waits for eight such turns.
GPU_SWITCH_INTERVAL_S = 0.0005

ExecutorName = Literal["auto", "rows", "pages"]


class TransformersAgent:
    """Samples completions, keeping keys and values between the turns of an episode.

    The call is stateless: give the whole context each time. Contexts that begin like one seen
    before (an earlier turn, the same prompt, a common system prompt) compute only what is new.

        model, tokenizer = load_model("tiny:")
        agent = TransformersAgent(model, tokenizer)
        completion = await agent.generate(ids, Sampling(max_new_tokens=32))

    Args:
        model: A causal language model of Transformers; it is put into evaluation mode and shared,
            not copied, unless `device` is given. Call `weights_changed()` after changing its
            weights yourself, and do not call the model while completions are awaited, but in a
            block of `learning`.
        tokenizer: The model's. Ids that have a logit and are no token of it (a padded vocabulary)
            are never sampled; without a tokenizer every id may be.
        max_batch: How many completions are sampled at once; more wait their turn.
        context_length: The longest context with its completion, in tokens; by default what the
            model was made for.
        prefill_tokens: How many context tokens are computed at most between two sampled tokens;
            by default 1,024, and 4,096 on a GPU.
        kv_budget_bytes: How much memory the keys and values of all contexts take at most; by
            default a quarter of the device's memory. Contexts that are not in use are dropped
            first, the least recently used ones before others; requests wait while those in use
            fill the budget.
        device: Sample with a copy of the model on this device ("cuda:1", "cpu"), into which
            adapters are merged unless its weights are in 4 bits. Then it samples while the model is
            trained (`trainer.max_staleness`); without a copy its requests wait meanwhile.
        keep_experts: Say in each completion which experts the model chose, so that training can
            choose them again (`trainer.replay_routing`).
        executor: "pages" shares pages of keys and values between contexts, and on a GPU runs as
            CUDA graphs, with Triton's kernels for attention (the extra `gpu`); "rows" holds every
            context in one piece; "auto" takes pages on a GPU, if they pass a check there, and rows
            elsewhere.

    Attributes:
        context_length: The longest context with its completion that the model and the budget
            allow, in tokens.
        path: How the agent drives the model. "packed": the tokens of all requests in one forward
            pass. "states": through the model's own forward and cache, for models with layers whose
            attention cannot be packed (Mamba, linear attention, ALiBi); as exact, and slower. The
            requests that sample share a pass there where the model allows it, which is tried on a
            few tokens first. docs/models.md lists the families of Transformers.
        executor: What computes the steps of the path "packed": "pages" or "rows", see above; None
            on the path "states". A GPU that "pages" cannot serve samples with "rows", and the log
            has the reason.
        self_check_nats: Mean distance of the log-probabilities of "pages" from the model's own
            forward, measured on a GPU before the first request; None where it was not measured.
        unused_ids: The ids that are never sampled.
        keeps_experts: Whether completions say which experts were chosen.
        samples_while_training: Whether it has a copy; see `gymnast.agents.PolicyAgent`.
        kept_across_weights: How many requests so far got new weights while they were computed. They
            go on with the keys and values of the old ones; no other request uses these again.

    Raises:
        ModelError: The model is not a causal language model; or experts are to be kept, and it has
            none, or chooses them in a way that is not known.
        UsageError: A number is below 1, there is no such device, or the budget does not hold two
            tokens.
    """

    path: Literal["packed", "states"]
    executor: Literal["pages", "rows"] | None

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        max_batch: int = 64,
        context_length: int | None = None,
        prefill_tokens: int | None = None,
        kv_budget_bytes: int | None = None,
        device: str | None = None,
        keep_experts: bool = False,
        executor: ExecutorName = "auto",
    ) -> None:
        if executor not in get_args(ExecutorName):
            raise UsageError(
                f"executor: must be one of {', '.join(get_args(ExecutorName))}, got {executor!r}"
            )
        _check_positive(
            max_batch=max_batch,
            context_length=context_length,
            prefill_tokens=prefill_tokens,
            kv_budget_bytes=kv_budget_bytes,
        )
        evaluate(model)
        use_exact_layers(model)
        self.samples_while_training = device is not None
        self.kept_across_weights = 0
        self._reported: dict[str, float] = {}
        self._turn: Literal["rests", "samples", "waits"] = "rests"
        self._folding = ExitStack()  # holds what unfolds adapters, while they are folded
        self.model = model = model if device is None else copied(model, device)
        fuse_as_requested(model)
        self.tokenizer = tokenizer
        self.unused_ids = [] if tokenizer is None else unused_ids_of(tokenizer, model)
        longest = longest_context(model.config) or context_length or LONGEST_CONTEXT
        self.context_length = longest if context_length is None else min(context_length, longest)
        if kv_budget_bytes is None:
            kv_budget_bytes = _memory(model.device) // 4
        self.kv_budget_bytes = kv_budget_bytes
        self._made_for = self.context_length  # without the budget
        self.keeps_experts = keep_experts
        self.self_check_nats: float | None = None
        self._engine = self._choose_engine(max_batch, prefill_tokens, executor)
        self._thread = EngineThread(self._engine)
        weakref.finalize(self, self._thread.stop)  # also when Python ends

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a TransformersAgent cannot be pickled: its model stays in its process")

    def _choose_engine(
        self, max_batch: int, prefill_tokens: int | None, executor: ExecutorName
    ) -> Engine | StateEngine:
        budget = self.kv_budget_bytes
        routers = Routers(self.model) if self.keeps_experts else None
        try:
            token_bytes = check_model(self.model, self.context_length)
        except ModelError as error:
            forward = OwnForward(self.model)
            states = StateEngine(
                forward,
                max_batch=max_batch,
                prefill_tokens=prefill_tokens or CPU_PREFILL_TOKENS,
                kv_budget_bytes=budget,
                routers=routers,
                unused_ids=self.unused_ids,
            )
            shared = "sequences share" if forward.batching else "one sequence"
            logger.info("sampling on the path 'states' (%s a forward pass): %s", shared, error)
            self.path, self.executor = "states", None
            return states
        if budget < 2 * token_bytes:
            raise UsageError(
                f"kv_budget_bytes={budget}: the keys and values of one token of "
                f"{type(self.model).__name__} take {token_bytes} bytes, and a context has at least "
                "two tokens. Give more."
            )
        self.path = "packed"
        engine = self._paged_engine(max_batch, prefill_tokens, routers, executor)
        self.executor = "rows" if engine is None else "pages"
        if engine is None:
            rows = RowsExecutor(
                self.model,
                max_rows=max_batch,
                budget_tokens=budget // token_bytes,
                routers=routers,
                unused_ids=self.unused_ids,
            )
            engine = Engine(rows, prefill_tokens=prefill_tokens or CPU_PREFILL_TOKENS)
        self.context_length = min(self.context_length, engine.executor.context_length)
        return engine

    def _paged_engine(
        self,
        max_batch: int,
        prefill_tokens: int | None,
        routers: Routers | None,
        executor: ExecutorName,
    ) -> Engine | None:
        """Make an engine over pages; None where the device or the model cannot have one.

        Raises:
            UsageError: The budget does not hold two pages.
        """
        on_gpu = self.model.device.type == "cuda"
        if executor == "rows" or (executor == "auto" and not on_gpu):
            return None
        attention: Literal["kernels", "plain"] = "kernels" if on_gpu else "plain"
        if on_gpu and (reason := _unsupported(self.model)) is not None:
            logger.warning("sampling many times slower than this GPU can: %s", reason)
            return None

        def make() -> Engine:
            paged = PagedExecutor(
                self.model,
                max_rows=max_batch,
                kv_budget_bytes=self.kv_budget_bytes,
                context_length=self.context_length,
                prefill_tokens=prefill_tokens or GPU_PREFILL_TOKENS,
                attention=attention,
                routers=routers,
                unused_ids=self.unused_ids,
            )
            return Engine(paged, prefill_tokens=prefill_tokens or GPU_PREFILL_TOKENS)

        if not on_gpu:
            return make()
        try:
            engine = make()
            with folded(self.model):
                distance = check_engine(engine, self.model, engine.executor.context_length)
        except UsageError:
            raise
        except Exception as error:  # a compiler, a driver: whatever it is, sampling goes on
            reason = f"{type(error).__name__}: {first_line(error)}"
            logger.warning("sampling many times slower than this GPU can: %s", reason)
            return None
        self.self_check_nats = distance
        limit = LIMITS[self.model.dtype]
        if not distance <= limit:
            logger.warning(
                "sampling many times slower than this GPU can: in the self-check the log-"
                "probabilities of the fast path differed by %.2g nats from the model's own, and "
                "rounding explains %.2g. Please report this with your GPU and versions.",
                distance,
                limit,
            )
            return None
        logger.info("self-check of sampling: %.2g nats from the model's own forward", distance)
        sys.setswitchinterval(min(sys.getswitchinterval(), GPU_SWITCH_INTERVAL_S))
        return engine

    @property
    def version(self) -> int:
        """The version of the weights; see `gymnast.agents.PolicyAgent`."""
        return self._engine.version

    def metrics(self) -> dict[str, float]:
        """Return counts and seconds of the engine since this was last called.

        See docs/metrics.md.
        """
        if isinstance(self._engine, StateEngine):
            return {}
        times = self._engine.executor.times
        now = {
            "time/engine/device_s": times.device_s,
            "time/engine/host_s": self._engine.host_s,
        }
        if isinstance(self._engine.executor, PagedExecutor):  # rows reserve all they may need
            now |= {
                "time/engine/capture_s": times.capture_s,
                "engine/captures": float(times.captures),
                "engine/preempted": float(self._engine.preempted),
            }
        since = {name: value - self._reported.get(name, 0.0) for name, value in now.items()}
        self._reported = now
        return since

    @property
    def sampling_s(self) -> float:
        """Seconds in which a request was under way so far; see `gymnast.agents.PolicyAgent`."""
        return self._thread.busy.seconds

    @property
    def tokens_pushed(self) -> int:
        """How many tokens entered the model so far, contexts and samples together."""
        return self._engine.tokens_pushed

    @property
    def kv_held_bytes(self) -> int:
        """Bytes of the pool of pages, which stays while the agent rests; 0 without pages."""
        paged = isinstance(self._engine, Engine) and isinstance(
            self._engine.executor, PagedExecutor
        )
        return self._engine.kv_bytes if paged else 0

    @property
    def kv_bytes(self) -> int:
        """How many bytes the keys and values take now."""
        return self._engine.kv_bytes

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion of a context; see `gymnast.agents.Agent`.

        Cancelling the call frees its place at once.

        Raises:
            UsageError: The context is empty, or leaves no room for a token in the context length or
                the budget.
        """
        (completion,) = await self.generate_all([(context_ids, sampling)])
        return completion

    async def generate_all(
        self, requests: Sequence[tuple[list[int], Sampling]]
    ) -> list[Completion]:
        """Sample one completion of each context; the engine gets all requests at once, in order.

        Cancelling the call frees all their places at once.

        Raises:
            UsageError: A context is empty, or leaves no room for a token; nothing is sampled.
        """
        made = [self._request(context_ids, sampling) for context_ids, sampling in requests]
        self._thread.submit(made)
        futures = [asyncio.wrap_future(request.future) for request in made]
        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:  # if one failed, the others
                future.cancel()

    def _request(self, context_ids: list[int], sampling: Sampling) -> Request:
        length = len(context_ids)
        if self.context_length <= length < self._made_for:
            raise UsageError(
                f"generate: the context has {length} tokens, and kv_budget_bytes="
                f"{self.kv_budget_bytes} holds {self.context_length}, one sampled token included. "
                "Give the agent more, or the environment a shorter context_length."
            )
        if not 1 <= length < self.context_length:
            raise UsageError(
                f"generate: the context has {length} tokens, and must have 1 to "
                f"{self.context_length - 1} (context_length {self.context_length} with at least "
                "one sampled token). Set the environment's context_length to the agent's."
            )
        return Request(list(context_ids), sampling, Future(), limit=self.context_length - length)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Within the block adapters are folded into float weights; see `PolicyAgent`.

        Outside of all blocks the keys and values take no memory, but for a pool of pages.
        """
        if self._turn == "samples":  # within another such block
            yield
            return
        before, self._turn = self._turn, "samples"
        try:
            with self._begun() if before == "rests" else self._resumed():
                yield
        finally:
            self._turn = before

    @contextmanager
    def _begun(self) -> Iterator[None]:
        """The outermost block of `awake`."""
        with self._folding:
            self._fold()
            self.weights_changed()
            try:
                yield
            finally:
                self.wait_idle()  # a request may have been cancelled amid a forward pass
                self.weights_changed()  # the learner changes them next, and needs the memory

    @contextmanager
    def _resumed(self) -> Iterator[None]:
        """A block of `awake` in one of `learning`."""
        with self._folding:
            self._fold()
            release_team()  # the learner's
            with self._thread.resumed():
                yield

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Within the block the learner has the model; see `PolicyAgent`.

        Requests wait between two steps of the engine, with their keys and values, and adapters are
        unfolded. An agent with a copy of the model goes on sampling.
        """
        if self.samples_while_training or self._turn != "samples":
            yield
            return
        self._turn = "waits"
        try:
            with self._thread.held():
                self._folding.close()
                try:
                    yield
                finally:
                    self._fold()
                    release_team()  # the learner's
        finally:
            self._turn = "samples"

    def _fold(self) -> None:
        self._folding.enter_context(folded(self.model))

    def update_weights(self, weights: PolicyWeights, version: int) -> None:
        """Take new weights; nothing is copied if the agent samples with the trained model itself.

        Requests under way wait meanwhile, between two forward passes, and go on from the new
        weights.

        Raises:
            UsageError: The agent's own model has other weights than the trained one.
        """
        with self._thread.held():
            if weights.model is not self.model and has_quantized_layers(self.model):
                take_adapters(self.model, weights.model)
            elif weights.model is not self.model:
                take_weights(self.model, weights)
            self._engine.version = version
            self.kept_across_weights += self._engine.forget()

    def weights_changed(self) -> None:
        """Forget what was computed with the old weights, and give the memory back."""
        self._thread.forget()

    def wait_idle(self) -> None:
        """Block until the model is free; after a cancelled request, one step may still run."""
        self._thread.wait_idle()


def _unsupported(model: Any) -> str | None:
    """The reason why a model cannot sample over pages on its GPU, in a line; None if it can."""
    capability = torch.cuda.get_device_capability(model.device)
    for layer in layer_shapes(model).values():
        group = layer.heads // layer.key_heads
        sizes = (layer.head_width, layer.value_width, layer.dtype)
        reason = supported(*sizes, capability, group)
        if reason is not None:
            return reason
    return None


def _check_positive(**settings: int | None) -> None:
    for name, value in settings.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise UsageError(f"{name}: must be a whole number, got {value!r:.100}")
        if value is not None and value < 1:
            raise UsageError(f"{name}: must be >= 1, got {value}")


def _memory(device: torch.device) -> int:
    """The device's memory, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
