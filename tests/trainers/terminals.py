"""A terminal as a person sees it: a program runs at a pty, and a screen is made of its output."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pyte

WAIT_S = 60.0


class Terminal:
    """A program at a terminal of its own, in the foreground.

    Args:
        command: The program and its arguments.
        columns: Of the terminal.
        lines: Of the terminal.
        env: Variables besides those of this process.
        cwd: Where the program runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 100,
        lines: int = 40,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.raw = b""
        self._screen = pyte.HistoryScreen(columns, lines, history=5000)
        self._stream = pyte.ByteStream(self._screen)
        self.resize(columns, lines)
        plain = {
            name: value
            for name, value in os.environ.items()
            if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        }
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=plain | {"TERM": "xterm-256color"} | dict(env or {}),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def type(self, keys: str) -> None:
        """Type some keys."""
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the terminal, which its program is told."""
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, shows: str | Callable[[list[str]], bool]) -> list[str]:
        """Wait until the screen shows a text, or what a function looks for; returns its lines."""
        found = shows if callable(shows) else lambda lines: any(shows in line for line in lines)
        ends = time.monotonic() + WAIT_S
        while not found(self.lines):
            assert time.monotonic() < ends, f"{shows!r} did not come:\n" + "\n".join(self.lines)
            assert self._read(), f"{shows!r} did not come, it ended:\n" + "\n".join(self.lines)
        return self.lines

    def end(self) -> int:
        """Wait until the program ends; returns its exit code."""
        while self._read():
            pass
        return self.process.wait(WAIT_S)

    @property
    def lines(self) -> list[str]:
        """What stands on the screen."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def cursor_is_shown(self) -> bool:
        """Whether the terminal shows its cursor."""
        return not self._screen.cursor.hidden

    @property
    def is_cooked(self) -> bool:
        """Whether the terminal echoes, hands over whole lines, and stops a program by Ctrl-Z."""
        mode = termios.tcgetattr(self._ours)
        wanted = termios.ICANON | termios.ECHO | termios.ISIG
        return bool(mode[3] & wanted == wanted and mode[6][termios.VSUSP] == b"\x1a")

    def send(self, number: signal.Signals) -> None:
        """Send the program a signal."""
        self.process.send_signal(number)

    def _read(self) -> bool:
        """Take what the program has written; False once it has ended."""
        if not select.select([self._ours], [], [], 0.2)[0]:
            return self.process.poll() is None
        try:
            said = os.read(self._ours, 65536)
        except OSError:  # nobody has the other end open
            return False
        self.raw += said
        self._stream.feed(said)
        return True
