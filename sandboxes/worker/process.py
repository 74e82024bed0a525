"""A process that a worker has started: the host's side of `guest/started.py`."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gymnast.errors import ProcessInputClosed, ProcessTimeout
from gymnast.sandboxes.contract.process import OutputNumber, ProcessCalls
from gymnast.sandboxes.guest.protocol import Header
from gymnast.sandboxes.worker.results import field

# Sends a request beside the calls: header, payload, the largest answer, and how long the worker may
# wait before it answers, in seconds.
Ask = Callable[[Header, bytes, int, float], tuple[Header, bytes]]

_LONGEST_WAIT_S = 60.0  # then the worker is asked again
_PIECE_BYTES = 1 << 16


class WorkerProcess(ProcessCalls):
    """See `ProcessCalls`.

    Args:
        ask: Sends a request to the worker; it raises `SandboxDead`.
        process: The worker's number of the process.
        name: What the process is in messages.
    """

    def __init__(self, ask: Ask, process: int, name: str) -> None:
        self._ask, self._process, self._name = ask, process, name
        self._streams = [threading.Lock() for _ in range(3)]  # one request a stream at a time
        self._exit_code: int | None = None

    def receive(self, stream: OutputNumber, max_bytes: int, timeout_s: float) -> bytes:
        """See `ProcessCalls.receive`."""
        what = f"wrote nothing to {'stdout' if stream == 1 else 'stderr'}"
        with self._using(stream, timeout_s, what) as waits_s:
            for wait_s in waits_s:
                header = {"op": "receive", "stream": stream, "most": max_bytes}
                answer, data = self._request(header, b"", max_bytes, wait_s)
                if data or field(answer, "end", bool):
                    return data
        raise self._late(what, timeout_s)

    def send(self, data: bytes, timeout_s: float) -> None:
        """See `ProcessCalls.send`."""
        left, what = memoryview(data), "did not read its stdin"
        with self._using(0, timeout_s, what) as waits_s:
            for wait_s in waits_s:
                answer, _ = self._request({"op": "send"}, bytes(left[:_PIECE_BYTES]), 0, wait_s)
                left = left[field(answer, "taken", int) :]
                if not field(answer, "open", bool):
                    raise ProcessInputClosed(
                        f"{self._name} has ended or closed its stdin, with {len(left)} of "
                        f"{len(data)} bytes to be written; see its stderr and its exit code"
                    )
                if not left:
                    return
        written = f", {len(left)} of {len(data)} bytes are left"
        raise self._late(what + written, timeout_s)

    def close_stream(self, stream: int) -> None:
        """See `ProcessCalls.close_stream`."""
        self._request({"op": "close", "stream": stream}, b"", 0, 0.0)

    def wait(self, timeout_s: float) -> int:
        """See `ProcessCalls.wait`."""
        for wait_s in _waits(timeout_s):
            if self._exit_code is not None:
                break
            answer, _ = self._request({"op": "wait"}, b"", 0, wait_s)
            if answer.get("exit_code") is not None:
                self._exit_code = field(answer, "exit_code", int)
        if self._exit_code is None:
            raise self._late("still runs", timeout_s)
        return self._exit_code

    def kill(self) -> None:
        """See `ProcessCalls.kill`."""
        if self._exit_code is None:
            self._request({"op": "kill"}, b"", 0, 0.0)

    def forget(self) -> None:
        """See `ProcessCalls.forget`."""
        self.wait(_LONGEST_WAIT_S)
        self._request({"op": "forget"}, b"", 0, 0.0)

    def _request(
        self, header: Header, payload: bytes, max_bytes: int, wait_s: float
    ) -> tuple[Header, bytes]:
        header = {**header, "process": self._process, "wait_s": wait_s}
        return self._ask(header, payload, max_bytes, wait_s)

    @contextmanager
    def _using(self, stream: int, timeout_s: float, what: str) -> Iterator[Iterator[float]]:
        """Wait for other threads that use the stream; give what is left of the time, in pieces."""
        begun = time.monotonic()
        if not self._streams[stream].acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise self._late(what, timeout_s)
        try:
            yield _waits(timeout_s - (time.monotonic() - begun))
        finally:
            self._streams[stream].release()

    def _late(self, what: str, timeout_s: float) -> ProcessTimeout:
        return ProcessTimeout(f"{self._name} {what} after {timeout_s:g} s; it goes on")


def _waits(timeout_s: float) -> Iterator[float]:
    """How long the worker may wait each time that it is asked, at least once."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        yield max(0.0, min(left, _LONGEST_WAIT_S))
        if left <= 0:
            return
