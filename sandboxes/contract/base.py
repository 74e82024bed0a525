"""The contract of every sandbox: run untrusted code, read and write its files, close it.

Each backend's docstring says how its boxes are made and what they protect from.
`tests/sandboxes/contract/test_contract_*.py` state the contract as tests, run on every backend.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from gymnast.errors import SandboxDead, UsageError
from gymnast.sandboxes.contract.process import Process
from gymnast.sandboxes.contract.spec import ExecResult
from gymnast.threads import in_background

MAX_FILE_BYTES = 64 << 20


class Sandbox(ABC):
    """A box in which commands and Python code run, with a folder of its own to work in.

    Calls may come from any thread and any event loop; a box runs one at a time. Each has an async
    twin (`aexec`, `apython`, ...); when its caller is cancelled, the call still runs to its end.

    A call during which the box breaks raises nothing, whether the infrastructure or the guest broke
    it: `exec` and `python` return the verdict "dead", or "timeout" where the box had to be thrown
    away to end the call. Every later call raises `SandboxDead`.

    A backend's class is called with a `SandboxSpec`; `docs/extending.md` says what its constructor
    raises, and how a config names it. A complete small one, which protects from nothing and keeps
    no variables:

        class FolderSandbox(Sandbox):
            def __init__(self, spec):
                self.folder = tempfile.TemporaryDirectory()

            def exec(self, command, *, stdin=None, cwd=None, env=None, timeout_s=None,
                     max_output_bytes=None):
                argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
                data = stdin.encode() if isinstance(stdin, str) else stdin or b""
                try:
                    ended = subprocess.run(
                        argv, input=data, capture_output=True, timeout=timeout_s,
                        cwd=Path(self.folder.name, cwd or "."), env={**os.environ, **(env or {})})
                except subprocess.TimeoutExpired:
                    return ExecResult(137, "", "", "timeout")
                out = ended.stdout.decode(errors="replace")[:max_output_bytes]
                err = ended.stderr.decode(errors="replace")[:max_output_bytes]
                verdict = "nonzero" if ended.returncode else "ok"
                return ExecResult(ended.returncode, out, err, verdict)

            def python(self, code, *, timeout_s=None, max_output_bytes=None):
                return self.exec([sys.executable, "-c", code], timeout_s=timeout_s,
                                 max_output_bytes=max_output_bytes)

            def read_file(self, path, *, max_bytes=MAX_FILE_BYTES):
                return Path(self.folder.name, path).read_bytes()

            def write_file(self, path, data):
                content = data.encode() if isinstance(data, str) else data
                Path(self.folder.name, path).write_bytes(content)

            def close(self):
                self.folder.cleanup()
    """

    @abstractmethod
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
        """Run a command and wait until it has ended.

        When it ends, whatever it has started and left behind is killed: a process in the
        background lives no longer than the command. Its output is read to the end and kept up to
        `max_output_bytes`, head and tail; a command that never stops writing is killed.

        Args:
            command: An argument vector, or a text for `/bin/sh -c`.
            stdin: What it reads; None: nothing.
            cwd: The folder to run in, relative to the working folder; None: the working folder.
            env: Variables in addition to those of the box.
            timeout_s: Wall time, in seconds, after which it is killed; None: the box's.
            max_output_bytes: How much of stdout, and of stderr, to keep; None: the box's.

        Returns:
            How it ended. A command that does not exist has exit code 127, as in a shell.

        Raises:
            SandboxDead: The box was closed, or had broken before this call.
            UsageError: An argument breaks its rule.
        """

    @abstractmethod
    def python(
        self, code: str, *, timeout_s: float | None = None, max_output_bytes: int | None = None
    ) -> ExecResult:
        """Run Python code in the box's session, which keeps its variables.

        As in a notebook, the value of a last expression is printed, unless it is None. After an
        exception the exit code is 1, `stderr` has the traceback, and the session goes on. `input()`
        meets the end of the file. Threads, and child processes that stay below the session, live
        on between calls; a process that detaches itself is killed when the call ends.

        `sys.exit`, a timeout, endless output or anything else that ends the session's process
        loses its variables; `stderr` says so, and the next call has a new session.

        Args:
            code: Any number of statements.
            timeout_s: Wall time, in seconds, after which the session is killed; None: the box's.
            max_output_bytes: How much of stdout, and of stderr, to keep; None: the box's.

        Raises:
            SandboxDead: The box was closed, or had broken before this call.
            UsageError: An argument breaks its rule.
        """

    @abstractmethod
    def read_file(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Read a file of the box.

        Args:
            path: Absolute, or relative to the working folder. Links and ".." are resolved inside
                the box and never lead out of it.
            max_bytes: A larger file is refused.

        Raises:
            SandboxFileError: The file does not exist, is no regular file, lies below /proc, is too
                large, or may not be read.
            SandboxDead: The box is closed or broken.
        """

    @abstractmethod
    def write_file(self, path: str, data: str | bytes) -> None:
        """Write a file of the box; missing folders are made, and an existing file is replaced.

        Args:
            path: As for `read_file`.
            data: The content; a text is written as UTF-8.

        Raises:
            SandboxFileError: It may not be written, is no regular file, or does not fit.
            SandboxDead: The box is closed or broken.
        """

    def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a process that goes on beside the box's calls: a server, say.

        It has no time limit, and pipes for its streams; nothing of its output is kept but what is
        read. What it starts goes on with it, except for what detaches itself (`setsid`) and is an
        orphan: the end of the next call kills that. All of it ends with the box. Code in the box
        has the same user, and can kill it or write to its streams: do not rely on what it answers.

        Args:
            command: An argument vector, or a text for `/bin/sh -c`.
            cwd: As for `exec`.
            env: As for `exec`.

        Raises:
            SandboxFileError: There is no such program or folder, or no room for one more process.
            SandboxDead: The box is closed or broken.
            UsageError: An argument breaks its rule, or the backend starts no processes.
        """
        raise UsageError(
            f"{type(self).__name__} starts no processes beside its calls; docker, landlock, "
            "bubblewrap and local do"
        )

    @abstractmethod
    def close(self) -> None:
        """Kill everything that runs in the box and delete its files. May be called again.

        A call that is still running on another thread ends with the verdict "dead".
        """

    @property
    def alive(self) -> bool:
        """Whether the box is open and, as far as is known, well."""
        return self.ping()

    def ping(self, *, timeout_s: float = 5.0) -> bool:
        """Whether the box is open and gives a sign of life.

        Args:
            timeout_s: How long to wait for it, in seconds.
        """
        try:
            return self.exec(["true"], timeout_s=timeout_s).verdict == "ok"
        except SandboxDead:
            return False

    def engine_lost(self) -> bool:
        """Whether the engine that runs the box is gone, or was while the box lived.

        Asked of a box that broke, to tell an outage from what was done in the box: nothing in a
        box can bring it about. False where there is no engine. It may take some seconds.
        """
        return False

    def upload(self, local: str | Path, path: str) -> None:
        """Copy a file of the host into the box.

        Raises:
            OSError: The file of the host cannot be read.
            SandboxFileError: That of the box cannot be written.
            SandboxDead: The box is closed or broken.
        """
        self.write_file(path, Path(local).read_bytes())

    def download(self, path: str, local: str | Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Copy a file of the box to the host. Raises as `upload` does."""
        Path(local).write_bytes(self.read_file(path, max_bytes=max_bytes))

    async def aexec(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        """`exec` without blocking the event loop."""
        return await in_background(
            partial(
                self.exec,
                command,
                stdin=stdin,
                cwd=cwd,
                env=env,
                timeout_s=timeout_s,
                max_output_bytes=max_output_bytes,
            )
        )

    async def astart(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """`start` without blocking the event loop."""
        return await in_background(partial(self.start, command, cwd=cwd, env=env))

    async def apython(
        self, code: str, *, timeout_s: float | None = None, max_output_bytes: int | None = None
    ) -> ExecResult:
        """`python` without blocking the event loop."""
        return await in_background(
            partial(self.python, code, timeout_s=timeout_s, max_output_bytes=max_output_bytes)
        )

    async def aread_file(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """`read_file` without blocking the event loop."""
        return await in_background(partial(self.read_file, path, max_bytes=max_bytes))

    async def awrite_file(self, path: str, data: str | bytes) -> None:
        """`write_file` without blocking the event loop."""
        await in_background(partial(self.write_file, path, data))

    async def aupload(self, local: str | Path, path: str) -> None:
        """`upload` without blocking the event loop."""
        await in_background(partial(self.upload, local, path))

    async def adownload(
        self, path: str, local: str | Path, *, max_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """`download` without blocking the event loop."""
        await in_background(partial(self.download, path, local, max_bytes=max_bytes))

    async def aclose(self) -> None:
        """`close` without blocking the event loop."""
        await in_background(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
