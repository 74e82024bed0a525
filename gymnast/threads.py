"""One daemon thread per environment, on which its sync code runs.

`setup`, sync tools, `reward` and `cleanup` of an episode share a thread because objects such as
sqlite3 connections belong to the thread that made them. asyncio's own pool would give each call
another thread, has few of them, and keeps the interpreter from exiting while one hangs. A call
that overruns has its thread abandoned: Python cannot stop it, so it is left to end by itself, its
outcome is dropped, and the next call gets a new thread.
"""

import asyncio
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_Outcome = tuple[Any, Exception | None]
_Job = tuple["Future[_Outcome]", contextvars.Context, Callable[[], Any]]


class Overrun(Exception):
    """A call took longer than it may."""


class Worker:
    """Runs functions one after another on one daemon thread, which is started when needed.

    Attributes:
        abandoned: How many threads have been given up.
    """

    def __init__(self, name: str) -> None:
        self.abandoned = 0
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] | None = None
        self._end_thread: Callable[[], Any] = _nothing

    async def run(self, function: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Run a function on the thread, without blocking the caller's event loop.

        Args:
            function: What to call. It sees the caller's context variables.
            timeout_s: Give up after this many seconds; None waits.

        Raises:
            Overrun: It took too long; its thread is abandoned.
            Exception: Whatever the function raised. `SystemExit` and its like, which would stop
                the event loop, come as a RuntimeError.
        """
        future = asyncio.wrap_future(self._submit(function))
        try:
            if timeout_s is None:
                await future
            elif not (await asyncio.wait((future,), timeout=timeout_s))[0]:
                raise Overrun
        except (asyncio.CancelledError, Overrun):
            future.cancel()  # nobody waits for it, and its loop may be closed when it comes
            self._abandon()
            raise
        value, error = future.result()
        if error is not None:
            raise error
        return value

    def stop(self) -> None:
        """Let the thread end once it is idle. A later `run` starts another."""
        self._end_thread()
        self._jobs = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Worker, (self._name,)  # a copy has a thread of its own, once it needs one

    def _submit(self, function: Callable[[], Any]) -> "Future[_Outcome]":
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            # Called by `stop`, or when the worker is garbage; the second time it does nothing.
            self._end_thread = weakref.finalize(self, self._jobs.put, None)
            threading.Thread(
                target=_serve, args=(self._jobs,), name=self._name, daemon=True
            ).start()
        future: Future[_Outcome] = Future()
        self._jobs.put((future, contextvars.copy_context(), function))
        return future

    def _abandon(self) -> None:
        self.abandoned += 1
        self.stop()


def _nothing() -> None:
    """There is no thread to end."""


def _serve(jobs: "queue.SimpleQueue[_Job | None]") -> None:
    """The thread: takes jobs until it gets None. It refers to no environment while idle."""
    while (job := jobs.get()) is not None:
        future, context, function = job
        if future.set_running_or_notify_cancel():
            # An exception travels as a value: asyncio futures do not take StopIteration.
            future.set_result(_call(context, function))
        del job, future, context, function


def _call(context: contextvars.Context, function: Callable[[], Any]) -> _Outcome:
    try:
        return context.run(function), None
    except Exception as error:
        return None, error
    except BaseException as error:
        stopped = RuntimeError(f"{type(error).__name__}: {error}")
        stopped.__cause__ = error
        return None, stopped
