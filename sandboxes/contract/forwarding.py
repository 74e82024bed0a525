"""A sandbox that stands in front of another one and forwards every call to it."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from gymnast.sandboxes.contract.base import MAX_FILE_BYTES, Sandbox
from gymnast.sandboxes.contract.process import OutputNumber, Process, ProcessCalls
from gymnast.sandboxes.contract.spec import ExecResult

T = TypeVar("T")


class ForwardingSandbox(Sandbox):
    """Forwards calls; a subclass says to which box, and closes it.

    A complete small subclass:

        class Counted(ForwardingSandbox):
            def __init__(self, box):
                self.box, self.calls = box, 0

            def target(self):
                return self.box

            def forward(self, call):
                self.calls += 1
                return super().forward(call)

            def close(self):
                self.box.close()
    """

    @abstractmethod
    def target(self) -> Sandbox:
        """The box that calls are forwarded to."""

    def forward(self, call: Callable[[Sandbox], T]) -> T:
        """Make a call of `exec`, `python`, `read_file`, `write_file` or `start`, or of a process.

        Override this to do something before or after every call.
        """
        return call(self.target())

    def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        return self.forward(
            lambda box: box.exec(
                command,
                stdin=stdin,
                cwd=cwd,
                env=env,
                timeout_s=timeout_s,
                max_output_bytes=max_output_bytes,
            )
        )

    def python(
        self, code: str, *, timeout_s: float | None = None, max_output_bytes: int | None = None
    ) -> ExecResult:
        """See `Sandbox.python`."""
        return self.forward(
            lambda box: box.python(code, timeout_s=timeout_s, max_output_bytes=max_output_bytes)
        )

    def read_file(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """See `Sandbox.read_file`."""
        return self.forward(lambda box: box.read_file(path, max_bytes=max_bytes))

    def write_file(self, path: str, data: str | bytes) -> None:
        """See `Sandbox.write_file`."""
        self.forward(lambda box: box.write_file(path, data))

    def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """See `Sandbox.start`."""
        process = self.forward(lambda box: box.start(command, cwd=cwd, env=env))
        return Process(_ForwardedProcess(self, process.calls))

    @property
    def alive(self) -> bool:
        """See `Sandbox.alive`; as cheap as that of the box behind."""
        return self.target().alive

    def ping(self, *, timeout_s: float = 5.0) -> bool:
        """See `Sandbox.ping`."""
        return self.target().ping(timeout_s=timeout_s)

    def engine_lost(self) -> bool:
        """See `Sandbox.engine_lost`."""
        return self.target().engine_lost()


class _ForwardedProcess(ProcessCalls):
    """The calls of a process, each of which is forwarded like a call of its box.

    Args:
        owner: The box that forwards.
        calls: Those of the backend's process.
    """

    def __init__(self, owner: ForwardingSandbox, calls: ProcessCalls) -> None:
        self._owner, self._calls = owner, calls

    def receive(self, stream: OutputNumber, max_bytes: int, timeout_s: float) -> bytes:
        return self._forward(lambda: self._calls.receive(stream, max_bytes, timeout_s))

    def send(self, data: bytes, timeout_s: float) -> None:
        self._forward(lambda: self._calls.send(data, timeout_s))

    def close_stream(self, stream: int) -> None:
        self._forward(lambda: self._calls.close_stream(stream))

    def wait(self, timeout_s: float) -> int:
        return self._forward(lambda: self._calls.wait(timeout_s))

    def kill(self) -> None:
        self._forward(self._calls.kill)

    def forget(self) -> None:
        self._forward(self._calls.forget)

    def _forward(self, call: Callable[[], T]) -> T:
        return self._owner.forward(lambda box: call())
