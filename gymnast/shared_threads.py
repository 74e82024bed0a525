"""The threads that run sync code of episodes: as many as there are episodes, up to a limit.

Within the limit everybody has a thread of its own. Beyond it threads are shared: everybody stays on
the thread that it got, where calls are made one after another.
"""

import contextvars
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from gymnast.errors import UsageError

MAX_THREADS = 256

Outcome = tuple[Any, BaseException | None]
_depth = contextvars.ContextVar("gymnast_call_depth", default=0)


class Progress:
    """How far a call is, for those who come after it and must not keep what it holds.

    Attributes:
        over: Whether it was made, or cancelled before.
    """

    over = False


class Call:
    """A function to call on another thread, and the future of its outcome.

    An exception travels as a value: asyncio's futures do not take StopIteration, and log
    exceptions that nobody retrieves.

    Attributes:
        future: Of the outcome.
        begun: Of the moment when it is this call's turn; None where nothing is before it.
        progress: Of the call.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.future: Future[Outcome] = Future()
        self.begun: Future[None] | None = None
        self.progress = Progress()
        self._function = function
        self._context = contextvars.copy_context()

    def __call__(self) -> None:
        """Make the call, unless it was cancelled."""
        if self.begun is not None and self.begun.set_running_or_notify_cancel():
            self.begun.set_result(None)
        if self.future.set_running_or_notify_cancel():
            try:
                outcome: Outcome = self._context.run(_one_deeper, self._function), None
            except BaseException as error:
                outcome = None, error
            self.progress.over = True
            self.future.set_result(outcome)
        self.progress.over = True


def _one_deeper(function: Callable[[], Any]) -> Any:
    _depth.set(_depth.get() + 1)
    return function()


def depth() -> int:
    """How many calls on threads wait for the code that asks."""
    return _depth.get()


class SharedThread:
    """A daemon thread, and who uses it.

    Attributes:
        depth: Of the calls that it makes. A call waits only for calls that are deeper than itself,
            so calls of one depth share threads and never wait for one another in a circle.
        users: Keys of those who stay on it.
        ended: Whether it makes no more calls.
    """

    def __init__(self, name: str, depth: int) -> None:
        self.depth = depth
        self.users: dict[int, None] = {}
        self.ended = False
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._last = self._given_up = Progress()
        self._last.over = True
        self._start: Callable[[], object] = partial(
            start_thread, name, partial(_serve, self._calls)
        )

    def start(self) -> None:
        """Start it."""
        self._start()

    @property
    def hangs(self) -> bool:
        """Whether it is in a call that nobody waits for any more."""
        return not self._given_up.over

    def submit(self, call: Call) -> None:
        """Make a call once those before it are over."""
        last, self._last = self._last, call.progress
        if not last.over and (len(self.users) > 1 or self.hangs):
            call.begun = Future()
        self._calls.put(call)

    def give_up(self, call: Call) -> None:
        """Note that nobody waits for a call any more which has begun."""
        self._given_up = call.progress

    def leave(self, key: int) -> None:
        """Take a user off; the thread ends after the last one, once it is idle."""
        with _lock:
            self.users.pop(key, None)
            if self.users or self.ended:
                return
            self.ended = True
            self._calls.put(None)
            if self in _threads:
                _threads.remove(self)


def take_thread(name: str, key: int) -> SharedThread:
    """A thread of its own for a user; where there are too many, that with the fewest users.

    Args:
        name: Of the thread, if it is a new one.
        key: Of the user.
    """
    here = depth()
    while True:
        with _lock:
            known = [each for each in _threads if each.depth == here and not each.hangs]
            new = len(known) < _most
            if new:
                thread = SharedThread(name, here)
                _threads.append(thread)
            else:
                thread = min(known, key=lambda each: len(each.users))
            thread.users[key] = None
        if new:  # not under the lock, which a new thread may need for what it collects as garbage
            thread.start()
        if not thread.ended:  # by the garbage collector, between two of these lines
            return thread


def limit_threads(most: int = MAX_THREADS) -> None:
    """Set how many threads run the sync code of episodes in this process (256 by default).

    More episodes than that share threads: each stays on one, and its calls wait for those of the
    others on it. Threads that exist stay. Code that steps environments within a sync tool of
    another has as many threads again; so has every further level.

    Raises:
        UsageError: It is below 1.
    """
    global _most
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise UsageError(f"limit_threads: must be a whole number >= 1, got {most!r:.100}")
    _most = most


def thread_limit() -> int:
    """How many threads run the sync code of episodes in this process at most."""
    return _most


def start_thread(name: str, target: Callable[[], object]) -> threading.Thread:
    """Start a daemon thread."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _serve(calls: "queue.SimpleQueue[Call | None]") -> None:
    """Make calls until there is None; an idle thread holds no reference to an environment."""
    while (call := calls.get()) is not None:
        call()
        del call


_lock = threading.RLock()  # the garbage collector may call `leave` at any point
_threads: list[SharedThread] = []
_most = MAX_THREADS


def _forget() -> None:
    """A forked child has no threads but the one that forked."""
    global _lock
    _lock = threading.RLock()
    _threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
