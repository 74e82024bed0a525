"""What an agent has open in one process: an event loop on a thread, and the servers on it."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from gymnast.agents.vllm.servers import Servers

T = TypeVar("T")
_FORKED: "list[Connection]" = []  # of the process that this one is a fork of; never touched


class Connection:
    """Runs coroutines on a loop of its own, for as long as an agent lives.

    Args:
        connect: Makes the servers, on the loop.

    Attributes:
        servers: Whom to ask.
    """

    def __init__(self, connect: Callable[[], Awaitable[Servers]]) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gymnast-vllm", daemon=True)
        self._thread.start()
        try:
            self.servers = self.run(_made(connect))
        except BaseException:
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise

    @property
    def is_ours(self) -> bool:
        """Whether it was opened by this process, not by one that this is a fork of."""
        if self._process == os.getpid():
            return True
        if self not in _FORKED:
            _FORKED.append(self)  # garbage would close what the other process uses
        return False

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine on the loop; returns a future of its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and block until it ends."""
        return self.begin(coroutine).result()

    def close(
        self,
        parts: Iterable[Callable[[], Awaitable[None]]] = (),
        ends: Iterable[Callable[[], object]] = (),
    ) -> None:
        """Cancel what is under way, let go of the servers, and end the thread.

        Args:
            parts: What else is closed on the loop, before the servers.
            ends: What is called then.
        """
        if not self.is_ours or self._loop.is_closed():
            return
        self.begin(self._end(tuple(parts)))
        if threading.current_thread() is not self._thread:  # garbage may be collected there
            self._thread.join()
        for end in ends:
            end()

    async def _end(self, parts: tuple[Callable[[], Awaitable[None]], ...]) -> None:
        try:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for close in parts:
                await close()
            await self.servers.close()
        finally:
            self._loop.stop()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()


async def _made(connect: Callable[[], Awaitable[Servers]]) -> Servers:
    return await connect()
