"""The engine's scheduler: admit requests, launch a step, read one that was launched before.

A step computes one token of every decoding request and a chunk of every prefilling one, so requests
join and leave between steps and none waits for another. What computes the steps is an executor
(`executor.py`). One that works on a device of its own gets the next step before the tokens of the
last one are read: the device never waits for Python. A stop id is then seen late, and the surplus
tokens are dropped.

Where memory runs out, the request that began last is preempted: it gives its memory back, waits,
and is computed again from its tokens. What it sampled stays.

The engine runs on its caller's thread; `agents/transformers_agent.py` gives it one of its own.
"""

import math
import time
from collections import deque
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass

import torch

from gymnast.agents.engine.executor import Executor, Launch, Part, Row
from gymnast.agents.engine.request import Request

# Waiting for a prefix that another request is computing pays from this many tokens on.
WORTH_WAITING_FOR = 16
# After so many launches that the device did not wait for, fewer steps are launched at once.
CALM_LAUNCHES = 32


@dataclass(frozen=True)
class _Unread:
    """A launch whose tokens were not read, and the version of the weights that sample them."""

    launch: Launch
    version: int


class Engine:
    """Batches requests in flight over one executor.

    Args:
        executor: Of a model in evaluation mode.
        prefill_tokens: Tokens of contexts that one step computes at most.

    Attributes:
        version: Of the weights, with which tokens are tagged.
        preempted: How often a request gave its memory back so far.
        host_s: Seconds that the scheduler took so far, without waiting for the device.
    """

    def __init__(self, executor: Executor, *, prefill_tokens: int) -> None:
        self.executor = executor
        self.prefill_tokens = prefill_tokens
        self.version = 0
        self.preempted = 0
        self.host_s = 0.0
        self.waiting: list[Request] = []
        self.running: dict[Request, Row] = {}
        self._unread: deque[_Unread] = deque()
        self._level = 0  # of `executor.steps`
        self._calm = 0

    @property
    def kv_bytes(self) -> int:
        """Bytes that the keys and values take now."""
        return self.executor.nbytes

    @property
    def tokens_pushed(self) -> int:
        """Tokens that entered the model so far."""
        return self.executor.tokens_pushed

    @property
    def idle(self) -> bool:
        """True if there is nothing to do."""
        return not self.waiting and not self.running and not self._unread

    @torch.inference_mode()
    def step(self) -> None:
        """Admit what fits, launch a step, and read the oldest one if enough are under way."""
        began, waited = time.perf_counter(), self.executor.times.wait_s
        self._drop_cancelled()
        self._admit()
        parts, steps = self._next_parts()
        if parts:
            self._keep_pace()
            launch = self.executor.launch(parts, steps)
            self._unread.append(_Unread(launch, self.version))
        if self._unread and (len(self._unread) > self.executor.max_unread or not parts):
            self._read(self._unread.popleft())
        spent = time.perf_counter() - began
        self.host_s += spent - (self.executor.times.wait_s - waited)

    def forget(self) -> int:
        """Let nothing that was computed serve another request.

        Returns:
            How many requests go on with what they have.
        """
        return self.executor.forget()

    def fail(self, error: BaseException) -> None:
        """Give every request this error and forget what was computed."""
        for request in [*self.waiting, *self.running]:
            with suppress(InvalidStateError):
                request.future.set_exception(error)
        self.waiting.clear()
        self._unread.clear()
        for row in self.running.values():
            self.executor.release(row)
        self.running.clear()
        self.executor.forget()

    def _drop_cancelled(self) -> None:
        self.waiting = [request for request in self.waiting if not request.future.cancelled()]
        for request in [request for request in self.running if request.future.cancelled()]:
            self._release(request)

    def _release(self, request: Request) -> None:
        row = self.running.pop(request)
        row.request = None  # tokens that it is still sampling are dropped
        self.executor.release(row)

    def _admit(self) -> None:
        """Give waiting requests rows, oldest first, unless a prefix of theirs is on its way."""
        for request in list(self.waiting):
            if len(self.running) == self.executor.max_rows:
                break
            # The last token is always computed again: its logits give the first sample.
            match = self.executor.find(request.token_ids[:-1])
            if match.shared - match.ready >= WORTH_WAITING_FOR:
                continue
            row = self.executor.allocate(request, match)
            if row is None:
                break
            self.waiting.remove(request)
            self.running[request] = row
            request.begin()

    def _next_parts(self) -> tuple[list[Part], int]:
        """Choose what each row computes next, and how many steps are launched at once."""
        ready = [
            (request, row)
            for request, row in self.running.items()
            # Unless all tokens that it samples at most are sampled, or being sampled.
            if row.length - len(request.context) < request.most
        ]
        steps = 1
        # Whoever still waits cannot join now.
        if ready and all(row.missing == 1 for _, row in ready):
            steps = self._steps_at_once(ready)
        decoding: list[Part] = []
        prefilling: list[Part] = []
        budget = self.prefill_tokens
        for request, row in ready:  # in the order in which they began
            missing = row.missing
            count = 1 if missing == 1 else min(missing, budget)
            if count == 0 or request not in self.running:
                continue
            if not self._reserve(request, row, steps if missing == 1 else count):
                continue
            if missing == 1:
                decoding.append(Part(row, 1))
            else:
                prefilling.append(Part(row, count))
                budget -= count
        # A request that was preempted for a later one in this loop computes nothing.
        parts = [part for part in [*decoding, *prefilling] if part.row.request is not None]
        return parts, steps

    def _steps_at_once(self, decoding: list[tuple[Request, Row]]) -> int:
        """Choose the number of steps of a launch in which all rows decode."""
        # No position beyond the context length enters the model, and no step serves nobody.
        room = min(len(request.context) + request.limit - row.length for request, row in decoding)
        left = max(len(request.context) + request.most - row.length for request, row in decoding)
        numbers = self.executor.steps[: self._level + 1]
        return max((number for number in numbers if number <= min(room, left)), default=1)

    def _reserve(self, request: Request, row: Row, count: int) -> bool:
        """Get memory for a row's next tokens, if need be from those who began last.

        Returns:
            False if the row itself had to give its memory back.
        """
        while not self.executor.reserve(row, count):
            last = next(reversed(self.running))
            self._release(last)
            self.waiting.insert(0, last)
            self.preempted += 1
            if last is request:
                return False
        return True

    def _keep_pace(self) -> None:
        """Launch more steps at once where the device came to rest before Python came back."""
        if not self._unread:
            return
        if self._unread[-1].launch.done:
            self._level = min(self._level + 1, len(self.executor.steps) - 1)
            self._calm = 0
            return
        self._calm += 1
        if self._calm >= CALM_LAUNCHES:
            self._level, self._calm = max(0, self._level - 1), 0

    def _read(self, unread: _Unread) -> None:
        """Take the tokens of a launch, and resolve the requests that are finished."""
        for sampled in self.executor.read(unread.launch):
            row, request = sampled.row, sampled.row.request
            if request is None:
                continue
            count = request.accept(sampled.ids, sampled.logprobs, unread.version)
            if math.isnan(sum(sampled.logprobs[:count])):
                raise FloatingPointError("the model's logits are NaN: its weights have diverged")
            self.executor.append(row, sampled.ids[:count])
            if request.finished:
                known = len(request.context) + len(request.ids) - 1
                request.experts = self.executor.experts(row, known)
                self._release(request)
                with suppress(InvalidStateError):  # cancelled just now
                    request.future.set_result(request.completion())
