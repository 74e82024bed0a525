"""Single keys of the terminal that a run was started at, without holding it up.

Within `start` and `stop` the terminal hands over each key at once and does not echo it. Ctrl-C and
its like are signals as before; Ctrl-Z, which would leave a shell with a terminal in that state, is
read as a key: the terminal is put back before the processes of the run are stopped, and taken again
when they go on in the foreground. In the background nothing is read: that would stop the process.

Without a terminal, and where Python has no `termios` (Windows), no key is read.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

_POLL_S = 0.5
_GAP_S = 4 * _POLL_S  # a process that slept for longer has been stopped
_STOPPING_S = 0.1  # the thread that sends a signal may go on for a moment before all threads stop
_SUSPEND = "\x1a"


class Keyboard:
    """Calls a function for each key that is pressed, on a thread of its own.

    Args:
        pressed: The functions by key, which raise nothing.
        leave: Is called before the terminal is given back because the run is stopped or goes on in
            the background.
        enter: Is called when the run has the terminal again.
    """

    def __init__(
        self,
        pressed: Mapping[str, Callable[[], object]],
        *,
        leave: Callable[[], object] = bool,
        enter: Callable[[], object] = bool,
    ) -> None:
        self._pressed, self._leave, self._enter = pressed, leave, enter
        self._terminal = terminal_of_input()
        self._before: list[Any] | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._taken = False

    @property
    def reads(self) -> bool:
        """Whether there is a terminal to read keys of."""
        return self._terminal is not None

    def start(self) -> None:
        """Begin to read keys, where there is a terminal; in the background, once it is ours."""
        if self._terminal is None:
            return
        self._over.clear()
        if self._is_ours():
            self._take()
        else:
            self._leave()
        self._thread = threading.Thread(target=self._read, name="keyboard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read no more keys, and leave the terminal as it was found."""
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * _POLL_S)
        self.give_back()

    def give_back(self) -> None:
        """Put the terminal back at once; also for a signal's handler."""
        if self._taken and self._is_ours():
            self._taken = False
            self._set(self._before)

    def _read(self) -> None:
        assert self._terminal is not None
        last = time.monotonic()
        while not self._over.is_set():
            ours, now = self._is_ours(), time.monotonic()
            if ours and not self._taken:
                self._take()
                self._enter()
            elif ours and now - last > _GAP_S:
                self._take()  # a shell may have put it back
            last = now
            if not ours:
                self._over.wait(_POLL_S)
            elif select.select([self._terminal], [], [], _POLL_S)[0] and self._is_ours():
                self._handle()

    def _handle(self) -> None:
        """Handle what was typed."""
        assert self._terminal is not None
        try:
            typed = os.read(self._terminal, 64).decode(errors="replace")
        except OSError:  # the terminal is gone
            typed = ""
        if not typed:
            self._over.wait(_POLL_S)
        for key in typed:
            if key == _SUSPEND:
                self._suspend()
            elif key in self._pressed:
                self._pressed[key]()

    def _suspend(self) -> None:
        """Do what Ctrl-Z does, with the terminal as it was; returns when the run goes on."""
        self._leave()
        self.give_back()
        os.killpg(0, signal.SIGTSTP)
        time.sleep(_STOPPING_S)

    def _take(self) -> None:
        """Have the terminal hand over each key; the first time, keep how it was."""
        assert self._terminal is not None
        try:
            self._before = self._before or termios.tcgetattr(self._terminal)
            mode = [*self._before]
            mode[3] &= ~(termios.ICANON | termios.ECHO)
            mode[6] = [*mode[6]]
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 0, 0
            mode[6][termios.VSUSP] = b"\0"  # no character: _POSIX_VDISABLE
        except termios.error:  # the terminal is gone
            return
        self._taken = True  # before it is: Ctrl-C may come between the two
        self._taken = self._set(mode)

    def _set(self, mode: Any) -> bool:
        assert self._terminal is not None
        try:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, mode)
        except (OSError, termios.error):
            return False
        return True

    def _is_ours(self) -> bool:
        """Whether the run is in the foreground of the terminal."""
        assert self._terminal is not None
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:
            return False


def terminal_of_input() -> int | None:
    """The file descriptor of standard input if keys can be read of it; otherwise None."""
    if termios is None or sys.stdin is None:
        return None
    try:
        terminal = sys.stdin.fileno()
    except (OSError, ValueError):  # somebody has put something else in its place
        return None
    return terminal if os.isatty(terminal) else None
