"""A server that is a process: messages are lines of JSON on its stdin and stdout.

The SDK's own way joins what a server says to one ever longer text, ends where that is no UTF-8,
and keeps nothing of its stderr; so this is in its place.
"""

import asyncio
import atexit
import os
import re
import signal
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp import types
from mcp.shared.message import SessionMessage

from gymnast.envs.adapters.mcp.servers import Server
from gymnast.errors import InfrastructureError, first_line

MAX_MESSAGE_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16
_EDGE_BYTES = 4096  # of a message that is too long, in which its id is looked for
_LAST_WORDS_BYTES = 2000
_END_TIMEOUT_S = 2.0  # to end by itself once its stdin is closed, and to be gone when killed
_ID = re.compile(rb'"id"\s*:\s*(\d+)')
_running: "weakref.WeakSet[Program]" = weakref.WeakSet()


class Program:
    """The process of a server, in a session of its own with all that it starts."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._process: asyncio.subprocess.Process | None = None
        self._last_words = bytearray()
        self._asked: set[Any] = set()  # ids of requests without an answer

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start it, and end it; between, the streams of messages from it and to it.

        Raises:
            InfrastructureError: It cannot be started.
        """
        process = self._process = await self._started()
        _running.add(self)
        heard, from_server = anyio.create_memory_object_stream[Any](0)
        to_server, said = anyio.create_memory_object_stream[Any](0)
        tasks = [self._hear(process.stdout, heard), self._say(process.stdin, said, heard)]
        running = [asyncio.create_task(task) for task in [*tasks, self._overhear(process.stderr)]]
        try:
            yield from_server, to_server
        finally:
            for stream in (from_server, to_server):
                stream.close()
            await _without_cancellation(self._end(process, running))
            for stream in (heard, said):
                stream.close()
            _running.discard(self)

    @property
    def last_words(self) -> str:
        """How it ended, and the end of what it wrote to stderr, for messages."""
        code = None if self._process is None else self._process.returncode
        text = self._last_words.decode(errors="replace").strip()
        ended = [] if code is None else [f"Its process ended with code {code}."]
        return " ".join([*ended, *([f"It wrote to stderr: {text}"] if text else [])])

    def kill(self) -> None:
        """Kill it and what it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _started(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._server.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self._server.folder,
                env=dict(self._server.environment),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise InfrastructureError(
                f"mcp:{self._server.name}: {list(self._server.command)} cannot be started: "
                f"{first_line(error)}"
            ) from error

    async def _hear(self, stdout: Any, heard: Any) -> None:
        """Pass its messages on; what is none is left out, and the rest once nobody listens."""
        with heard, suppress(OSError):
            async for line, whole in _lines(stdout):
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    for message in self._messages(line, whole):
                        await heard.send(SessionMessage(message))

    def _messages(self, line: bytes, whole: bool) -> Iterator[Any]:
        if whole:
            with suppress(ValueError):
                message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                self._asked.discard(getattr(message, "id", None))
                yield message
            return
        edges = line[:_EDGE_BYTES] + line[-_EDGE_BYTES:]
        for id in {int(found) for found in _ID.findall(edges)} & self._asked:
            self._asked.discard(id)
            problem = f"The result has more than {MAX_MESSAGE_BYTES} bytes, and was left out."
            error = types.ErrorData(code=types.INTERNAL_ERROR, message=problem)
            yield types.JSONRPCError(jsonrpc="2.0", id=id, error=error)

    async def _say(self, stdin: Any, said: Any, heard: Any) -> None:
        try:
            async with said:
                async for outgoing in said:
                    message = outgoing.message
                    if isinstance(message, types.JSONRPCRequest):
                        self._asked.add(message.id)
                    text = message.model_dump_json(by_alias=True, exclude_unset=True)
                    stdin.write(text.encode(errors="replace") + b"\n")
                    await stdin.drain()
        except OSError:
            heard.close()  # so that nobody waits for an answer

    async def _overhear(self, stderr: Any) -> None:
        while piece := await stderr.read(_PIECE_BYTES):
            self._last_words = (self._last_words + piece)[-_LAST_WORDS_BYTES:]

    async def settle(self) -> None:
        """Wait a moment for its end, of which there is a sign already."""
        if self._process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _END_TIMEOUT_S)

    async def _end(self, process: Any, running: list["asyncio.Task[None]"]) -> None:
        """Let it end; then kill what is left of it."""
        process.stdin.close()
        for _ in range(2):
            await self.settle()
            self.kill()
        process._transport.close()  # a process that left the session may hold the other end
        await asyncio.wait(running, timeout=_END_TIMEOUT_S)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _lines(stream: Any) -> AsyncIterator[tuple[bytes, bool]]:
    """The lines of a stream, and whether each is whole; of a longer one its beginning and end."""
    parts, size = list[bytes](), 0
    while piece := await stream.read(_PIECE_BYTES):
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield b"".join([*parts, end]), size + len(end) <= MAX_MESSAGE_BYTES
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_MESSAGE_BYTES:
            parts = [*parts[:2], *parts[2:][-2:]]


async def _without_cancellation(coroutine: Any) -> None:
    """Await something to its end; a cancellation comes after it."""
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _kill_all() -> None:
    for program in list(_running):
        program.kill()


atexit.register(_kill_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)
