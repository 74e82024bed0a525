"""A proxy on 127.0.0.1 that delays, cuts and refuses connections to a server behind it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Proxy:
    """Hands connections through, for as long as it is not told otherwise.

    Attributes:
        url: Where it listens.
        delay_s: How long each part of an answer is held back.
        refuses: Whether connections are ended at once.
    """

    def __init__(self, url: str) -> None:
        self._target = int(url.rpartition(":")[2])
        self.delay_s, self.refuses = 0.0, False
        self._open: set[asyncio.StreamWriter] = set()
        self._cut_next = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        started = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(started, self._loop).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut_next_answer(self) -> None:
        """End the connection of the next answer in its middle."""
        self._cut_next = True

    def lead_to(self, url: str) -> None:
        """Stand before another server from now on."""
        self._target = int(url.rpartition(":")[2])
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._cut)

    def close(self) -> None:
        """Listen no more."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _end(self) -> None:
        self._server.close()
        self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        mine = [writer]
        self._open.add(writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            back, there = await asyncio.open_connection("127.0.0.1", self._target)
            mine.append(there)
            self._open.add(there)
            await asyncio.gather(self._copy(reader, there), self._copy(back, writer, answer=True))
        for each in mine:
            self._open.discard(each)
            each.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answer: bool = False
    ) -> None:
        while part := await reader.read(65536):
            if answer:
                await asyncio.sleep(self.delay_s)
                if self._cut_next and b"token_ids" in part:
                    self._cut_next = False
                    writer.write(part[: len(part) // 2])
                    await writer.drain()
                    break
            writer.write(part)
            await writer.drain()
        writer.transport.abort() if answer else writer.write_eof()


@contextlib.contextmanager
def proxied(url: str) -> Iterator[Proxy]:
    """A proxy in front of a server."""
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
