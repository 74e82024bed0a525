"""The event loop of all sessions with servers, on a thread of its own.

A trainer's loop is another one in each `asyncio.run`, and a session that episodes share
outlasts it.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from gymnast.shared_threads import start_thread

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_tasks: set["asyncio.Task[Any]"] = set()


async def elsewhere(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that runs on the loop of the sessions.

    If the caller is cancelled, so is the coroutine, which nobody waits for.
    """
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            start_thread("gymnast-mcp", _loop.run_forever)
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, _loop))


def kept(awaitable: Awaitable[T]) -> "asyncio.Task[T]":
    """A task that is referred to until it ends, and whose exception nobody needs to ask for."""
    task = asyncio.ensure_future(_awaited(awaitable))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _forget() -> None:
    """A forked child has the loop, but not its thread."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None
    _tasks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
