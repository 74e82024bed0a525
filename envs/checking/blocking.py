"""Async code that holds up the event loop: `time.sleep` in an `async def`, say.

All episodes of a process run on one event loop, so nothing goes on while a coroutine does not
await. A thread looks at what the loop's thread runs: the author's `async def` is on its stack only
while it does not wait for something.
"""

import inspect
import sys
import threading
import time
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

from gymnast.envs.checking.shared_values import modules_of, written_classes
from gymnast.envs.environment.environment import Environment
from gymnast.envs.tools.marks import plain_function
from gymnast.shared_threads import start_thread
from gymnast.threads import LOOP_THREAD

_EVERY_S = 0.02
_LONGEST_S = 0.1  # that a coroutine may run without awaiting


class LoopWatch:
    """Within its block, looks for the author's coroutines that hold up the event loop.

    Args:
        env: Its class and the modules of that class are the author's.
    """

    def __init__(self, env: Environment) -> None:
        cls = type(env)
        self._files = {getattr(module, "__file__", None) for module in modules_of(cls)} - {None}
        values = [value for base in written_classes(cls) for value in vars(base).values()]
        self._codes = {getattr(plain_function(value), "__code__", None) for value in values}
        self._held: dict[CodeType, tuple[float, int]] = {}  # the longest time, and its line
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin."""
        self._thread = start_thread("gymnast-watch", self._watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: Any, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def odd(self) -> tuple[str, ...]:
        """A sentence for each coroutine function that held up the loop."""
        return tuple(
            f"{code.co_qualname} is `async def` and held up the event loop for {seconds:.1f} s or "
            f"more, in line {line}: all episodes wait meanwhile. Await what takes long, or write "
            "it as `def`, which runs on a thread"
            for code, (seconds, line) in self._held.items()
        )

    def _watch(self) -> None:
        last: FrameType | None = None
        since = 0.0
        while not self._ended.wait(_EVERY_S):
            frame, now = self._frame(), time.monotonic()
            if frame is None or frame is not last:
                last, since = frame, now
            elif (held := now - since) > max(_LONGEST_S, self._held.get(frame.f_code, (0, 0))[0]):
                self._held[frame.f_code] = held, frame.f_lineno

    def _frame(self) -> FrameType | None:
        """The author's coroutine that runs on an event loop at this moment."""
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0) if thread.name == LOOP_THREAD else None
            found = None
            while frame is not None:
                if self._is_authors(frame.f_code):
                    found = frame
                frame = frame.f_back
            if found is not None:
                return found
        return None

    def _is_authors(self, code: CodeType) -> bool:
        asynchronous = code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
        return bool(asynchronous) and (code in self._codes or code.co_filename in self._files)
