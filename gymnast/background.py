"""Blocking calls from async code, each on a daemon thread of its own.

asyncio's pool has few threads and holds up the interpreter's exit while one of them hangs. A box
runs one call at a time anyway, and a thread costs a tenth of what a call does.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_background(function: Callable[[], T]) -> T:
    """Call a function without blocking the event loop, whichever it is.

    If the caller is cancelled, the function runs on and its outcome is dropped.

    Raises:
        Exception: Whatever the function raised.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                value = context.run(function)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)

    threading.Thread(target=run, name="gymnast-sandbox", daemon=True).start()
    return await asyncio.wrap_future(future)
