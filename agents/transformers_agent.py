"""An agent that samples from a Transformers model in this process.

It takes requests from any event loop, runs an engine on a thread of its own while there is work,
and hands completions back. The engine is `agents/engine/engine.py`, or
`agents/engine/state_engine.py` for models that cannot be driven with packed sequences.
"""

import asyncio
import os
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from numbers import Integral
from typing import Any, Literal

import torch

from gymnast.agents.caches.own_forward import OwnForward
from gymnast.agents.engine.engine import Engine, Request
from gymnast.agents.engine.state_engine import StateEngine
from gymnast.agents.engine.thread import EngineThread
from gymnast.agents.loading.vocabulary import unused_ids_of
from gymnast.agents.models.adapters import folded
from gymnast.agents.models.check_model import check_model
from gymnast.agents.models.context_limits import longest_context
from gymnast.agents.models.copies import copied, take_weights
from gymnast.agents.models.evaluation_mode import evaluate
from gymnast.agents.models.kernel_choice import fuse_as_requested
from gymnast.agents.models.routing import Routers
from gymnast.agents.policy import PolicyWeights
from gymnast.errors import ModelError, UsageError
from gymnast.types import Completion, Sampling
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

# The longest context if neither the model nor the caller sets one.
LONGEST_CONTEXT = 2**20


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
            weights yourself, and do not call the model while completions are awaited.
        tokenizer: The model's. Ids that have a logit and are no token of it (a padded vocabulary)
            are never sampled; without a tokenizer every id may be.
        max_batch: How many completions are sampled at once; more wait their turn.
        context_length: The longest context with its completion, in tokens; by default what the
            model was made for.
        prefill_tokens: How many context tokens are computed at most between two sampled tokens.
        kv_budget_bytes: How much memory the keys and values of all contexts take at most; by
            default a quarter of the device's memory. Contexts that are not in use are dropped
            first, the least recently used ones before others; requests wait while those in use
            fill the budget.
        device: Sample with a copy of the model on this device ("cuda:1", "cpu"), into which
            adapters are merged. Then it samples while the model is trained
            (`trainer.max_staleness`).
        keep_experts: Say in each completion which experts the model chose, so that training can
            choose them again (`trainer.replay_routing`).

    Attributes:
        context_length: The longest context with its completion that the model and the budget
            allow, in tokens.
        path: How the agent drives the model. "packed": the tokens of all requests in one forward
            pass. "states": through the model's own forward and cache, for models with layers whose
            attention cannot be packed (Mamba, linear attention, ALiBi); as exact, and slower. The
            requests that sample share a pass there where the model allows it, which is tried on a
            few tokens first. docs/models.md lists the families of Transformers.
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

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        max_batch: int = 64,
        context_length: int | None = None,
        prefill_tokens: int = 1024,
        kv_budget_bytes: int | None = None,
        device: str | None = None,
        keep_experts: bool = False,
    ) -> None:
        _check_positive(
            max_batch=max_batch,
            context_length=context_length,
            prefill_tokens=prefill_tokens,
            kv_budget_bytes=kv_budget_bytes,
        )
        evaluate(model)
        self.samples_while_training = device is not None
        self.kept_across_weights = 0
        self._awake = 0  # blocks that are open
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
        self._engine = self._choose_engine(max_batch, prefill_tokens)
        if model.device.type != "cpu":
            logger.info(
                "sampling on %s without CUDA graphs or paging: small batches wait for Python more "
                "than for the device; a server made for sampling is faster",
                model.device,
            )
        self._thread = EngineThread(self._engine)
        weakref.finalize(self, self._thread.stop)  # also when Python ends

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a TransformersAgent cannot be pickled: its model stays in its process")

    def _choose_engine(self, max_batch: int, prefill_tokens: int) -> Engine | StateEngine:
        budget = self.kv_budget_bytes
        routers = Routers(self.model) if self.keeps_experts else None
        try:
            token_bytes = check_model(self.model, self.context_length)
        except ModelError as error:
            forward = OwnForward(self.model)
            states = StateEngine(
                forward,
                max_batch=max_batch,
                prefill_tokens=prefill_tokens,
                kv_budget_bytes=budget,
                routers=routers,
                unused_ids=self.unused_ids,
            )
            shared = "sequences share" if forward.batching else "one sequence"
            logger.info("sampling on the path 'states' (%s a forward pass): %s", shared, error)
            self.path = "states"
            return states
        if budget < 2 * token_bytes:
            raise UsageError(
                f"kv_budget_bytes={budget}: the keys and values of one token of "
                f"{type(self.model).__name__} take {token_bytes} bytes, and a context has at least "
                "two tokens. Give more."
            )
        self.path = "packed"
        self.context_length = min(self.context_length, budget // token_bytes)
        return Engine(
            self.model,
            max_batch=max_batch,
            budget_tokens=budget // token_bytes,
            prefill_tokens=prefill_tokens,
            routers=routers,
            unused_ids=self.unused_ids,
        )

    @property
    def version(self) -> int:
        """The version of the weights; see `gymnast.agents.PolicyAgent`."""
        return self._engine.version

    @property
    def tokens_pushed(self) -> int:
        """How many tokens entered the model so far, contexts and samples together."""
        return self._engine.tokens_pushed

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
        """Within the block adapters are folded into the weights; see `PolicyAgent`.

        Outside of all blocks the keys and values take no memory.
        """
        self._awake += 1
        try:
            with nullcontext() if self._awake > 1 else self._alone_awake():
                yield
        finally:
            self._awake -= 1

    @contextmanager
    def _alone_awake(self) -> Iterator[None]:
        """The outermost of the blocks that are open."""
        with folded(self.model):
            self.weights_changed()
            try:
                yield
            finally:
                self.wait_idle()  # a request may have been cancelled amid a forward pass
                self.weights_changed()  # the learner changes them next, and needs the memory

    def update_weights(self, weights: PolicyWeights, version: int) -> None:
        """Take new weights; nothing is copied if the agent samples with the trained model itself.

        Requests under way wait meanwhile, between two forward passes, and go on from the new
        weights.

        Raises:
            UsageError: The agent's own model has other weights than the trained one.
        """
        with self._thread.held():
            if weights.model is not self.model:
                take_weights(self.model, weights)
            self._engine.version = version
            self.kept_across_weights += self._engine.forget()

    def weights_changed(self) -> None:
        """Forget what was computed with the old weights, and give the memory back."""
        self._thread.forget()

    def wait_idle(self) -> None:
        """Block until the model is free; after a cancelled request, one step may still run."""
        self._thread.wait_idle()


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
