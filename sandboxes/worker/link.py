"""The host's end of the connection to a worker: one request, one answer, within a time limit.

Each backend makes the connection; `results.py` reads the answers.
"""

import secrets
import time
from typing import Protocol

from gymnast.sandboxes.guest.protocol import BrokenFrame, Header, pack, unpack


class Stream(Protocol):
    """What a link needs of a connection; a connected `socket.socket` is one."""

    def settimeout(self, value: float | None, /) -> None:
        """Let each following call wait at most this many seconds, then raise TimeoutError."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of it."""

    def recv(self, size: int, /) -> bytes:
        """Receive at most `size` bytes; b"" at the end."""


class LinkTimeout(Exception):
    """No answer came in time."""


class LinkClosed(Exception):
    """The connection ended, or something other than the answer came."""


class Link:
    """Sends requests over a stream. Not thread-safe.

    Args:
        stream: The connection.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

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
            LinkClosed: The connection ended, or something other than the answer came.
        """
        nonce = secrets.token_hex(16)
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
        try:
            self._wait_until(deadline)
            self._stream.sendall(frame)
            answer, payload = unpack(lambda size: self._receive(size, deadline), max_answer_bytes)
        except TimeoutError:
            raise LinkTimeout(f"no answer within {timeout_s:g} s") from None
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            raise LinkClosed(f"the connection broke: {error}") from None
        except BrokenFrame as error:
            raise LinkClosed(str(error)) from None
        echoed = answer.get("nonce")
        if not isinstance(echoed, str) or not secrets.compare_digest(ascii(echoed), ascii(nonce)):
            raise LinkClosed("an answer came that does not belong to the request")
        return answer, payload

    def _receive(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._wait_until(deadline)
            piece = self._stream.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise LinkClosed("the worker has gone")
            data += piece
        return bytes(data)

    def _wait_until(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._stream.settimeout(left)


def new_nonce() -> str:
    """A random text that nobody can guess."""
    return secrets.token_hex(16)
