"""The region at the bottom of a terminal that shows a run; what is written goes above it.

`print` and what else writes to `sys.stdout` and `sys.stderr` in this process goes above the region
too. The cursor stays visible, so that a process that is killed leaves no terminal without one.
"""

import os
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gymnast.trainers.reporting.live.keyboard import Keyboard

Lines = Callable[[int, int], list[Text]]

# A terminal that becomes narrower folds longer lines, and what was drawn cannot be found again.
WIDEST = 100
REFRESHED_PER_S = 2


class TerminalRegion:
    """Draws lines at the bottom of a terminal, and again twice a second.

    Args:
        console: Writes to the terminal.
        lines: Makes the lines for a width and a height.
        pressed: What keys do.
        hint: What they do, in words; the last line.
    """

    def __init__(
        self,
        console: Console,
        lines: Lines,
        pressed: Mapping[str, Callable[[], object]],
        hint: str = "",
    ) -> None:
        self._console, self._lines, self._hint = console, lines, hint
        self._keyboard = Keyboard(pressed, leave=self._hide, enter=self._show)
        self._live: Live | None = None
        self._notice = ""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Draw the region and read keys."""
        self._show()
        self._keyboard.start()

    def refresh(self) -> None:
        """Draw what is new at once."""
        if (live := self._live) is not None:
            live.refresh()

    def stop(self) -> None:
        """Remove the region, and leave the terminal as it was found."""
        self._keyboard.stop()
        self._hide()

    def notice(self, text: str) -> bool:
        """Show a line in place of the hint when the region is drawn next; whether it will be.

        A signal's handler may call it: it takes no lock.
        """
        self._notice = text
        return self._live is not None

    def give_back(self) -> None:
        """Put the terminal back at once; also for a signal's handler."""
        self._keyboard.give_back()

    def _show(self) -> None:
        with self._lock:
            if self._live is not None:
                return
            self._live = Live(
                console=self._console,
                get_renderable=self._drawn,
                transient=True,
                refresh_per_second=REFRESHED_PER_S,
                # What goes to a file goes on going there.
                redirect_stdout=_is_terminal(sys.stdout),
                redirect_stderr=_is_terminal(sys.stderr),
            )
            self._live.start(refresh=True)
            self._console.show_cursor(True)

    def _hide(self) -> None:
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                live.stop()

    def _drawn(self) -> Group:
        size = self._console.size
        width, height = max(1, min(size.width - 1, WIDEST)), size.height - 2
        below = self._below(width) if height > 2 else []
        return Group(*self._lines(width, max(1, height - len(below))), *below)

    def _below(self, width: int) -> list[Text]:
        """The last lines: what was noticed, or else what keys do."""
        if self._notice:
            return [Text(line, style="yellow") for line in textwrap.wrap(self._notice, width)]
        if not (self._hint and self._keyboard.reads):
            return []
        hint = Text(self._hint, style="bright_black", no_wrap=True)
        hint.truncate(width)
        return [hint]


def _is_terminal(stream: object) -> bool:
    try:
        return os.isatty(stream.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
