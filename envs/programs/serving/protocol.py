"""HTTP on one connection: uvicorn's protocol, with limits, and with word of how a client ends.

This imports uvicorn, which the extra `programs` installs; `endpoint.py` imports it when one starts.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gymnast.envs.programs.serving.client import Exchange
from gymnast.visible import visible_logger

HEADER_TIMEOUT_S = 30.0
HEADER_LIMIT_BYTES = 64 * 1024
LINGER_S = 5.0
"""How long the end of a connection waits for its client to read what was written."""

_logger = visible_logger("gymnast.programs")
_logger.setLevel(logging.ERROR)  # what clients do wrong is told to them


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = self.access_logger = _logger
        self.access_log = False
        self.exchanges: list[Exchange] = []
        self._raw: Any = None
        self._header_bytes = 0
        self._in_headers = False
        self._deadline: asyncio.TimerHandle | None = None

    def exchange(self) -> Exchange:
        """Begin to answer a request that has been read."""
        self.flow.resume_reading()  # or its end would go unnoticed
        self.exchanges = [each for each in self.exchanges if each.is_open]
        made = Exchange(self._raw, self.loop)
        self.exchanges.append(made)
        return made

    def connection_made(self, transport: Any) -> None:
        """Begin; a client that says nothing is not waited for."""
        self._raw = transport
        super().connection_made(_Lingering(transport, self.loop, self._broken))
        self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Read on; headers have a limit, and nothing is read after the last answer."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_LIMIT_BYTES:
                self._end("431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """A request begins, so the answers before it have been read, unless it is pipelined."""
        super().on_message_begin()
        for each in self.exchanges:
            each.read()
        self.scope["gymnast.connection"] = self
        self._header_bytes, self._in_headers = 0, True
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self._too_slow)

    def on_headers_complete(self) -> None:
        """The headers of a request have been read."""
        self._in_headers = False
        self._stop_clock()
        super().on_headers_complete()

    def eof_received(self) -> None:
        """The client sends no more; answers that it has not taken by now are lost."""
        for each in self.exchanges:
            each.end_of_input()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has ended the connection, or broken it off."""
        self._stop_clock()
        super().connection_lost(exc)
        for each in self.exchanges:
            each.end(exc)
        self.exchanges = []

    def shutdown(self) -> None:
        """End, since the server does; nobody's reading is waited for."""
        self._raw.close()

    def _broken(self, error: Exception) -> None:
        for each in self.exchanges:
            each.end(error)

    def _too_slow(self) -> None:
        self._deadline = None
        if self._in_headers:
            self._end("408 Request Timeout")
        else:
            self._raw.close()

    def _end(self, status: str) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        self._raw.write(head.encode())
        self.transport.close()

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Lingering:
    """A transport whose `close` lets the client read to the end and say that it has done so.

    A socket that is closed while its client still sends is reset, and the answer may be lost; and
    nobody would know whether the answer was read.
    """

    def __init__(
        self,
        transport: Any,
        loop: asyncio.AbstractEventLoop,
        broken: Callable[[Exception], None],
    ) -> None:
        self._transport, self._loop, self._broken = transport, loop, broken
        self._ends = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._ends:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._ends or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self._ends = True
        try:
            self._transport.write_eof()
            self._transport.resume_reading()
        except OSError as error:  # the client has reset it, which asyncio has not noticed yet
            self._broken(error)
            self._transport.close()
            return
        self._loop.call_later(LINGER_S, self._transport.close)
