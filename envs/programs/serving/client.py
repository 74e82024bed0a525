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
from enum import Enum
from typing import Any

if sys.platform != "win32":
    import fcntl
    import termios


class State(Enum):
    """How far an answer has come."""

    waiting = "waiting"
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
        if self.state is State.sent:
            return unread_bytes(self._transport) == 0
        return self.state is State.read

    @property
    def is_open(self) -> bool:
        """Whether something may still become of the answer."""
        return self.state in (State.waiting, State.sent)

    def wake(self) -> None:
        """Let the endpoint go on with this request. Any thread may call it."""
        with contextlib.suppress(RuntimeError):  # the endpoint has been stopped
            self._loop.call_soon_threadsafe(self._wake)

    def sent(self) -> None:
        """Note that the whole answer has been handed to the connection."""
        if self.state is State.waiting:
            self.state = State.sent

    def read(self) -> None:
        """Note that the client goes on after the answer."""
        if self.state is State.sent:
            self.state = State.read

    def end_of_input(self) -> None:
        """Note that the client has ended its side in order: nothing more can be read later."""
        if self.state is State.sent:
            broken = self._transport.get_extra_info("socket").getsockopt(
                socket.SOL_SOCKET, socket.SO_ERROR
            )
            is_read = not broken and unread_bytes(self._transport) == 0
            self.state = State.read if is_read else State.lost

    def end(self, error: Exception | None) -> None:
        """Note that the connection has ended.

        Args:
            error: Why; None where the client ended it in order.
        """
        if self.state is State.sent and error is None:
            self.state = State.read
        elif self.state in (State.waiting, State.sent):
            self.state = State.lost
            self._wake()

    def _wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


def unread_bytes(transport: Any) -> int:
    """How many bytes that were written to a connection its other side has not acknowledged."""
    waiting: int = transport.get_write_buffer_size()
    if waiting or sys.platform != "linux":
        return waiting
    amount = array.array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, amount)
    except (OSError, ValueError):  # it is closed, and its protocol will soon be told how
        return 1
    return amount[0]
