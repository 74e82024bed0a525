"""The process of a server: on this machine, or in the box of its episode."""

import asyncio
import atexit
import os
import signal
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Self

from gymnast.envs.adapters.mcp.servers import Server
from gymnast.errors import (
    ConfigError,
    InfrastructureError,
    ProcessTimeout,
    SandboxBroken,
    SandboxDead,
    SandboxFileError,
    first_line,
)
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.process import Process
from gymnast.threads import in_background

END_TIMEOUT_S = 2.0  # to end by itself once its stdin is closed, and to be gone when killed
_PIECE_BYTES = 1 << 16
_running: "weakref.WeakSet[HostProcess]" = weakref.WeakSet()


class ServerProcess(ABC):
    """A process with pipes for its streams."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """How it ended, as far as is known."""

    @abstractmethod
    async def read(self, stream: Literal[1, 2]) -> bytes:
        """Wait for something on its stdout or stderr; b"" at the end."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to its stdin, and wait until there is room for more.

        Raises:
            OSError: Nobody reads it any more.
        """

    @abstractmethod
    async def settle(self) -> None:
        """Wait a moment for its end."""

    @abstractmethod
    async def end(self) -> None:
        """Close its stdin, and let it end; then kill what is left of it."""


class HostProcess(ServerProcess):
    """A process of this machine, in a session of its own with all that it starts."""

    def __init__(
        self, process: asyncio.subprocess.Process, transport: asyncio.SubprocessTransport
    ) -> None:
        self._process: Any = process  # whose streams are there
        self._pipes = transport
        _running.add(self)

    @classmethod
    async def started(cls, server: Server) -> Self:
        """Start the server.

        Raises:
            InfrastructureError: It cannot be started.
        """
        loop = asyncio.get_running_loop()
        streams = partial(asyncio.subprocess.SubprocessStreamProtocol, _PIECE_BYTES, loop)
        try:
            transport, protocol = await loop.subprocess_exec(
                streams,
                *server.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=server.folder,
                env=dict(server.environment),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise InfrastructureError(
                f"mcp:{server.name}: {list(server.command)} cannot be started: {first_line(error)}"
            ) from error
        return cls(asyncio.subprocess.Process(transport, protocol, loop), transport)

    @property
    def exit_code(self) -> int | None:
        """See `ServerProcess.exit_code`."""
        code: int | None = self._process.returncode
        return code

    async def read(self, stream: Literal[1, 2]) -> bytes:
        """See `ServerProcess.read`."""
        output = self._process.stdout if stream == 1 else self._process.stderr
        piece: bytes = await output.read(_PIECE_BYTES)
        return piece

    async def write(self, data: bytes) -> None:
        """See `ServerProcess.write`."""
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def settle(self) -> None:
        """See `ServerProcess.settle`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_TIMEOUT_S)

    async def end(self) -> None:
        """See `ServerProcess.end`."""
        self._process.stdin.close()
        for _ in range(2):
            await self.settle()
            self.kill()
        self._pipes.close()  # a process that left the session may hold the other end
        _running.discard(self)

    def kill(self) -> None:
        """Kill it and what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


class BoxProcess(ServerProcess):
    """A process in a box, which may break: then the process has ended."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._exit_code: int | None = None

    @classmethod
    async def started(cls, server: Server, box: Sandbox) -> Self:
        """Start the server.

        Raises:
            ConfigError: There is no such program or folder in the box.
            SandboxDead: The box is closed or broken.
        """
        try:
            process = await box.astart(
                server.command, cwd=server.folder, env=dict(server.environment)
            )
        except SandboxFileError as error:
            raise ConfigError(
                f"mcp:{server.name}: {list(server.command)} cannot be started in the sandbox: "
                f"{error}"
            ) from error
        return cls(process)

    @property
    def exit_code(self) -> int | None:
        """See `ServerProcess.exit_code`."""
        return self._exit_code

    async def read(self, stream: Literal[1, 2]) -> bytes:
        """See `ServerProcess.read`."""
        output = self._process.stdout if stream == 1 else self._process.stderr
        with suppress(SandboxDead, SandboxBroken):
            return await output.aread(_PIECE_BYTES)
        return b""

    async def write(self, data: bytes) -> None:
        """See `ServerProcess.write`."""
        try:
            await self._process.stdin.awrite(data)
        except (SandboxDead, SandboxBroken) as error:
            raise BrokenPipeError(str(error)) from error

    async def settle(self) -> None:
        """See `ServerProcess.settle`."""
        with suppress(ProcessTimeout, SandboxDead, SandboxBroken):
            self._exit_code = await self._process.await_end(timeout_s=END_TIMEOUT_S)

    async def end(self) -> None:
        """See `ServerProcess.end`."""
        with suppress(SandboxDead, SandboxBroken):
            await in_background(self._process.stdin.close)
            await self.settle()
            await in_background(self._process.close)


def _kill_all() -> None:
    for process in list(_running):
        process.kill()


atexit.register(_kill_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)
