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
import time
from collections.abc import Iterator
from enum import Enum
from typing import Any

if sys.platform != "win32":
    import fcntl
    import termios


_WRITING_S = 1.0  # more than it takes to hand an answer to a connection


class State(Enum):
    """How far an answer has come."""

    waiting = "waiting"
    sending = "sending"
    sent = "sent"
    read = "read"
    lost = "lost"


class Exchange:
    """One request on one connection, and what becomes of its answer.

    All but `received` and `wake` belongs to the thread of the endpoint.

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
        """Whether the client has read the whole answer, as far as can be known by now."""
        while (
            self.state is State.sending
        ):  # for as long as it takes to write; it may be read by now
            time.sleep(0.0005)
        if self.state is State.sent:
            if _is_broken(self._transport):  # the endpoint's thread has not noticed it yet
                self.state = State.lost
            return self.state is not State.lost and unsent_bytes(self._transport) == 0
        return self.state is State.read

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
                self.state = State.sent

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
