"""The bridge between sync and async code: daemon threads, each of which can be abandoned.

asyncio's own pool has few threads, gives each call another one, and keeps the interpreter from
exiting while a call hangs; `asyncio.run` refuses to nest. The threads here belong to no event loop:

- `EpisodeThread` runs an episode's sync code from a coroutine, all of it on one thread.
- `in_background` runs one blocking call from a coroutine, on a thread of its own.
- `run_blocking` runs a coroutine from sync code, inside a running event loop as well.

`Contained` awaits code of other authors, and `call_contained` calls it: an exception that is not an
`Exception`, such as `SystemExit`, becomes one, as it does on these threads.
"""

import asyncio
import contextvars
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from gymnast.errors import InfrastructureError, described
from gymnast.shared_threads import (
    Call,
    Outcome,
    SharedThread,
    depth,
    start_thread,
    take_thread,
)

T = TypeVar("T")

LOOP_THREAD = "gymnast-blocking"  # the name of the threads of private event loops


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
    call = Call(function)
    start_thread("gymnast-background", call)
    result: T = _result(await asyncio.wrap_future(call.future))
    return result


class EpisodeThread:
    """Runs functions one after another on one daemon thread, which it gets when needed.

    `setup`, sync tools, `reward` and `cleanup` of an episode share a thread because objects such as
    sqlite3 connections belong to the thread that made them. It is a thread of its own while there
    are at most `limit_threads` of them; beyond that, it is shared with others.

    When a call overruns, its thread is abandoned: Python cannot stop it, so it ends by itself, its
    result is dropped, and the next call gets another thread. Others that share it wait for it to
    come back; after `STUCK_S` seconds their calls fail.

    Args:
        name: The name of the thread.

    Attributes:
        abandoned: How many threads have been abandoned.
    """

    def __init__(self, name: str) -> None:
        self.abandoned = 0
        self._name = name
        self._process = os.getpid()
        self._thread: SharedThread | None = None
        self._leave: Callable[[], Any] = _nothing

    async def run(self, function: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Run a function on the thread, without blocking the caller's event loop.

        Args:
            function: What to call. It sees the caller's context variables.
            timeout_s: How long it may take, in seconds; None: as long as it takes. Like the
                `time_limit` that it runs in, it does not count the wait for others on the thread.

        Raises:
            Overrun: It took too long; its thread is abandoned.
            InfrastructureError: It shares its thread with a call that hangs.
            Exception: Whatever the function raised, as for `in_background`.
        """
        call, thread = Call(function), self._own_thread()
        thread.submit(call)
        future = asyncio.wrap_future(call.future)
        try:
            if call.begun is not None:
                await _turn(call.begun, thread)
            if timeout_s is None:
                await future
            elif not (await asyncio.wait((future,), timeout=timeout_s))[0]:
                raise Overrun
        except (asyncio.CancelledError, Overrun, InfrastructureError) as error:
            future.cancel()  # the loop may be closed by the time there is a result
            if not call.future.cancel():
                self.abandoned += 1
                thread.give_up(call)
                self.stop()
            elif isinstance(error, InfrastructureError):
                self.stop()
            raise
        result: T = _result(future.result())
        return result

    def stop(self) -> None:
        """Let the thread end once it is idle, if nobody shares it. A later `run` gets another."""
        self._leave()
        self._thread = None

    def __reduce__(self) -> tuple[Any, ...]:
        return EpisodeThread, (self._name,)  # a copy has a thread of its own, once it needs one

    def _own_thread(self) -> SharedThread:
        if self._process != os.getpid():  # a forked child has no thread
            self._process, self._thread = os.getpid(), None
        thread = self._thread
        if thread is not None and thread.depth < depth() and len(thread.users) > 1:
            self.stop()  # somebody on it may wait for this very call
        if self._thread is None:
            self._thread = take_thread(self._name, id(self))
            # Called by `stop`, or when this object is garbage; the second time it does nothing.
            self._leave = weakref.finalize(self, self._thread.leave, id(self))
        return self._thread


STUCK_S = 60.0
"""How long a call waits for a thread that is in an abandoned call of somebody else."""

_limit: contextvars.ContextVar[asyncio.Timeout | None] = contextvars.ContextVar(
    "gymnast_time_limit", default=None
)


@asynccontextmanager
async def time_limit(timeout_s: float) -> AsyncIterator[None]:
    """Limit the time of what is awaited inside, without waits for a thread that others use.

    Raises:
        Overrun: The time is up.
    """
    try:
        async with asyncio.timeout(timeout_s) as scope:
            token = _limit.set(scope)
            try:
                yield
            finally:
                _limit.reset(token)
    except TimeoutError:
        if scope.expired():
            raise Overrun from None
        raise


async def _turn(begun: "Future[None]", thread: SharedThread) -> None:
    """Wait until a call begins; its time limit stands still.

    Raises:
        InfrastructureError: The thread hangs in a call of somebody else.
    """
    loop, scope, future = asyncio.get_running_loop(), _limit.get(), asyncio.wrap_future(begun)
    when = None if scope is None else scope.when()
    waited = -loop.time()
    if scope is not None and when is not None:
        scope.reschedule(None)
    while not (await asyncio.wait((future,), timeout=STUCK_S))[0]:
        if thread.hangs:
            raise InfrastructureError(
                f"a sync call waited {STUCK_S:g} s for a thread that hangs in the call of another "
                "episode. Give what hangs a limit of its own, write it as `async def`, or raise "
                "the number of threads (trainer.max_threads, gymnast.shared_threads.limit_threads)"
            )
    waited += loop.time()
    if scope is not None and when is not None:
        scope.reschedule(when + waited)


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


class Contained(Awaitable[T]):
    """Awaits code of other authors, which must end neither the event loop nor the run.

        result = await Contained(tool(**arguments))

    `SystemExit`, `GeneratorExit`, `BaseExceptionGroup` and other exceptions that are not an
    `Exception` become a RuntimeError with the original as `__cause__`. `CancelledError` and
    `KeyboardInterrupt` pass; a group that holds a `KeyboardInterrupt` becomes one, since task
    groups of other libraries wrap Ctrl-C so. A `GeneratorExit` passes where this coroutine is
    closed, rather than raised by the code: hence the loop by hand.

    Args:
        awaitable: A coroutine, a task, or anything else that can be awaited.
    """

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine = _awaited(self._awaitable)
        resume: Callable[[], Any] = partial(coroutine.send, None)
        while True:
            try:
                waits_for = resume()
            except StopIteration as ended:
                result: T = ended.value
                return result
            except (Exception, asyncio.CancelledError, KeyboardInterrupt):
                raise
            except BaseException as error:
                if _holds_interrupt(error):
                    raise KeyboardInterrupt from error
                raise as_exception(error) from error
            try:
                value = yield waits_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                resume = partial(coroutine.throw, error)
            else:
                resume = partial(coroutine.send, value)


def _holds_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_holds_interrupt, error.exceptions))
    return isinstance(error, KeyboardInterrupt)


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def call_contained(function: Callable[[], T]) -> T:
    """Call code of other authors on this thread; see `Contained`.

    Raises:
        Exception: Whatever it raised, or a RuntimeError in place of what is not an `Exception`.
        KeyboardInterrupt: Likewise.
    """
    try:
        return function()
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise as_exception(error) from error


def being_cancelled() -> bool:
    """Return True if the current task is cancelled, rather than something that it waits for."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # this thread has no event loop
        return False
    return task is not None and task.cancelling() > 0


def as_exception(error: BaseException) -> RuntimeError:
    """SystemExit and the like as an exception that an event loop can carry."""
    stopped = RuntimeError(described(error))
    stopped.__cause__ = error
    return stopped


def _result(outcome: Outcome) -> Any:
    value, error = outcome
    if error is None:
        return value
    if isinstance(error, Exception):
        raise error
    raise as_exception(error)


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
        self._thread = start_thread(LOOP_THREAD, self.loop.run_forever)

    @property
    def is_of_this_thread(self) -> bool:
        return self._thread is threading.current_thread()


_lock = threading.Lock()
_loops: list[_PrivateLoop] = []


async def _contained(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise as_exception(error) from error


def _forget() -> None:
    """A forked child has the loops, but not their threads."""
    global _lock
    _lock = threading.Lock()
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
