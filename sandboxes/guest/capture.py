"""Waiting for a command or a piece of Python to end, reading its output with bounded memory."""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from typing import Callable, Dict, List, Optional, Tuple

CHUNK_BYTES = 1 << 16
_DRAIN_BYTES = 1 << 21  # more than a pipe can hold


class HostGone(Exception):
    """The host has closed the connection, so the box must end."""


class Output:
    """The head and the tail of a stream.

    Args:
        limit: How many bytes to keep.
    """

    def __init__(self, limit: int) -> None:
        self.total = 0
        self.limit = limit
        self._tail_bytes = limit // 2
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Append a piece of the stream."""
        self.total += len(data)
        room = self.limit - self._tail_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_bytes + CHUNK_BYTES:
            self._cut()

    def parts(self) -> Tuple[bytes, bytes, int]:
        """The head, the tail, and how many bytes between them were dropped."""
        self._cut()
        missing = self.total - len(self._head) - len(self._tail)
        return bytes(self._head), bytes(self._tail), missing

    def _cut(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_bytes)]


class Pump:
    """Moves bytes from and to what runs, until it has ended.

    Args:
        outputs: Where to keep what is read from each descriptor.
        feed: A descriptor, what to write to it, and what to call once that is written.
        wakers: Further descriptors; when one can be read, `ended` is asked again.
        host: The connection, which is watched for its end.
    """

    def __init__(
        self,
        outputs: Dict[int, Output],
        feed: Optional[Tuple[int, bytes, Callable[[], None]]],
        wakers: List[int],
        host: int,
    ) -> None:
        self._outputs = outputs
        self._host = host
        self._feed_fd, self._feed, self._fed = feed or (-1, b"", lambda: None)
        self._poll = select.poll()
        for fd in [*outputs, *wakers]:
            self._poll.register(fd, select.POLLIN)
        self._poll.register(host, 0)  # the end of it is always reported
        if feed:
            self._poll.register(self._feed_fd, select.POLLOUT)

    def run(self, ended: Callable[[], bool], timeout_s: float, most_bytes: int) -> str:
        """Wait.

        Args:
            ended: Whether it is over.
            timeout_s: How long to wait, in seconds.
            most_bytes: How long each output may become.

        Returns:
            "ended", "timeout" or "output_limit". After the last two it still runs.

        Raises:
            HostGone: The connection has ended.
        """
        deadline = time.monotonic() + timeout_s
        while not ended():
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            if any(output.total > most_bytes for output in self._outputs.values()):
                return "output_limit"
            for fd, _ in self._poll.poll(math.ceil(min(left, 3600) * 1000)):
                self._move(fd)
        return "ended"

    def drain(self) -> None:
        """Read what is still in the pipes, without waiting."""
        for fd, output in self._outputs.items():
            most = output.total + _DRAIN_BYTES
            while output.total < most and self._read(fd):
                pass

    def _move(self, fd: int) -> None:
        if fd == self._host:
            raise HostGone
        if fd == self._feed_fd:
            self._write()
        elif fd in self._outputs and self._read(fd) == b"":
            self._poll.unregister(fd)

    def _read(self, fd: int) -> Optional[bytes]:
        """Read once: b"" at the end of the stream, None if nothing can be read yet."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(fd, CHUNK_BYTES)
            self._outputs[fd].add(data)
            return data
        return None

    def _write(self) -> None:
        try:
            self._feed = self._feed[os.write(self._feed_fd, self._feed[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # nobody reads it
            self._feed = b""
        if not self._feed:
            self._poll.unregister(self._feed_fd)
            self._feed_fd = -1
            self._fed()
