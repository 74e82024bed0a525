"""Waiting for a coroutine from sync code, inside a running event loop as well.

`asyncio.run` refuses to nest, and a notebook always has a loop running. So `step()`, `reset()` and
`close()` run on one private loop, in a daemon thread that all environments of the process share.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result, blocking this thread alone."""
    loop = _private_loop()
    if threading.current_thread() is _thread:
        return _in_fresh_thread(coroutine)  # a step inside a step: its loop waits for us
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # Ctrl-C here must stop it there; on its own errors this does nothing
        raise


def _private_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(
                target=_loop.run_forever, name="gymnast-blocking", daemon=True
            )
            _thread.start()
        return _loop


def _in_fresh_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    outcome: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="gymnast-nested", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]


def _forget() -> None:
    """A forked child has the loop, but not its thread."""
    global _loop, _thread, _lock
    _loop, _thread, _lock = None, None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
