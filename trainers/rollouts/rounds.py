"""Rounds: every batch depends on the data alone, so that a seeded run repeats bit for bit.

A sampled token depends on the batch it was computed in, since one row of a matrix product differs
in its last bits between batch sizes; and which requests share a batch depends on how fast tools
are. So here no request is served before every live episode has made one. The cost: a round begins
when the slowest tool of the last one is done, and ends with its longest answer.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gymnast.agents.base import Agent
from gymnast.types import Completion, Sampling

Request = tuple[list[int], Sampling]


@dataclass(eq=False)
class _Call:
    """A call of `generate` that waits for its round to begin, or to end."""

    request: Request
    future: "asyncio.Future[Completion]"
    since: float

    @property
    def order(self) -> tuple[list[int], int]:
        """Its sort key in the round, which does not depend on when it came."""
        context_ids, sampling = self.request
        return context_ids, -1 if sampling.seed is None else sampling.seed


class Rounds:
    """An agent that serves its callers in rounds.

    A round begins when as many calls wait as there are live episodes, by the last `expect`. All of
    them go to the agent at once, sorted by context and seed, through its `generate_all` if it has
    one, and are answered together. Requests with the same context and the same seed (or none) have
    no order of their own; `collect` makes no such requests.

    `Completion.waited_s` includes the wait for the round to begin. A call that is cancelled before
    its round is left out of it. If all calls of a round are cancelled (by a deadline, say), so is
    the round, which frees its places in the agent at once.

    Args:
        agent: Samples. Its own batches must depend on the order of its requests alone.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._live = 0
        self._waiting: list[_Call] = []
        self._served: list[_Call] = []
        self._round: asyncio.Task[None] | None = None

    def expect(self, live: int) -> None:
        """Set how many episodes are live: each of them will call `generate`, or end."""
        self._live = live
        self._begin_if_complete()

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """See `gymnast.agents.Agent`."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call((context_ids, sampling), future, time.perf_counter()))
        self._begin_if_complete()
        try:
            return await future
        except asyncio.CancelledError:
            self._end_if_deserted()
            raise

    async def close(self) -> None:
        """End the round under way, if there is one."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait((self._round,))

    def _begin_if_complete(self) -> None:
        if self._waiting and len(self._waiting) >= self._live:
            self._waiting = [call for call in self._waiting if not call.future.cancelled()]
        if self._waiting and len(self._waiting) >= self._live:
            self._served = sorted(self._waiting, key=lambda call: call.order)
            self._waiting = []
            self._round = asyncio.create_task(self._serve(self._served))

    def _end_if_deserted(self) -> None:
        if self._round is None or self._round.done() or self._round.cancelling():
            return
        if all(call.future.cancelled() for call in self._served):
            self._round.cancel()

    async def _serve(self, calls: list[_Call]) -> None:
        began = time.perf_counter()
        try:
            for call, answer in zip(calls, await self._answers(calls), strict=True):
                if call.future.done():  # cancelled
                    continue
                if isinstance(answer, BaseException):
                    call.future.set_exception(answer)
                else:
                    waited_s = answer.waited_s + began - call.since
                    call.future.set_result(replace(answer, waited_s=waited_s))
        finally:
            for call in calls:  # no caller waits for ever, even if the agent was cancelled
                call.future.cancel()

    async def _answers(self, calls: list[_Call]) -> Sequence[Completion | BaseException]:
        """The agent's answer to each call, or what it raised."""
        requests = [call.request for call in calls]
        generate_all = getattr(self._agent, "generate_all", None)
        if generate_all is None:
            each = (self._agent.generate(*request) for request in requests)
            return await asyncio.gather(*each, return_exceptions=True)
        try:
            answers: Sequence[Completion] = await generate_all(requests)
            return answers
        except Exception as error:
            return [error] * len(calls)
