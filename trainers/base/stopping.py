"""Ctrl-C and SIGTERM during a run: the first asks it to stop, a second ends it at once.

A run stops between two steps. Episodes under way are cancelled; an update is finished, because the
weights in the middle of one belong to no step. Then everything is saved as at the end of a run
(`trainers/saving/ending.py`).
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TypeVar

from gymnast.threads import run_blocking

T = TypeVar("T")

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Stopped(Exception):
    """Episodes were cancelled because the run is to stop; never leaves the trainer."""


class Screen(Protocol):
    """What shows a run at a terminal. A signal's handler calls it, so it takes no lock."""

    def notice(self, text: str) -> bool:
        """Show a line soon; returns whether it will be."""
        ...

    def give_back(self) -> None:
        """Leave the terminal as it was found, at once."""
        ...


class Stopping:
    """Whether a run is to stop; cancels its episodes then.

    Args:
        screen: Shows the run; None: nothing does.

    Attributes:
        by: What asked for it: "Ctrl-C", "SIGTERM", or "" if nothing has.
    """

    def __init__(self, screen: Screen | None = None) -> None:
        self.by = ""
        self._screen = screen
        self._number: signal.Signals | None = None
        self._give_up: Callable[[], Any] | None = None
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within the block, both signals ask the run to stop.

        A program's own handler of SIGINT stays, and so does a signal that is ignored. Outside the
        main thread, which alone can install handlers, nothing changes.
        """
        self.by, self._number = "", None
        if threading.current_thread() is threading.main_thread():
            for number in NAMES:
                before = signal.getsignal(number)
                own = number == signal.SIGINT and before is not signal.default_int_handler
                if before not in (None, signal.SIG_IGN) and not own:
                    self._before[number] = before
                    signal.signal(number, self._asked)
        try:
            yield
        finally:
            self._restore()
            self.by = ""  # what comes after the run is not cancelled

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, even inside a running loop (a notebook).

        Raises:
            Stopped: The run is to stop; the coroutine was cancelled.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._unless_stopped(coroutine))
        return run_blocking(self._unless_stopped(coroutine))

    def pass_on(self) -> None:
        """Once all is saved, let SIGTERM do what it did before; Ctrl-C is dealt with."""
        if self._number == signal.SIGTERM:
            signal.raise_signal(self._number)

    async def _unless_stopped(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop, playing = asyncio.get_running_loop(), asyncio.ensure_future(coroutine)
        self._give_up = lambda: loop.call_soon_threadsafe(playing.cancel)
        try:
            if self.by:
                playing.cancel()
            return await playing
        except asyncio.CancelledError:
            if self.by:
                raise Stopped from None
            raise
        finally:
            self._give_up = None

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.by:
            before = self._before[signal.Signals(number)]
            self._restore()
            if self._screen is not None:
                self._screen.give_back()
            if callable(before):
                before(number, frame)
            else:
                os.kill(os.getpid(), number)
            return
        self._number = signal.Signals(number)
        self.by = NAMES[self._number]
        if os.environ.get("RANK", "0") == "0":
            message = f"{self.by}: the run stops and is saved; a second one ends it at once"
            if self._screen is None or not self._screen.notice(message):
                # Not by a logger or print: the line that was interrupted may be within one.
                os.write(2, f"\n{message}\n".encode())
        if self._give_up is not None:
            self._give_up()

    def _restore(self) -> None:
        for number, before in [*self._before.items()]:
            signal.signal(number, before)
        self._before.clear()  # last: a signal may arrive until then
