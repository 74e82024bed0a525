"""A process that a worker has started: the host's side of `guest/started.py`."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, TypeVar

from gymnast.errors import ProcessInputClosed, ProcessTimeout
from gymnast.sandboxes.contract.process import OutputNumber, ProcessCalls
from gymnast.sandboxes.guest.protocol import Header
from gymnast.sandboxes.worker.results import BrokenAnswer, field, taken_of

Answer = TypeVar("Answer")

_LONGEST_WAIT_S = 60.0  # then the worker is asked again
_PIECE_BYTES = 1 << 16


class Ask(Protocol):
    """Sends a request beside the calls."""

    def __call__(
        self,
        header: Header,
        payload: bytes,
        read: Callable[[Header, bytes], Answer],
        *,
        wait_s: float = 0.0,
        max_answer_bytes: int = 0,
    ) -> Answer:
        """Send it, and wait for its answer.

        Args:
            header: The operation and its arguments.
            payload: The bytes that belong to it.
            read: Reads the answer; what it refuses is a broken box.
            wait_s: How long the worker may wait before it answers, in seconds.
            max_answer_bytes: The largest payload that the answer may have.

        Raises:
            SandboxDead: The box is closed or broken.
        """


class WorkerProcess(ProcessCalls):
    """See `ProcessCalls`.

    Args:
        ask: Sends a request to the worker.
        process: The worker's number of the process.
        name: What the process is in messages.
    """

    def __init__(self, ask: Ask, process: int, name: str) -> None:
        self._ask, self._process, self._name = ask, process, name
        self._exit_code: int | None = None

    def receive(self, stream: OutputNumber, max_bytes: int, timeout_s: float) -> bytes:
        """See `ProcessCalls.receive`."""
        what = f"wrote nothing to {'stdout' if stream == 1 else 'stderr'}"
        for wait_s in _waits(timeout_s):
            data, end = self._request(
                {"op": "receive", "stream": stream, "most": max_bytes},
                b"",
                lambda answer, data: (data, field(answer, "end", bool)),
                wait_s=wait_s,
                max_answer_bytes=max_bytes,
            )
            if data or end:
                return data
        raise self._late(what, timeout_s)

    def send(self, data: bytes, timeout_s: float) -> None:
        """See `ProcessCalls.send`."""
        left, what = memoryview(data), "did not read its stdin"
        for wait_s in _waits(timeout_s):
            piece = bytes(left[:_PIECE_BYTES])
            taken, is_open = self._request(
                {"op": "send"}, piece, partial(_taken, len(piece)), wait_s=wait_s
            )
            left = left[taken:]
            if not is_open:
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
        self._request({"op": "close", "stream": stream}, b"", _nothing)

    def wait(self, timeout_s: float) -> int:
        """See `ProcessCalls.wait`."""
        for wait_s in _waits(timeout_s):
            if self._exit_code is not None:
                break
            exit_code = self._request({"op": "wait"}, b"", _exit_code, wait_s=wait_s)
            if exit_code is not None:  # another thread, which waits too, may have been told
                self._exit_code = exit_code
        if self._exit_code is None:
            raise self._late("still runs", timeout_s)
        return self._exit_code

    def kill(self) -> None:
        """See `ProcessCalls.kill`."""
        if self._exit_code is None:
            self._request({"op": "kill"}, b"", _check_killed)

    def forget(self) -> None:
        """See `ProcessCalls.forget`."""
        self.wait(_LONGEST_WAIT_S)
        self._request({"op": "forget"}, b"", _nothing)

    def _request(
        self,
        header: Header,
        payload: bytes,
        read: Callable[[Header, bytes], Answer],
        *,
        wait_s: float = 0.0,
        max_answer_bytes: int = 0,
    ) -> Answer:
        header = {**header, "process": self._process, "wait_s": wait_s}
        return self._ask(header, payload, read, wait_s=wait_s, max_answer_bytes=max_answer_bytes)

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


def _exit_code(answer: Header, data: bytes) -> int | None:
    return None if answer.get("exit_code") is None else field(answer, "exit_code", int)


def _taken(sent_bytes: int, answer: Header, data: bytes) -> tuple[int, bool]:
    return taken_of(answer, sent_bytes)


def _check_killed(answer: Header, data: bytes) -> None:
    if not field(answer, "killed", bool):
        raise BrokenAnswer("something in it could not be killed")


def _nothing(answer: Header, data: bytes) -> None:
    """There is nothing in the answer."""
