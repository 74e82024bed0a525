"""What became of one answer to one client: not written yet, sent, read, or lost.

A client has read an answer when its side of the connection has taken all of it and did not throw it
away: it asks again on the same connection, or ends it in order. One that ends a connection with
something unread in it resets it (TCP), and so does one that dies. Until then, bytes that the
other side has acknowledged count as read, which a reset takes back.
"""

import array
import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from enum import Enum
from typing import Any

if sys.platform != "win32":
    import fcntl
    import termios


_ENDPOINT_S = 5.0  # more than the endpoint takes to look after a connection


class State(Enum):
    """How far an answer has come."""

    waiting = "waiting"
    sending = "sending"
    sent = "sent"
    read = "read"
    lost = "lost"


class Exchange:
    """One request on one connection, and what becomes of its answer.

    All but `received` and `wake` belongs to the thread of the endpoint, which alone knows of an end
    that its system has told it, and that nothing shows any more.

    Args:
        transport: The connection's.
        loop: The endpoint's event loop.

    Attributes:
        state: How far the answer has come.
        woken: Done once there is an answer, or nobody left to take it.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.state = State.waiting
        self.woken: asyncio.Future[None] = loop.create_future()
        self._transport, self._loop = transport, loop

    @property
    def received(self) -> bool:
        """Whether the client has read the whole answer, as far as can be known by now.

        Any thread may ask; the endpoint's own finds out.
        """
        if not self.is_open or _running_loop() is self._loop:
            return self._is_received()
        asked: Future[bool] = Future()
        try:
            self._loop.call_soon_threadsafe(lambda: asked.set_result(self._is_received()))
            return asked.result(_ENDPOINT_S)
        except (RuntimeError, TimeoutError):  # the endpoint has been stopped
            return self._is_received()

    @property
    def is_open(self) -> bool:
        """Whether something may still become of the answer."""
        return self.state in (State.waiting, State.sending, State.sent)

    def wake(self) -> None:
        """Let the endpoint go on with this request. Any thread may call it."""
        with contextlib.suppress(RuntimeError):  # the endpoint has been stopped
            self._loop.call_soon_threadsafe(self._wake)

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """While this is open, the whole answer is handed to the connection."""
        if self.state is State.waiting:
            self.state = State.sending
        try:
            yield
        finally:
            if self.state is State.sending:
                # One that closes takes nothing more, unless an earlier answer still waits in it.
                waiting = self._transport.get_write_buffer_size()
                is_lost = self._transport.is_closing() and not waiting
                self.state = State.lost if is_lost else State.sent

    def read(self) -> None:
        """Note that the client goes on after the answer."""
        if self.state is State.sent:
            self.state = State.read

    def end_of_input(self) -> None:
        """Note that the client has ended its side in order: nothing more can be read later."""
        if self.state is State.sent:
            unread = unsent_bytes(self._transport, acknowledged=True)
            is_read = not unread and not _is_broken(self._transport)
            self.state = State.read if is_read else State.lost

    def end(self, error: Exception | None) -> None:
        """Note that the connection has ended.

        Args:
            error: Why; None where the client ended it in order.
        """
        if self.state is State.sent and error is None:
            self.state = State.read
        elif self.is_open:
            self.state = State.lost
            self._wake()

    def _is_received(self) -> bool:
        if self.state is State.sent and _is_broken(self._transport):  # `end` has not heard of it
            self.state = State.lost
        if self.state is State.sent:
            # What becomes of an answer on a connection that closes, `end` is about to say.
            return not self._transport.is_closing() and unsent_bytes(self._transport) == 0
        return self.state is State.read

    def _wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


def unsent_bytes(transport: Any, *, acknowledged: bool = False) -> int:
    """How many bytes that were written to a connection have not gone to its other side.

    Args:
        transport: The connection's.
        acknowledged: Count those as well whose arrival is not acknowledged. On one machine, what
            has gone has arrived; the word of it may come 40 ms later.
    """
    waiting: int = transport.get_write_buffer_size()
    if waiting or sys.platform != "linux":
        return waiting
    amount = array.array("i", [0])
    ask = termios.TIOCOUTQ if acknowledged else _SIOCOUTQNSD
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), ask, amount)
    except (OSError, ValueError):  # it is closed, and its protocol will soon be told how
        return 1
    return amount[0]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if one is running."""
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


def _is_broken(transport: Any) -> bool:
    """Whether the other side has reset a connection."""
    try:
        error: int = transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_ERROR
        )
    except OSError:
        return True
    return error != 0


_SIOCOUTQNSD = 0x894B  # Linux: bytes that are not sent, of those that TIOCOUTQ counts
