"""The host's end of the connection to a worker: requests, and the answer to each within its time.

Each backend makes the connection; `results.py` reads the answers.
"""

import secrets
import select
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from gymnast.sandboxes.guest.protocol import (
    BrokenFrame,
    Header,
    pack,
    read_header,
    read_payload,
)

_LONGEST_POLL_S = 1.0  # the stream may be closed meanwhile, and its descriptor another's
_PIECE_BYTES = 1 << 20
_LEAST_BYTES = 1 << 12  # asked for at once, as most answers are short


class Stream(Protocol):
    """What a link needs of a connection; a connected `socket.socket` is one.

    `send` and `recv` never block. Where they would, they raise BlockingIOError or its like of
    `ssl`, and the link waits for the descriptor; or InterruptedError, to be asked again at once.
    """

    def fileno(self) -> int:
        """The descriptor to wait for."""

    def setblocking(self, flag: bool, /) -> None:
        """Called once, with False."""

    def send(self, data: memoryview, /) -> int:
        """Send some of it; return how many bytes."""

    def recv(self, size: int, /) -> bytes:
        """Receive at most `size` bytes; b"" at the end."""


class LinkTimeout(Exception):
    """No answer came in time."""


class LinkClosed(Exception):
    """The connection ended, or something other than an answer came."""


@dataclass
class _Waiting:
    """A request whose answer has not come."""

    max_answer_bytes: int
    answer: tuple[Header, bytes] | None = None


class Link:
    """Sends requests over a stream, from any thread, and gives each its answer.

    No thread is kept for it: of those that wait, one reads, for the others as well. What is not
    waited for is not read.

    Args:
        stream: The connection.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._sending = threading.Lock()  # frames go out whole
        self._using = threading.Lock()  # the stream: TLS bears one call at a time
        self._changed = threading.Condition()
        self._waiting: dict[str, _Waiting] = {}
        self._somebody_reads = False
        self._received = bytearray()  # that is not read as an answer yet
        self._broken: str | None = None
        stream.setblocking(False)
        self._polls = {events: select.poll() for events in (select.POLLIN, select.POLLOUT)}
        for events, poll in self._polls.items():
            poll.register(stream.fileno(), events)

    def request(
        self, header: Header, payload: bytes = b"", *, timeout_s: float, max_answer_bytes: int
    ) -> tuple[Header, bytes]:
        """Send a request and wait for its answer.

        Args:
            header: The operation and its arguments.
            payload: The bytes that belong to it.
            timeout_s: For the request and the answer together, in seconds.
            max_answer_bytes: The largest payload that an answer may have.

        Returns:
            The answer's header and payload.

        Raises:
            LinkTimeout: No answer came in time. The link must not be used again.
            LinkClosed: The connection ended, or something other than an answer came.
        """
        nonce = new_nonce()
        return self._exchange(
            pack({**header, "nonce": nonce}, payload), nonce, timeout_s, max_answer_bytes
        )

    def boot(self, frame: bytes, nonce: str, *, timeout_s: float) -> Header:
        """Send the program and wait until it is ready; raises as `request` does."""
        return self._exchange(frame, nonce, timeout_s, 0)[0]

    def _exchange(
        self, frame: bytes, nonce: str, timeout_s: float, max_answer_bytes: int
    ) -> tuple[Header, bytes]:
        deadline = time.monotonic() + timeout_s
        waiting = _Waiting(max_answer_bytes)
        try:
            with self._changed:
                if self._broken is not None:
                    raise LinkClosed(self._broken)
                self._waiting[nonce] = waiting
            self._send(frame, deadline)
            return self._answer(waiting, deadline)
        except TimeoutError:
            self._break("an answer did not come in time")
            raise LinkTimeout(f"no answer within {timeout_s:g} s") from None
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            raise LinkClosed(self._break(f"the connection broke: {error}")) from None
        except (BrokenFrame, LinkClosed) as error:
            raise LinkClosed(self._break(str(error))) from None
        except BaseException:  # an interrupt: nobody is there any more to take the answer
            self._break("a request was given up")
            raise

    def _break(self, why: str) -> str:
        """Let all that wait know; return the first reason."""
        with self._changed:
            self._broken = self._broken or why
            self._changed.notify_all()
            return self._broken

    def _send(self, frame: bytes, deadline: float) -> None:
        data = memoryview(frame)
        if not self._sending.acquire(timeout=_left(deadline)):
            raise TimeoutError
        try:
            while data:
                try:
                    with self._using:
                        sent = self._stream.send(data[:_PIECE_BYTES])
                    data = data[sent:]
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    self._wait(select.POLLOUT, deadline)
        finally:
            self._sending.release()

    def _answer(self, waiting: _Waiting, deadline: float) -> tuple[Header, bytes]:
        """Wait for an answer, and read if nobody else does."""
        with self._changed:
            while waiting.answer is None and self._broken is None and self._somebody_reads:
                self._changed.wait(_left(deadline))
            if waiting.answer is not None:
                return waiting.answer
            if self._broken is not None:
                raise LinkClosed(self._broken)
            self._somebody_reads = True
        while waiting.answer is None:
            self._read_answer(deadline)
        # Not if reading failed: nobody may go on in the middle of a frame.
        with self._changed:
            self._somebody_reads = False
            if self._waiting:
                self._changed.notify_all()
        return waiting.answer

    def _read_answer(self, deadline: float) -> None:
        """Read an answer, of whichever request."""
        header = read_header(lambda size: self._receive(size, deadline))
        nonce = header.get("nonce")
        with self._changed:
            waiting = self._waiting.pop(nonce, None) if isinstance(nonce, str) else None
        if waiting is None:
            raise LinkClosed("an answer came that belongs to no request")
        payload = read_payload(
            lambda size: self._receive(size, deadline), header, waiting.max_answer_bytes
        )
        with self._changed:
            waiting.answer = header, payload
            self._changed.notify_all()

    def _receive(self, size: int, deadline: float) -> bytes:
        """Exactly so many bytes; what comes with them is kept for the next call."""
        received = self._received
        while len(received) < size:
            _left(deadline)
            most = max(_LEAST_BYTES, min(size - len(received), _PIECE_BYTES))
            try:
                with self._using:
                    piece = self._stream.recv(most)
            except InterruptedError:
                continue
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self._wait(select.POLLIN, deadline)
                continue
            if not piece:
                raise LinkClosed("the worker has gone")
            received += piece
        data = bytes(received[:size])
        del received[:size]
        return data

    def _wait(self, events: int, deadline: float) -> None:
        self._polls[events].poll(min(_left(deadline), _LONGEST_POLL_S) * 1000)


def _left(deadline: float) -> float:
    """The seconds that are left.

    Raises:
        TimeoutError: None.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def new_nonce() -> str:
    """A random text that nobody can guess."""
    return secrets.token_hex(16)
