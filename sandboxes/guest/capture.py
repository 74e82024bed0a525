"""Waiting for a command or a piece of Python to end, reading its output with bounded memory."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from gymnast.sandboxes.guest.loop import Loop

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
    """Moves bytes from and to what a call runs, until it has ended.

    Args:
        loop: Where the worker waits; it also sees to the host, and to what runs beside the call.
        outputs: Where to keep what is read from each descriptor.
        feed: A descriptor, what to write to it, and what to call once that is written.
        waker: One more descriptor; when it can be read, `ended` is asked again. -1: none.
    """

    def __init__(
        self,
        loop: Loop,
        outputs: Dict[int, Output],
        feed: Optional[Tuple[int, bytes, Callable[[], None]]],
        waker: int = -1,
    ) -> None:
        self._loop = loop
        self._outputs = outputs
        self._feed_fd, self._feed, self._fed = feed or (-1, b"", lambda: None)
        self._watched = [*outputs, *([waker] if waker >= 0 else [])]
        for fd in self._watched:
            loop.watch(fd, select.POLLIN, functools.partial(self._move, fd))
        if feed:
            self._write()  # most of it fits a pipe
        if self._feed_fd >= 0:
            loop.watch(self._feed_fd, select.POLLOUT, self._write)

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
        try:
            while not ended():
                if time.monotonic() >= deadline:
                    return "timeout"
                if any(output.total > most_bytes for output in self._outputs.values()):
                    return "output_limit"
                self._loop.turn(deadline)
            return "ended"
        finally:
            for fd in (*self._watched, self._feed_fd):
                self._loop.forget(fd)

    def drain(self) -> None:
        """Read what is still in the pipes, without waiting."""
        for fd, output in self._outputs.items():
            most = output.total + _DRAIN_BYTES
            while output.total < most and self._read(fd):
                pass

    def _move(self, fd: int) -> None:
        if fd in self._outputs and self._read(fd) == b"":
            self._loop.forget(fd)

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
            self._loop.forget(self._feed_fd)
            self._feed_fd = -1
            self._fed()


def run_answer(
    reason: str, code: int, oom: bool, killed: bool, note: str, outputs: List[Output]
) -> Tuple[Dict[str, Any], bytes]:
    """The answer to a call that ran something, of what it wrote."""
    parts = [output.parts() for output in outputs]
    answer = {
        "reason": reason,
        "exit_code": code,
        "oom": oom,
        "killed": killed,
        "note": note,
        "outputs": [[len(head), len(tail), missing] for head, tail, missing in parts],
    }
    return answer, b"".join(head + tail for head, tail, _ in parts)
