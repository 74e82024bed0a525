"""Several vLLM servers as one: which of them is asked, and what happens when one is lost.

    up          takes requests
    down        was lost: its requests are sampled by the others, and it is asked for its health
                until it answers; then it gets the weights of now, and is up again

A call is stateless: the whole context is sent again, so a request can move to any server.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gymnast.agents.vllm.prefixes import Prefixes
from gymnast.agents.vllm.server import GENERATE, Server
from gymnast.errors import ConfigError, NoServers, ServerLost
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

HEALTH_EVERY_S = 2.0
HEALTH_TIMEOUT_S = 10.0

Load = Callable[[Server], Awaitable[None]]


class Servers:
    """Sends requests to the servers that are up; lives on one event loop.

    Args:
        servers: At least one; all are taken to be up.
        load: Gives a server the weights of now.
        request_timeout_s: How long one completion may take before its server counts as lost.
        lost_after_s: How long to wait for a server while none is up.

    Attributes:
        all: The servers.
        lost: How often one was lost.
        moved: How many requests were sampled by another server than they were sent to first.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        load: Load,
        *,
        request_timeout_s: float,
        lost_after_s: float,
    ) -> None:
        self.all = list(servers)
        self.lost = self.moved = 0
        self._up = list(servers)
        self._load = load
        self._request_timeout_s, self._lost_after_s = request_timeout_s, lost_after_s
        self._prefixes = Prefixes[Server]()
        self._changed = asyncio.Event()
        self._none_since: float | None = None
        self._watching = asyncio.create_task(self._watch())

    @property
    def up(self) -> list[Server]:
        """Those that take requests now."""
        return list(self._up)

    async def generate(self, make_body: Callable[[], Mapping[str, Any]]) -> Any:
        """Have one of the servers sample; returns its answer.

        Args:
            make_body: Makes the body of the request, anew for every attempt.

        Raises:
            NoServers: None is up, and none came back in time.
            ConfigError: A server refuses the request.
        """
        while True:
            body = make_body()
            server = await self._choose(body["token_ids"])
            task = asyncio.create_task(
                server.ask("POST", GENERATE, body, timeout_s=self._request_timeout_s)
            )
            server.in_flight.add(task)
            try:
                answer = await task
            except ServerLost as error:
                self.drain(server, error)
                self.moved += 1
                continue
            except asyncio.CancelledError:
                if server in self._up or not task.cancelled() or _cancelling():
                    task.cancel()
                    raise
                self.moved += 1  # the server was drained
                continue
            finally:
                server.in_flight.discard(task)
            self._prefixes.keep([*body["token_ids"], *_sampled(answer)], server)
            return answer

    async def load_all(self) -> None:
        """Give all servers that are up the weights of now; one that fails is drained."""
        servers = self.up
        loads = (self._load(server) for server in servers)
        failed = await asyncio.gather(*loads, return_exceptions=True)
        for server, error in zip(servers, failed, strict=True):
            if isinstance(error, ServerLost):
                self.drain(server, error)
            elif error is not None:
                raise error

    def drain(self, server: Server, why: Exception) -> None:
        """Send a server nothing more; what it has under way is sampled elsewhere."""
        if server not in self._up:
            return
        self._up.remove(server)
        self.lost += 1
        logger.warning("%s is lost, and its requests are sampled elsewhere: %s", server.url, why)
        if not self._up:
            self._none_since = time.monotonic()
        self._prefixes.forget(server)
        for task in list(server.in_flight):
            task.cancel()

    async def close(self) -> None:
        """End the watching, and the session."""
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self.all[0].session.close()

    async def _choose(self, context_ids: Sequence[int]) -> Server:
        """The server that knows most of a context, unless it has much more to do than another."""
        while not self._up:
            self._changed.clear()
            since = self._none_since or time.monotonic()
            left_s = self._lost_after_s - (time.monotonic() - since)
            if left_s <= 0:
                raise NoServers(
                    f"none of the vLLM servers answers ({', '.join(s.url for s in self.all)}), and "
                    f"none came back within {self._lost_after_s:g} s; start them and resume the run"
                )
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
        least = min(len(server.in_flight) for server in self._up)
        known = self._prefixes.find(context_ids)
        if known in self._up and len(known.in_flight) <= 2 * least + 8:
            return known
        return next(server for server in self._up if len(server.in_flight) == least)

    async def _watch(self) -> None:
        """Ask every server for its health, again and again."""
        while True:
            await asyncio.sleep(HEALTH_EVERY_S)
            await asyncio.gather(*(self._check(server) for server in self.all))

    async def _check(self, server: Server) -> None:
        try:
            await server.ask("GET", "/health", timeout_s=HEALTH_TIMEOUT_S)
            if server in self._up:
                return
            await self._load(server)
        except (ServerLost, ConfigError) as error:
            self.drain(server, error)
            return
        self._up.append(server)
        self._none_since = None
        self._changed.set()
        logger.warning("%s is healthy again and samples with the weights of now", server.url)


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


def _sampled(answer: Any) -> list[int]:
    """The ids in an answer; whether they can be learned from is checked elsewhere."""
    try:
        return [int(each) for each in answer["choices"][0]["token_ids"]]
    except (KeyError, IndexError, TypeError, ValueError):
        return []
