"""The bridge between sync and async code: daemon threads, each of which can be abandoned.

asyncio's own pool has few threads, gives each call another one, and keeps the interpreter from
exiting while a call hangs; `asyncio.run` refuses to nest. The threads here belong to no event loop:

- `EpisodeThread` runs an episode's sync code from a coroutine, all of it on one thread.
- `in_background` runs one blocking call from a coroutine, on a thread of its own.
- `run_blocking` runs a coroutine from sync code, inside a running event loop as well.
"""

import asyncio
import contextvars
import os
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_Outcome = tuple[Any, BaseException | None]


class Overrun(Exception):
    """A call took longer than allowed."""


async def in_background(function: Callable[[], T]) -> T:
    """Call a blocking function on a daemon thread of its own.

    Starting a thread takes a tenth of the time of the quickest call into a box. If the caller is
    cancelled, the function runs on and its result is dropped.

    Args:
        function: What to call. It sees the caller's context variables.

    Raises:
        Exception: Whatever the function raised. `StopIteration`, `SystemExit` and the like, which
            an event loop cannot carry, become a RuntimeError.
    """
    call = _Call(function)
    _start("gymnast-background", call)
    result: T = _result(await asyncio.wrap_future(call.future))
    return result


class EpisodeThread:
    """Runs functions one after another on one daemon thread, which it starts when needed.

    `setup`, sync tools, `reward` and `cleanup` of an episode share a thread because objects such as
    sqlite3 connections belong to the thread that made them. When a call overruns, its thread is
    abandoned: Python cannot stop it, so it ends by itself, its result is dropped, and the next call
    gets a new thread.

    Args:
        name: The name of the thread.

    Attributes:
        abandoned: How many threads have been abandoned.
    """

    def __init__(self, name: str) -> None:
        self.abandoned = 0
        self._name = name
        self._process = os.getpid()
        self._calls: queue.SimpleQueue[_Call | None] | None = None
        self._end_thread: Callable[[], Any] = _nothing

    async def run(self, function: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Run a function on the thread, without blocking the caller's event loop.

        Args:
            function: What to call. It sees the caller's context variables.
            timeout_s: How long to wait, in seconds; None: as long as it takes.

        Raises:
            Overrun: It took too long; its thread is abandoned.
            Exception: Whatever the function raised, as for `in_background`.
        """
        future = asyncio.wrap_future(self._submit(function))
        try:
            if timeout_s is None:
                await future
            elif not (await asyncio.wait((future,), timeout=timeout_s))[0]:
                raise Overrun
        except (asyncio.CancelledError, Overrun):
            future.cancel()  # the loop may be closed by the time there is a result
            self.abandoned += 1
            self.stop()
            raise
        result: T = _result(future.result())
        return result

    def stop(self) -> None:
        """Let the thread end once it is idle. A later `run` starts another."""
        self._end_thread()
        self._calls = None

    def __reduce__(self) -> tuple[Any, ...]:
        return EpisodeThread, (self._name,)  # a copy has a thread of its own, once it needs one

    def _submit(self, function: Callable[[], Any]) -> "Future[_Outcome]":
        if self._calls is None or self._process != os.getpid():  # a forked child has no thread
            self._process = os.getpid()
            self._calls = queue.SimpleQueue()
            # Called by `stop`, or when this object is garbage; the second time it does nothing.
            self._end_thread = weakref.finalize(self, self._calls.put, None)
            calls = self._calls
            _start(self._name, lambda: _serve(calls))
        call = _Call(function)
        self._calls.put(call)
        return call.future


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result, blocking this thread alone.

    All coroutines run on one private event loop, so what async code binds to its loop (a
    connection, say) lasts from one `step()` to the next. While that loop's own thread waits here,
    for a step within a step, another loop takes its place.

    Raises:
        Exception: Whatever the coroutine raised. `SystemExit` and `KeyboardInterrupt`, which would
            end the loop, become a RuntimeError.
    """
    with _lock:
        waiting = next((each for each in _loops if each.is_of_this_thread), None)
        if waiting is not None:
            waiting.blocked = True
        private = next((each for each in _loops if not each.blocked), None)
        if private is None:
            private = _PrivateLoop()
            _loops.append(private)
    future = asyncio.run_coroutine_threadsafe(_contained(coroutine), private.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # after Ctrl-C in this thread; if the coroutine raised, it does nothing
        raise
    finally:
        if waiting is not None:
            waiting.blocked = False


class _Call:
    """A function to call on another thread, and the future of its outcome.

    An exception travels as a value: asyncio's futures do not take StopIteration, and log
    exceptions that nobody retrieves.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.future: Future[_Outcome] = Future()
        self._function = function
        self._context = contextvars.copy_context()

    def __call__(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                outcome: _Outcome = self._context.run(self._function), None
            except BaseException as error:
                outcome = None, error
            self.future.set_result(outcome)


def _result(outcome: _Outcome) -> Any:
    value, error = outcome
    if error is None:
        return value
    if isinstance(error, Exception):
        raise error
    raise _as_exception(error)


def _as_exception(error: BaseException) -> RuntimeError:
    """SystemExit and the like as an exception that an event loop can carry."""
    stopped = RuntimeError(f"{type(error).__name__}: {error}")
    stopped.__cause__ = error
    return stopped


def _start(name: str, target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _serve(calls: "queue.SimpleQueue[_Call | None]") -> None:
    """Make calls until there is None; an idle thread holds no reference to an environment."""
    while (call := calls.get()) is not None:
        call()
        del call


def _nothing() -> None:
    """There is no thread to end."""


class _PrivateLoop:
    """An event loop on a thread of its own.

    Attributes:
        blocked: Its thread waits for a coroutine that runs on another loop.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.blocked = False
        self._thread = _start("gymnast-blocking", self.loop.run_forever)

    @property
    def is_of_this_thread(self) -> bool:
        return self._thread is threading.current_thread()


_lock = threading.Lock()
_loops: list[_PrivateLoop] = []


async def _contained(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise _as_exception(error) from error


def _forget() -> None:
    """A forked child has the loops, but not their threads."""
    global _lock
    _lock = threading.Lock()
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
