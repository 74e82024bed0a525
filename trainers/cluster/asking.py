"""An agent in a worker that asks the one in the driver's process."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from gymnast.trainers.cluster.messages import Answer, Ask, Withdraw
from gymnast.types import Completion, Sampling


class AskingAgent:
    """Has its completions sampled where the agent is.

    Args:
        say: Sends a message to the driver.
    """

    def __init__(self, say: Callable[[Any], None]) -> None:
        self._say = say
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """See `gymnast.agents.Agent`."""
        request = next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request] = future
        self._say(Ask(request, list(context_ids), sampling))  # the outbox may wait: a copy
        try:
            answer = await future
        except asyncio.CancelledError:
            self._say(Withdraw(request))
            raise
        finally:
            del self._waiting[request]
        if answer.completion is None:
            assert answer.error is not None
            raise answer.error.error
        return answer.completion

    def answered(self, answer: Answer) -> None:
        """Hand an answer to whoever waits for it; nobody may."""
        future = self._waiting.get(answer.request)
        if future is not None and not future.done():
            future.set_result(answer)
