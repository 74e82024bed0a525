"""A process that was started in a box, and its streams.

A backend gives it the few calls of `ProcessCalls`; all else is here.
"""

import contextlib
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Literal, Self

from gymnast.errors import ProcessTimeout, SandboxDead, UsageError
from gymnast.sandboxes.contract.spec import check_seconds, check_whole
from gymnast.threads import in_background

OutputNumber = Literal[1, 2]  # stdout, stderr

MAX_LINE_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16


class ProcessCalls(ABC):
    """What a backend does for a process.

    Calls may come from any thread, several at once; to a stream one at a time.

    Every call raises `SandboxDead` once the box is closed or broken.
    """

    @abstractmethod
    def receive(self, stream: OutputNumber, max_bytes: int, timeout_s: float) -> bytes:
        """Wait for output, and return at most so much of it; b"" at the end.

        Raises:
            ProcessTimeout: There is none after `timeout_s`.
        """

    @abstractmethod
    def send(self, data: bytes, timeout_s: float) -> None:
        """Write all of it to the process's stdin.

        Raises:
            ProcessTimeout: The process has not read all of it after `timeout_s`.
            ProcessInputClosed: It has ended, or has closed its stdin.
        """

    @abstractmethod
    def close_stream(self, stream: int) -> None:
        """Close the box's end of a stream. May be called again."""

    @abstractmethod
    def wait(self, timeout_s: float) -> int:
        """Wait for the end; return the exit code.

        Raises:
            ProcessTimeout: It runs after `timeout_s`.
        """

    @abstractmethod
    def kill(self) -> None:
        """Kill the process, what is below it, and the rest of its session. May be called again."""

    @abstractmethod
    def forget(self) -> None:
        """Free what is kept of a process that has ended."""


class ProcessInput:
    """The stdin of a process: what is written is sent at once."""

    def __init__(self, calls: ProcessCalls) -> None:
        self._calls = calls
        self._turn = threading.Lock()

    def write(self, data: str | bytes, *, timeout_s: float | None = None) -> None:
        """Write all of the data, and wait until the process has room for it.

        Args:
            data: A text is written as UTF-8.
            timeout_s: How long to wait, in seconds; None: without end.

        Raises:
            ProcessTimeout: The process does not read; some of the data may have been written.
            ProcessInputClosed: It has ended, or has closed its stdin.
            SandboxDead: The box is closed or broken.
        """
        if not isinstance(data, str | bytes | bytearray | memoryview):
            raise UsageError(f"{data!r:.200} is no input for a process; it must be text or bytes")
        content = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
        with _one_at_a_time(self._turn, _seconds(timeout_s), "writes to it") as left_s:
            self._calls.send(content, left_s)

    def close(self) -> None:
        """Close it: the process reads to the end of what was written. May be called again."""
        self._calls.close_stream(0)

    async def awrite(self, data: str | bytes, *, timeout_s: float | None = None) -> None:
        """`write` without blocking the event loop."""
        await in_background(partial(self.write, data, timeout_s=timeout_s))


class ProcessOutput:
    """The stdout or the stderr of a process.

    What nobody reads stays in the box, in a pipe of 64 KiB: a process that writes more waits. So
    read both streams of a process that writes much to both, or send one of them to a file.
    """

    def __init__(self, calls: ProcessCalls, number: OutputNumber) -> None:
        self._calls, self._number = calls, number
        self._begun = bytearray()  # of a line
        self._turn = threading.Lock()

    def read(self, max_bytes: int = _PIECE_BYTES, *, timeout_s: float | None = None) -> bytes:
        """Read what there is, and wait until there is something.

        Args:
            max_bytes: How much to read at most.
            timeout_s: How long to wait, in seconds; None: without end.

        Returns:
            At least one byte; b"" at the end.

        Raises:
            ProcessTimeout: Nothing was written in time.
            SandboxDead: The box is closed or broken.
        """
        check_whole("max_bytes", max_bytes, 1)
        with _one_at_a_time(self._turn, _seconds(timeout_s), "reads it") as left_s:
            if self._begun:
                return self._take(max_bytes)
            return self._calls.receive(self._number, min(max_bytes, _PIECE_BYTES), left_s)

    def readline(self, *, max_bytes: int = MAX_LINE_BYTES, timeout_s: float | None = None) -> bytes:
        """Read a line, with the newline at its end.

        Args:
            max_bytes: Of a longer line so much is returned, and then the rest.
            timeout_s: How long to wait for the whole line, in seconds; None: without end.

        Returns:
            The line. At the end what is left, without a newline; then b"".

        Raises:
            ProcessTimeout: The line is not complete in time; what there is of it is kept.
            SandboxDead: The box is closed or broken.
        """
        check_whole("max_bytes", max_bytes, 1)
        with _one_at_a_time(self._turn, _seconds(timeout_s), "reads it") as left_s:
            deadline, searched = time.monotonic() + left_s, 0
            while True:
                end = self._begun.find(b"\n", searched, max_bytes) + 1
                if end or len(self._begun) >= max_bytes:
                    return self._take(end or max_bytes)
                searched = len(self._begun)
                left = max(0.0, deadline - time.monotonic())
                piece = self._calls.receive(self._number, _PIECE_BYTES, left)
                if not piece:
                    return self._take(max_bytes)
                self._begun += piece

    def close(self) -> None:
        """Close it: a process that writes to it is killed (SIGPIPE) or gets an error."""
        self._calls.close_stream(self._number)

    async def aread(
        self, max_bytes: int = _PIECE_BYTES, *, timeout_s: float | None = None
    ) -> bytes:
        """`read` without blocking the event loop."""
        return await in_background(partial(self.read, max_bytes, timeout_s=timeout_s))

    async def areadline(
        self, *, max_bytes: int = MAX_LINE_BYTES, timeout_s: float | None = None
    ) -> bytes:
        """`readline` without blocking the event loop."""
        return await in_background(partial(self.readline, max_bytes=max_bytes, timeout_s=timeout_s))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def _take(self, size: int) -> bytes:
        data = bytes(self._begun[:size])
        del self._begun[:size]
        return data


class Process:
    """A process that runs in a box beside its calls; `Sandbox.start` returns it.

    Its streams and its end may be waited for on any thread, while the box answers calls. It ends
    with the box at the latest. As a context manager, it is closed at the end.

    Args:
        calls: The backend's side.

    Attributes:
        stdin: What it reads.
        stdout: What it writes.
        stderr: What it writes there.
        calls: The backend's side, for a sandbox that forwards.
    """

    def __init__(self, calls: ProcessCalls) -> None:
        self.stdin = ProcessInput(calls)
        self.stdout = ProcessOutput(calls, 1)
        self.stderr = ProcessOutput(calls, 2)
        self.calls = calls

    def wait(self, *, timeout_s: float | None = None) -> int:
        """Wait for its end. A process whose output nobody reads may never end.

        Args:
            timeout_s: How long to wait, in seconds; None: without end.

        Returns:
            Its exit code; 128 + N where signal N killed it.

        Raises:
            ProcessTimeout: It still runs; it goes on.
            SandboxDead: The box is closed or broken.
        """
        return self.calls.wait(_seconds(timeout_s))

    async def await_end(self, *, timeout_s: float | None = None) -> int:
        """`wait` without blocking the event loop."""
        return await in_background(partial(self.wait, timeout_s=timeout_s))

    def kill(self) -> None:
        """Kill it (SIGKILL), what is below it, and the rest of its session, if they still run.

        What it has written can still be read.

        Raises:
            SandboxDead: The box is closed or broken.
        """
        self.calls.kill()

    def close(self) -> None:
        """Kill it, close its streams, and forget it; nothing to do if the box is gone."""
        with contextlib.suppress(SandboxDead):
            self.calls.kill()
            self.calls.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextlib.contextmanager
def _one_at_a_time(lock: threading.Lock, timeout_s: float, what: str) -> Iterator[float]:
    """Wait until no other thread uses a stream; give what is left of the time.

    Raises:
        ProcessTimeout: One does all the time.
    """
    left_s = timeout_s
    if not lock.acquire(blocking=False):
        begun = time.monotonic()
        if not lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise ProcessTimeout(f"another thread {what}, and still does after {timeout_s:g} s")
        left_s = max(0.0, timeout_s - (time.monotonic() - begun))
    try:
        yield left_s
    finally:
        lock.release()


def _seconds(timeout_s: float | None) -> float:
    return math.inf if timeout_s is None else check_seconds("timeout_s", timeout_s)
