"""Sessions with servers: each is held by a task, since one task enters and leaves the SDK's scopes.

All are on one event loop (`loop.py`); whoever asks awaits the answer on a loop of their own.
"""

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2
from mcp import Client, MCPError, types
from mcp.client.streamable_http import streamable_http_client

from gymnast.envs.adapters.mcp.loop import elsewhere, kept
from gymnast.envs.adapters.mcp.programs import MAX_MESSAGE_BYTES, Program
from gymnast.envs.adapters.mcp.servers import Server
from gymnast.errors import InfrastructureError, UsageError, first_line
from gymnast.sandboxes.contract.base import Sandbox

T = TypeVar("T")

_ALIVE_TIMEOUT_S = 10.0  # until a server that is asked for its tools is taken for lost
_CLOSE_TIMEOUT_S = 15.0
_HTTP_TIMEOUT = httpx2.Timeout(30.0, read=300.0)  # the SDK's own: answers may be streams
_MAX_PAGES = 100  # of tools or resources


class Session:
    """A connection to a server. Its methods may be awaited on any event loop.

    Args:
        server: The server.
        box: Where its command is run; None: on this machine.
        shared: Whether it serves many episodes: then a call that is given up has it checked.

    Attributes:
        users: Whose episodes it serves, if it is shared.
    """

    def __init__(self, server: Server, box: Sandbox | None = None, *, shared: bool = False) -> None:
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._server, self._box, self._is_shared = server, box, shared
        self._program = self._own_program()
        self._opening: asyncio.Task[None] | None = None  # if it is shared
        self._client: Any = None
        self._owner: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._lost = ""

    async def open(self) -> None:
        """Begin the session. It is closed by `close`, even if this is cancelled.

        Raises:
            InfrastructureError: The server cannot be started or reached, or says nothing of use.
        """
        await elsewhere(self._open())

    @classmethod
    async def shared(cls, server: Server, user: Any) -> "Session":
        """The session that all share who name this server; opened if there is none that works.

        Args:
            server: The server.
            user: Who gives it back by `leave`, even if this is cancelled.

        Raises:
            InfrastructureError: As for `open`.
        """
        return await elsewhere(cls._found(server, user))

    @staticmethod
    async def leave(user: Any) -> None:
        """Give back shared sessions; one that nobody uses is closed."""
        await elsewhere(_left(user))

    async def ask(self, request: Callable[[Any], Awaitable[T]]) -> T:
        """Ask the server, and wait for its answer.

        Args:
            request: Given the SDK's client, awaits an answer.

        Raises:
            MCPError: The server's answer is an error.
            InfrastructureError: The server is gone.
        """
        return await elsewhere(self._asked(request))

    async def listed(self, method: str, key: str) -> list[Any]:
        """All that the server lists, page by page.

        Args:
            method: Of the SDK's client: "list_tools".
            key: Of what it answers: "tools".

        Raises:
            InfrastructureError: It does not answer in time, or wrongly.
        """

        async def pages(client: Any) -> list[Any]:
            found, cursor = list[Any](), None
            for _ in range(_MAX_PAGES):
                page = await getattr(client, method)(cursor=cursor, cache_mode="bypass")
                found += getattr(page, key)
                cursor = page.next_cursor
                if cursor is None:
                    break
            return found

        try:
            async with asyncio.timeout(self._server.start_timeout_s):
                return await self.ask(pages)
        except (MCPError, ValueError, TimeoutError) as error:
            raise InfrastructureError(
                f"mcp:{self._server.name}: {method} fails: {type(error).__name__}: "
                f"{first_line(error)}"
            ) from error

    @property
    def instructions(self) -> str | None:
        """What the server says about its use."""
        text: str | None = self._client.instructions
        return text

    def has(self, what: str) -> bool:
        """Whether the server says that it has "tools", "resources" or "prompts"."""
        return getattr(self._client.server_capabilities, what) is not None

    async def close(self) -> None:
        """End the session, and the process of its server."""
        await elsewhere(self._closed())

    # ---- on the loop of the sessions ----

    @staticmethod
    async def _found(server: Server, user: Any) -> "Session":
        session = _shared.get(server)
        if session is None or session.is_lost:
            session = _shared[server] = Session(server, shared=True)
            session._opening = kept(session._open())
        session.users.add(user)
        assert session._opening is not None
        await asyncio.shield(session._opening)
        return session

    @property
    def is_lost(self) -> bool:
        """Whether it can no longer be used."""
        if self._opening is not None and not self._opening.done():
            return False  # even if the server has refused the first way to open it
        return bool(self._lost) or (self._owner is not None and self._owner.done())

    async def _open(self) -> None:
        try:
            await self._opened_in("legacy")  # whose sessions have a state, and tell of changes
        except MCPError as refused:
            if refused.code in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT):
                raise self._gone("does not begin a session", refused) from refused
            self._program = self._own_program()
            try:
                await self._opened_in("auto")
            except MCPError as error:
                raise self._gone("begins no session", error) from error

    async def _opened_in(self, mode: str) -> None:
        ready = asyncio.get_running_loop().create_future()
        owner = self._owner = kept(self._hold(mode, ready))
        timeout_s = self._server.start_timeout_s
        try:
            await asyncio.wait({ready, owner}, timeout=timeout_s, return_when="FIRST_COMPLETED")
        finally:
            if not ready.done():
                owner.cancel()
                await asyncio.wait({owner})
        if ready.done():
            return
        error = None if owner.cancelled() else _cause(owner.exception())
        if isinstance(error, MCPError | UsageError):
            raise error
        if error is None:
            raise self._gone(f"does not answer within {timeout_s:g} s")
        raise self._gone("cannot be used", error) from error

    async def _hold(self, mode: str, ready: "asyncio.Future[None]") -> None:
        """Hold the connection: enter it, wait until it is not needed, and leave it."""
        async with Client(self._transport(), mode=mode, cache=None) as client:
            self._client = client
            ready.set_result(None)
            await self._over.wait()

    def _own_program(self) -> Program | None:
        return Program(self._server, self._box) if self._server.command else None

    def _transport(self) -> Any:
        return self._over_http() if self._program is None else self._program.connected()

    @asynccontextmanager
    async def _over_http(self) -> AsyncIterator[Any]:
        assert self._server.url is not None
        async with (
            httpx2.AsyncClient(headers=dict(self._server.headers), timeout=_HTTP_TIMEOUT) as http,
            streamable_http_client(
                self._server.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

    async def _asked(self, request: Callable[[Any], Awaitable[T]]) -> T:
        owner = self._owner
        assert owner is not None
        if self.is_lost:
            raise self._gone(self._lost or "is gone")
        call = kept(request(self._client))
        try:
            await asyncio.wait({call, owner}, return_when="FIRST_COMPLETED")
        except asyncio.CancelledError:
            if self._is_shared:
                kept(self._check())
            raise
        finally:
            call.cancel()
        if not call.done() or call.cancelled():
            self._lost = self._lost or "was lost"
            raise self._gone(self._lost, _cause(None if owner.cancelled() else owner.exception()))
        try:
            return call.result()
        except MCPError as error:
            if not await self._check():
                raise self._gone(self._lost, error) from error
            raise

    async def _check(self) -> bool:
        """Whether the server still answers; a session without is not used again."""
        try:
            async with asyncio.timeout(_ALIVE_TIMEOUT_S):
                await self._client.list_tools(cache_mode="bypass")
        except Exception:
            self._lost = self._lost or "does not answer any more"
            if self._program is not None:
                await self._program.settle()
            if self._is_shared:
                kept(self._closed())
        return not self.is_lost

    async def _closed(self) -> None:
        self._lost = self._lost or "is closed"
        self._over.set()
        if self._owner is not None and not self._owner.done():
            await asyncio.wait({self._owner}, timeout=_CLOSE_TIMEOUT_S)
            self._owner.cancel()

    def _gone(self, how: str, error: BaseException | None = None) -> InfrastructureError:
        why = f" ({type(error).__name__}: {first_line(error)})" if error is not None else ""
        words = "" if self._program is None else f" {self._program.last_words}"
        return InfrastructureError(f"mcp:{self._server.name}: the server {how}{why}.{words}")


_shared: dict[Server, Session] = {}
if hasattr(os, "register_at_fork"):  # a forked child has them, but not the thread of their loop
    os.register_at_fork(after_in_child=_shared.clear)


async def _left(user: Any) -> None:
    for server, session in list(_shared.items()):
        session.users.discard(user)
        if not session.users:
            del _shared[server]
            await session._closed()


def _cause(error: BaseException | None) -> BaseException | None:
    """The first exception in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
