"""A server that is a process: messages are lines of JSON on its stdin and stdout.

The SDK's own way joins what a server says to one ever longer text, ends where that is no UTF-8,
and keeps nothing of its stderr; so this is in its place.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp import types
from mcp.shared.message import SessionMessage

from gymnast.envs.adapters.mcp.processes import (
    END_TIMEOUT_S,
    BoxProcess,
    HostProcess,
    ServerProcess,
)
from gymnast.envs.adapters.mcp.servers import Server
from gymnast.sandboxes.contract.base import Sandbox

MAX_MESSAGE_BYTES = 16 << 20
_EDGE_BYTES = 4096  # of a message that is too long, in which its id is looked for
_LAST_WORDS_BYTES = 2000
_ID = re.compile(rb'"id"\s*:\s*(\d+)')


class Program:
    """A server that is started, and the messages to it and from it.

    Args:
        server: How it is started.
        box: Where; None: on this machine.
    """

    def __init__(self, server: Server, box: Sandbox | None = None) -> None:
        self._server, self._box = server, box
        self._process: ServerProcess | None = None
        self._last_words = bytearray()
        self._asked: set[Any] = set()  # ids of requests without an answer

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start it, and end it; between, the streams of messages from it and to it.

        Raises:
            ConfigError: The box has no such program.
            InfrastructureError: It cannot be started.
        """
        process = self._process = await self._started()
        heard, from_server = anyio.create_memory_object_stream[Any](0)
        to_server, said = anyio.create_memory_object_stream[Any](0)
        tasks = [self._hear(process, heard), self._say(process, said, heard)]
        running = [asyncio.create_task(task) for task in [*tasks, self._overhear(process)]]
        try:
            yield from_server, to_server
        finally:
            for stream in (from_server, to_server):
                stream.close()
            await _without_cancellation(_end(process, running))
            for stream in (heard, said):
                stream.close()

    @property
    def last_words(self) -> str:
        """How it ended, and the end of what it wrote to stderr, for messages."""
        code = None if self._process is None else self._process.exit_code
        text = self._last_words.decode(errors="replace").strip()
        ended = [] if code is None else [f"Its process ended with code {code}."]
        return " ".join([*ended, *([f"It wrote to stderr: {text}"] if text else [])])

    async def settle(self) -> None:
        """Wait a moment for its end, of which there is a sign already."""
        if self._process is not None:
            await self._process.settle()

    async def _started(self) -> ServerProcess:
        if self._box is None:
            return await HostProcess.started(self._server)
        return await BoxProcess.started(self._server, self._box)

    async def _hear(self, process: ServerProcess, heard: Any) -> None:
        """Pass its messages on; what is none is left out, and the rest once nobody listens."""
        with heard, suppress(OSError):
            async for line, whole in _lines(process):
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

    async def _say(self, process: ServerProcess, said: Any, heard: Any) -> None:
        try:
            async with said:
                async for outgoing in said:
                    message = outgoing.message
                    if isinstance(message, types.JSONRPCRequest):
                        self._asked.add(message.id)
                    text = message.model_dump_json(by_alias=True, exclude_unset=True)
                    await process.write(text.encode(errors="replace") + b"\n")
        except OSError:
            heard.close()  # so that nobody waits for an answer

    async def _overhear(self, process: ServerProcess) -> None:
        while piece := await process.read(2):
            self._last_words = (self._last_words + piece)[-_LAST_WORDS_BYTES:]


async def _end(process: ServerProcess, running: list["asyncio.Task[None]"]) -> None:
    """End it, and then what listens and talks to it."""
    await process.end()
    await asyncio.wait(running, timeout=END_TIMEOUT_S)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def _lines(process: ServerProcess) -> AsyncIterator[tuple[bytes, bool]]:
    """The lines that it says, and whether each is whole; of a longer one its beginning and end."""
    parts, size = list[bytes](), 0
    while piece := await process.read(1):
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
