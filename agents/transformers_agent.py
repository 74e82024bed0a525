"""An agent that samples from a Transformers model in this process.

This file is the door: it takes requests from any event loop, runs the engine on a thread of its
own while there is work, and hands completions back. The loop itself is `agents/engine.py`, or
`agents/state_engine.py` for models that cannot be driven with packed sequences.
"""

import asyncio
import atexit
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Literal

from gymnast.agents.check_model import check_model
from gymnast.agents.context_limits import longest_context
from gymnast.agents.engine import Engine, Request
from gymnast.agents.state_engine import StateEngine
from gymnast.errors import InfrastructureError, ModelError, UsageError
from gymnast.types import Completion, Sampling

logger = logging.getLogger(__name__)

# The longest context where neither the model nor the caller sets one.
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
            not copied. Call `weights_changed()` after training it, and do not call the model
            itself while completions are awaited.
        tokenizer: Not needed to sample; kept for those who want to read what was sampled.
        max_batch: How many completions are sampled at once; more wait their turn.
        context_length: The longest context with its completion, in tokens; by default what the
            model was made for.
        prefill_tokens: How many context tokens are computed between two sampled tokens at most.

    Attributes:
        path: How the model is driven, which it decides itself. "packed": the tokens of all
            requests in one forward pass. "states": one request a pass through the model's own
            forward and cache, for models in which not every layer has attention that can be
            packed (Mamba, linear attention, ALiBi); as exact, and slower. docs/models.md lists
            the families of Transformers.

    Raises:
        ModelError: The model is not a causal language model.
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
    ) -> None:
        model.eval()
        self.model = model
        self.tokenizer = tokenizer
        longest = longest_context(model) or context_length or LONGEST_CONTEXT
        self.context_length = longest if context_length is None else min(context_length, longest)
        self._engine = self._choose_engine(max_batch, prefill_tokens)
        self._arrived: list[Request] = []
        self._stale = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._resting = True

    def _choose_engine(self, max_batch: int, prefill_tokens: int) -> Engine | StateEngine:
        try:
            check_model(self.model, self.context_length)
        except ModelError as error:
            engine = StateEngine(self.model, max_batch=max_batch, prefill_tokens=prefill_tokens)
            logger.info("sampling on the slower path, one sequence a forward pass: %s", error)
            self.path = "states"
            return engine
        self.path = "packed"
        return Engine(
            self.model,
            max_batch=max_batch,
            context_length=self.context_length,
            prefill_tokens=prefill_tokens,
        )

    @property
    def tokens_pushed(self) -> int:
        """How many tokens entered the model so far, contexts and samples together."""
        return self._engine.tokens_pushed

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion of a context; see `gymnast.agents.Agent`.

        Cancelling the call frees its place at once.

        Raises:
            UsageError: The context is empty, or leaves no room for a token.
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
        self._hand_over(made)
        futures = [asyncio.wrap_future(request.future) for request in made]
        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:  # those of the others, where one failed
                future.cancel()

    def _request(self, context_ids: list[int], sampling: Sampling) -> Request:
        room = self.context_length - len(context_ids)
        if not context_ids or room < 1:
            raise UsageError(
                f"generate: the context has {len(context_ids)} tokens, and must have 1 to "
                f"{self.context_length - 1} (context_length {self.context_length} with at least "
                "one sampled token). Set the environment's context_length to the agent's."
            )
        return Request(list(context_ids), sampling, Future(), limit=room)

    def _hand_over(self, requests: Sequence[Request]) -> None:
        """Give requests to the engine's thread, which is started when needed."""
        with self._wake:
            self._arrived += requests
            self._resting = False
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="gymnast-engine", daemon=True
                )
                self._thread.start()
                atexit.register(self._stop, self._thread)
            self._wake.notify()

    def weights_changed(self) -> None:
        """Forget what was computed with the old weights."""
        with self._wake:
            self._stale = True

    def wait_idle(self) -> None:
        """Block until the model is let go; after a cancelled request, one step may still run."""
        with self._wake:
            self._wake.wait_for(lambda: self._resting)

    def _stop(self, thread: threading.Thread) -> None:
        """End the thread before Python does: one that is inside of torch would abort the process.

        That is how a run ends that is interrupted, or that an error ends, amid its episodes.
        """
        with self._wake:
            self._stopping = True
            self._wake.notify()
        thread.join()

    def _run(self) -> None:
        engine = self._engine
        while True:
            with self._wake:
                while engine.idle and not self._arrived and not self._stopping:
                    self._rest()
                    self._wake.wait()
                if self._stopping:
                    self._rest()
                    return
                engine.waiting += self._arrived
                self._arrived = []
                stale, self._stale = self._stale, False
            if stale:
                engine.cache.clear()
            try:
                engine.step()
            except Exception as error:
                lost = InfrastructureError(f"the engine failed: {type(error).__name__}: {error}")
                lost.__cause__ = error
                engine.fail(lost)

    def _rest(self) -> None:
        self._resting = True
        self._wake.notify_all()
