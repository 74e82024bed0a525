"""The driver's side of one worker, for one collection: posts messages, and takes what it says."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from gymnast.agents.base import Agent
from gymnast.errors import InfrastructureError
from gymnast.trainers.cluster.carrying import Raised, as_raised, dumps, loads
from gymnast.trainers.cluster.messages import (
    Answer,
    Ask,
    Begin,
    Broken,
    Cancel,
    Over,
    Said,
    Thing,
    Withdraw,
)
from gymnast.trainers.cluster.starting import Started
from gymnast.trainers.rollouts.metrics import Counts


class Link:
    """One worker that plays episodes of a collection.

    Args:
        worker: The worker, which has started.
        collection: The collection's name.
        agent: Answers what the worker asks; None where it has its own.
        on_lost: Called once when the worker is gone, with what showed it.

    Attributes:
        lost: Whether the worker is gone.
        place: Where it runs, for messages.
        rows: The row indices of the rows that it has.
    """

    def __init__(
        self,
        worker: Started,
        collection: str,
        agent: Agent | None,
        on_lost: Callable[[Exception], None],
    ) -> None:
        self.lost = False
        self.rows: set[int] = set()
        self._worker, self._actor, self.place = worker, worker.actor, str(worker.place)
        self._collection, self._agent, self._on_lost = collection, agent, on_lost
        self._outbox: list[Any] = []
        self._playing: dict[int, asyncio.Future[Over | None]] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._posting: asyncio.Task[None] | None = None
        self._taking = asyncio.create_task(self._take())

    @property
    def load(self) -> int:
        """How many episodes it plays."""
        return len(self._playing)

    async def play(self, begin: Begin) -> Over | None:
        """Have an episode played; None if the worker was lost meanwhile.

        A caller that is cancelled waits until the episode has cleaned up.
        """
        future: asyncio.Future[Over | None] = asyncio.get_running_loop().create_future()
        self._playing[begin.episode] = future
        self.post(begin)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.done():
                self.post(Cancel(begin.episode))
                await asyncio.wait((future,))
            raise
        finally:
            del self._playing[begin.episode]

    def post(self, message: Any) -> None:
        """Tell the worker something, together with what else there is to tell."""
        self._outbox.append(message)
        if self._posting is None and not self.lost:
            self._posting = asyncio.create_task(self._post())

    async def close(self) -> None:
        """End the collection in the worker."""
        for task in self._answering.values():
            task.cancel()
        self._taking.cancel()
        if self._posting is not None:
            await asyncio.wait((self._posting,))
        if not self.lost:
            try:
                await self._actor.leave.remote(self._collection)
            except Exception as error:
                self._lose(error)

    async def _post(self) -> None:
        await asyncio.sleep(0)  # what else is to be told now travels along
        try:
            while self._outbox and not self.lost:
                outbox, self._outbox = self._outbox, []
                await self._actor.post.remote(self._collection, dumps(outbox))
                self._worker.known.update(m.key for m in outbox if isinstance(m, Thing))
        except Exception as error:
            self._lose(error)
        finally:
            self._posting = None

    async def _take(self) -> None:
        try:
            while True:
                for message in loads(await self._actor.take.remote(self._collection)):
                    self._take_in(message)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._lose(error)

    def _take_in(self, message: Any) -> None:
        match message:
            case Over(episode):
                future = self._playing.get(episode)
                if future is not None and not future.done():
                    future.set_result(message)
            case Ask(request):
                task = asyncio.create_task(self._answer(message))
                self._answering[request] = task
                task.add_done_callback(lambda _: self._answering.pop(request, None))
            case Withdraw(request):
                if request in self._answering:
                    self._answering[request].cancel()
            case Said(logger, level, text):
                logging.getLogger(logger).log(level, "%s: %s", self.place, text)
            case Broken(error):
                self._break(error)

    async def _answer(self, ask: Ask) -> None:
        assert self._agent is not None
        completion, error = None, None
        try:
            completion = await self._agent.generate(ask.context_ids, ask.sampling)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error = as_raised(InfrastructureError("the agent gave up"))
        except Exception as raised:
            error = as_raised(raised)
        self.post(Answer(ask.request, completion, error))

    def _break(self, error: Raised) -> None:
        """What the worker was sent cannot be used there: every episode ends with the error."""
        for episode, future in self._playing.items():
            if not future.done():
                future.set_result(Over(episode, None, Counts(), [], error))

    def _lose(self, error: Exception) -> None:
        """The worker is gone: its episodes are to be played elsewhere."""
        if self.lost:
            return
        self.lost = True
        self._taking.cancel()
        for task in self._answering.values():
            task.cancel()
        for future in self._playing.values():
            if not future.done():
                future.set_result(None)
        self._on_lost(error)
