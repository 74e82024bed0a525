"""Several vLLM servers as one: which of them is asked, and what happens when one is lost.

    up          takes requests
    down        was lost: its requests are sampled by the others, and it is asked for its health
                until it answers; then it gets the weights of now, and is up again
    resting     all sleep, until they are woken: the trainer has the device that they share

A call is stateless: the whole context is sent again, so a request can move to any server.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from gymnast.agents.vllm.prefixes import Prefixes, block_keys
from gymnast.agents.vllm.server import GENERATE, Request, Server
from gymnast.agents.vllm.versions import SentTooEarly
from gymnast.errors import InfrastructureError, NoServers, ServerLost
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

HEALTH_EVERY_S = 2.0
HEALTH_TIMEOUT_S = 30.0  # a server that is busy answers late
MOST_ATTEMPTS = 5

# How many requests a server may have under way, beside the one with the fewest, and still be asked
# because it has the context cached.
SPARE_FACTOR, SPARE_REQUESTS = 1.25, 8

T = TypeVar("T")


class Weights(Protocol):
    """The weights that servers are to have."""

    def has(self, server: Server) -> bool:
        """Whether a server has them, as far as is known."""
        ...

    async def load(self, server: Server) -> None:
        """Give them to a server, and note their name at it.

        Raises:
            ServerLost: The server is broken.
            ConfigError: It refuses.
        """
        ...


class Servers:
    """Sends requests to the servers that are up; lives on one event loop.

    A server takes requests while it has the weights of now: not while they are handed over.

    Args:
        servers: At least one; all are taken to be up.
        weights: That they are to have.
        probe: What a server that was lost has to answer before it is up again.
        request_timeout_s: How long one completion may take before its server counts as lost.
        lost_after_s: How long to wait for a server while none is up.
        sleep: Has a server sleep, for `rest`; loading its weights wakes it.

    Attributes:
        all: The servers.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        weights: Weights,
        probe: Request[Any],
        *,
        request_timeout_s: float,
        lost_after_s: float,
        sleep: Callable[[Server], Awaitable[None]] | None = None,
    ) -> None:
        self.all = list(servers)
        self._sleep, self._resting = sleep, False
        self._sleep_s = self._wake_s = 0.0
        self._lost = self._sent_again = 0
        self._up = list(servers)
        self._weights, self._probe = weights, probe
        self._request_timeout_s, self._lost_after_s = request_timeout_s, lost_after_s
        self._prefixes = Prefixes(self.all)
        self._changed = asyncio.Event()
        self._none_since: float | None = None
        self._handover = 0
        self._watching = [asyncio.create_task(self._watch(server)) for server in servers]

    @property
    def up(self) -> list[Server]:
        """Those that are not lost."""
        return list(self._up)

    @property
    def resting(self) -> bool:
        """Whether they sleep, from `rest` to `wake`."""
        return self._resting

    async def generate(self, request: Request[T]) -> T:
        """Have one of the servers sample; returns what is read in its answer.

        Raises:
            NoServers: None is up, and none came back in time.
            ConfigError: A server refuses the request.
            InfrastructureError: No answer of several could be used.
        """
        tried: list[Server] = []
        while True:
            server = await self._choose(request.context_ids, tried)
            tried.append(server)
            try:
                result = await self._answer(server, request)
                server.answered += 1
                return result
            except InfrastructureError as error:
                if len(tried) == MOST_ATTEMPTS:
                    raise InfrastructureError(
                        f"a completion was asked for {MOST_ATTEMPTS} times in vain: {error}"
                    ) from error
                logger.info("a request is sent again: %s", error)
                self._sent_again += 1

    async def load_all(self) -> None:
        """Give all servers that are up the weights of now; one that fails is drained.

        Raises:
            ConfigError: One refuses.
        """
        self._handover += 1
        await self._by_each(self._bring)

    async def rest(self) -> None:
        """Have all servers that are up sleep; requests wait until `wake`.

        One that fails is drained. One that comes back meanwhile is put to sleep, too.

        Raises:
            ConfigError: One refuses.
        """
        self._resting, started = True, time.monotonic()
        await self._by_each(self._put_to_sleep)
        self._sleep_s += time.monotonic() - started

    async def wake(self) -> None:
        """Wake all servers that are up, and give them the weights of now.

        Raises:
            ConfigError: One refuses.
        """
        self._resting, started = False, time.monotonic()
        await self.load_all()
        self._wake_s += time.monotonic() - started

    async def _by_each(self, act: Callable[[Server], Awaitable[None]]) -> None:
        """Have something done by all servers that are up, none of which is asked meanwhile."""
        for server in self.all:
            server.weights = ""
        servers = self.up
        failed = await asyncio.gather(*map(act, servers), return_exceptions=True)
        self._changed.set()
        for server, error in zip(servers, failed, strict=True):
            if isinstance(error, ServerLost):
                self.drain(server, error)
            elif error is not None:
                raise error

    def drain(self, server: Server, why: Exception, *, cut: bool = True) -> None:
        """Send a server nothing more until it is healthy again.

        Args:
            server: That is lost.
            why: It is.
            cut: Whether to give up what it has under way, which is then sampled elsewhere.
        """
        if server in self._up:
            self._up.remove(server)
            self._lost += 1
            logger.warning("%s takes no requests until it is well again: %s", server.url, why)
            if not self._up:
                self._none_since = time.monotonic()
            self._prefixes.forget(server)
            self._changed.set()
        server.weights = ""
        for timeout in server.in_flight if cut else ():
            if not timeout.expired():
                timeout.reschedule(0.0)

    def metrics(self) -> dict[str, float]:
        """What happened since this was last asked, under the names of docs/metrics.md."""
        found: dict[str, float] = {
            "servers/requests": sum(server.answered for server in self.all),
            "servers/lost": self._lost,
            "servers/sent_again": self._sent_again,
        }
        found |= {
            f"servers/requests/{place}": server.answered for place, server in enumerate(self.all)
        }
        if self._sleep is not None:
            found |= {"servers/sleep_s": self._sleep_s, "servers/wake_s": self._wake_s}
        self._lost = self._sent_again = 0
        self._sleep_s = self._wake_s = 0.0
        for server in self.all:
            server.answered = 0
        return {name: float(number) for name, number in found.items()}

    async def close(self) -> None:
        """End the watching, and the session."""
        for watching in self._watching:
            watching.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self.all[0].session.close()

    async def _answer(self, server: Server, request: Request[T]) -> T:
        """What a server answers.

        Raises:
            ServerLost: It is broken; and is drained.
            InfrastructureError: The answer is of no use.
        """
        while True:
            sent = server.weights
            timeout = asyncio.timeout(self._request_timeout_s)
            try:
                async with timeout:
                    server.in_flight.add(timeout)
                    body = request.make_body(sent)
                    answer = await server.ask("POST", GENERATE, body, timeout_s=None)
                    server.answered_at = time.monotonic()
            except TimeoutError as error:
                raise self._timed_out(server) from error
            except ServerLost as error:
                self.drain(server, error, cut=False)  # what else it has may still end well
                raise
            finally:
                server.in_flight.discard(timeout)
            try:
                return request.read(answer, sent)
            except SentTooEarly as newer:
                server.weights = newer.name
            except ServerLost as error:
                self.drain(server, error)
                raise

    def _timed_out(self, server: Server) -> InfrastructureError:
        """What a request that took too long means; a server that answers nobody is drained."""
        if server not in self._up:
            return ServerLost(f"{server.url}: it was lost while it sampled")
        limit_s = self._request_timeout_s
        sentence = f"{server.url}: no completion within {limit_s:g} s (request_timeout_s)"
        if time.monotonic() - server.answered_at < limit_s:
            return InfrastructureError(f"{sentence}, though others were answered")
        lost = ServerLost(sentence)
        self.drain(server, lost, cut=False)
        return lost

    async def _choose(self, context_ids: Sequence[int], tried: Sequence[Server]) -> Server:
        """Who is asked; waits while nobody can be.

        Raises:
            NoServers: None is up, and none came back in time.
        """
        while not (ready := [server for server in self._up if self._weights.has(server)]):
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._up else self._left_s()):
                    await self._changed.wait()
        return self._best(ready, context_ids, tried)

    def _best(
        self, ready: Sequence[Server], context_ids: Sequence[int], tried: Sequence[Server]
    ) -> Server:
        """Who has cached most of a context, among those that have not much more to do than another.

        A request that is under way counts: the members of a group begin at once, and only the first
        has its prompt computed.
        """
        untried = [server for server in ready if server not in tried] or ready
        most = SPARE_FACTOR * min(len(server.in_flight) for server in untried) + SPARE_REQUESTS
        free = [server for server in untried if len(server.in_flight) <= most]
        keys = block_keys(context_ids, free[0].weights)
        cached = self._prefixes.find(keys)
        best = min(free, key=lambda server: (-cached[server], len(server.in_flight)))
        self._prefixes.keep(keys, best)
        return best

    def _left_s(self) -> float:
        """How long a server may still take to come back, when none is up.

        Raises:
            NoServers: That time is over.
        """
        since = time.monotonic() if self._none_since is None else self._none_since
        left_s = self._lost_after_s - (time.monotonic() - since)
        if left_s > 0:
            return left_s
        raise NoServers(
            f"none of the vLLM servers answers ({', '.join(s.url for s in self.all)}), and none "
            f"came back within {self._lost_after_s:g} s (lost_after_s); start them and resume the "
            "run"
        )

    async def _bring(self, server: Server) -> None:
        """Give a server the weights of now, also if these change meanwhile."""
        async with server.handover:
            while not self._weights.has(server):
                handover = self._handover
                await self._weights.load(server)
                if handover != self._handover:
                    server.weights = ""

    async def _put_to_sleep(self, server: Server) -> None:
        assert self._sleep is not None, "of servers that share a device"
        self._prefixes.forget(server)
        async with server.handover:
            await self._sleep(server)

    async def _watch(self, server: Server) -> None:
        """Ask a server for its health, again and again; a lost one that is well is up again."""
        why = ""
        while True:
            await asyncio.sleep(HEALTH_EVERY_S)
            try:
                await server.ask("GET", "/health", timeout_s=HEALTH_TIMEOUT_S)
                if server in self._up:
                    continue
                if resting := self._resting:
                    await self._put_to_sleep(server)
                else:
                    await self._bring(server)
                    await self._answer(server, self._probe)
                    await self._bring(server)  # from here to the end nobody else runs
                if resting != self._resting:
                    continue  # look again
            except Exception as error:
                was_up = server in self._up
                self.drain(server, error)
                if not was_up and str(error) != why:
                    logger.warning("%s cannot be used yet: %s", server.url, error)
                why = str(error)
                continue
            self._up.append(server)
            self._none_since = None
            self._changed.set()
            does = "sleeps" if resting else "samples with the weights of now"
            logger.warning("%s is well again and %s", server.url, does)
