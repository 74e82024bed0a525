"""A sandbox whose calls a worker answers over a connection: what all backends here have in common.

A backend makes the box and the connection, and discards both.
"""

from collections.abc import Callable, Mapping, Sequence

from gymnast.errors import SandboxDead, SandboxFileError
from gymnast.sandboxes.contract.base import MAX_FILE_BYTES
from gymnast.sandboxes.contract.process import Process
from gymnast.sandboxes.contract.spec import (
    ExecResult,
    check_env_variables,
    check_seconds,
    check_whole,
)
from gymnast.sandboxes.guest.protocol import Header
from gymnast.sandboxes.worker.arguments import as_bytes, check_argv, check_text
from gymnast.sandboxes.worker.connected import ConnectedSandbox
from gymnast.sandboxes.worker.link import LinkClosed, LinkTimeout
from gymnast.sandboxes.worker.process import Answer, WorkerProcess
from gymnast.sandboxes.worker.results import BrokenAnswer, exec_result, failure_in, field
from gymnast.visible import visible_line

GRACE_S = 5.0  # beyond a call's own time, for the worker to kill and to answer
FILE_S = 60.0  # for one piece of a file
BESIDE_S = 30.0  # for what comes beside the calls, while the worker may be killing for one of them
_PIECE_BYTES = 1 << 20


class WorkerSandbox(ConnectedSandbox):
    """A box with a worker inside.

    A backend's constructor calls this one, makes the box, and calls `_connect`.

    Attributes:
        spec: The image and the limits.
    """

    def ping(self, *, timeout_s: float = 5.0) -> bool:
        """See `Sandbox.ping`; a box that does not answer is thrown away."""
        if not self.alive:
            return False
        try:
            self._request({"op": "ping"}, b"", check_seconds("timeout_s", timeout_s), 0)
        except (LinkTimeout, LinkClosed, SandboxDead):
            return False
        return True

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
        header = {
            "op": "exec",
            "argv": check_argv(command),
            "cwd": None if cwd is None else check_text("cwd", cwd),
            "env": dict(check_env_variables(env or {})),
            "stdin": stdin is not None,
        }
        return self._run(header, as_bytes(stdin or b""), timeout_s, max_output_bytes)

    def python(
        self, code: str, *, timeout_s: float | None = None, max_output_bytes: int | None = None
    ) -> ExecResult:
        """See `Sandbox.python`."""
        return self._run({"op": "python"}, as_bytes(code), timeout_s, max_output_bytes)

    def read_file(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """See `Sandbox.read_file`."""
        check_whole("max_bytes", max_bytes, 0)
        data = b""
        while True:
            most = min(_PIECE_BYTES, max_bytes + 1 - len(data))
            header = {
                "op": "read",
                "path": check_text("path", path),
                "offset": len(data),
                "most": most,
            }
            size, piece = self._file_request(path, header, b"", most)
            data += piece
            if max(len(data), size) > max_bytes:
                raise SandboxFileError(
                    27,  # EFBIG
                    f"{path}: the file has {size} bytes, more than max_bytes ({max_bytes}); read a "
                    "part of it with exec, or allow more",
                    path,
                )
            if len(piece) < most:
                return data

    def write_file(self, path: str, data: str | bytes) -> None:
        """See `Sandbox.write_file`."""
        content = memoryview(as_bytes(data))
        for offset in range(0, max(1, len(content)), _PIECE_BYTES):
            header = {"op": "write", "path": check_text("path", path), "offset": offset}
            piece = bytes(content[offset : offset + _PIECE_BYTES])
            self._file_request(path, header, piece, 0)

    def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """See `Sandbox.start`."""
        argv = check_argv(command)
        header = {
            "op": "start",
            "argv": argv,
            "cwd": None if cwd is None else check_text("cwd", cwd),
            "env": dict(check_env_variables(env or {})),
        }
        number = self._ask_beside(header, b"", lambda answer, _: field(answer, "process", int))
        name = visible_line(f"the process {argv[0]!r} in {self._name()}")
        return Process(WorkerProcess(self._ask_beside, number, name))

    def _run(
        self,
        header: Header,
        payload: bytes,
        timeout_s: float | None,
        max_output_bytes: int | None,
    ) -> ExecResult:
        spec = self.spec
        seconds = check_seconds("timeout_s", spec.timeout_s if timeout_s is None else timeout_s)
        limit = check_whole(
            "max_output_bytes",
            spec.max_output_bytes if max_output_bytes is None else max_output_bytes,
            1,
        )
        limits = {"timeout_s": seconds, "max_output_bytes": limit}
        try:
            answer, data = self._request(
                {**header, **limits}, payload, seconds + GRACE_S, 2 * limit
            )
            if failed := failure_in(answer):
                raise BrokenAnswer(failed.text)
            result = exec_result(answer, data)
            if not field(answer, "killed", bool):
                self._break("something in it could not be killed")
            return result
        except LinkTimeout as error:
            return ExecResult(-1, "", f"[the box was thrown away: {error}]\n", "timeout")
        except (LinkClosed, BrokenAnswer) as error:
            self._break(f"its worker broke: {error}")
            return ExecResult(-1, "", f"[the box broke: {error}]\n", "dead")

    def _file_request(
        self, path: str, header: Header, payload: bytes, most: int
    ) -> tuple[int, bytes]:
        """The file's size in bytes (0 after a write), and the bytes that were read."""
        try:
            answer, data = self._request(header, payload, FILE_S, most)
            failed = failure_in(answer)
            if failed is None:
                return field(answer, "file_bytes", int) if header["op"] == "read" else 0, data
            if failed.kind != "file":
                raise BrokenAnswer(failed.text)
        except (LinkTimeout, LinkClosed, BrokenAnswer) as error:
            self._break(f"its worker broke: {error}")
            raise SandboxDead(f"{self._name()} broke: {error}") from None
        raise SandboxFileError(failed.number, visible_line(f"{path}: {failed.text}"), path)

    def _ask_beside(
        self,
        header: Header,
        payload: bytes,
        read: Callable[[Header, bytes], Answer],
        *,
        wait_s: float = 0.0,
        max_answer_bytes: int = 0,
    ) -> Answer:
        """See `worker/process.py`. What cannot be started is a `SandboxFileError`."""
        try:
            answer, data = self._send(header, payload, wait_s + BESIDE_S, max_answer_bytes)
            failed = failure_in(answer)
            if failed is None:
                return read(answer, data)
            if failed.kind != "file" or header["op"] != "start":
                raise BrokenAnswer(failed.text)
        except (LinkTimeout, LinkClosed, BrokenAnswer) as error:
            self._break(f"its worker broke: {error}")
            raise SandboxDead(f"{self._name()} broke: {self._why_dead}") from None
        raise SandboxFileError(failed.number, visible_line(failed.text), str(header["argv"][0]))
