"""A run in a notebook: one output that is replaced in place, and the last episode folded below it.

It needs IPython, which every notebook's kernel has, and no widgets. Nothing is drawn by a clock:
each event of the run draws, but not more often than twice a second.
"""

import io
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rich.console import Console, Group, RenderableType

from gymnast.trainers.reporting.live.terminal import Lines

WIDTH = 100
HEIGHT = 20
_AT_MOST_EVERY_S = 0.5
_STYLE = "white-space:pre; overflow-x:auto; line-height:1.3; font-family:monospace"


class NotebookRegion:
    """Shows lines in the output of a notebook's cell.

    Args:
        lines: Makes the lines for a width and a height.
        sample: The last episode, where there is one.
    """

    def __init__(self, lines: Lines, sample: Callable[[], RenderableType | None]) -> None:
        self._lines, self._sample = lines, sample
        self._view = self._folded = None
        self._drawn = 0.0

    def start(self) -> None:
        """Add the output."""
        self._view = _display(self._bundle())

    def refresh(self) -> None:
        """Draw what is new, unless something was drawn just now."""
        if self._view is not None and time.monotonic() - self._drawn >= _AT_MOST_EVERY_S:
            self._draw()

    def show_sample(self) -> None:
        """Replace the folded episode."""
        if (sample := self._sample()) is None:
            return
        summary = "<details><summary>the last sample</summary>{}</details>"
        bundle = _as_bundle(sample, summary)
        if self._folded is None:
            self._folded = _display(bundle)
        else:
            _update(self._folded, bundle)

    def stop(self) -> None:
        """Draw the last time; the output stays."""
        if self._view is not None:
            self._draw()

    def give_back(self) -> None:
        """There is nothing to give back."""

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        _update(self._view, self._bundle())

    def _bundle(self) -> dict[str, str]:
        return _as_bundle(Group(*self._lines(WIDTH, HEIGHT)))


def _as_bundle(shown: RenderableType, form: str = "{}") -> dict[str, str]:
    """What is shown as HTML and, where HTML is not, as text."""
    console = Console(
        file=io.StringIO(), width=WIDTH, record=True, force_terminal=True, force_jupyter=False
    )
    console.print(shown)
    text = console.export_text(clear=False)
    code = console.export_html(inline_styles=True, code_format="{code}")
    return {"text/html": form.format(f'<div style="{_STYLE}">{code}</div>'), "text/plain": text}


def _display(bundle: dict[str, str]) -> Any:
    return _ipython().display(bundle, raw=True, display_id=True)


def _update(handle: Any, bundle: dict[str, str]) -> None:
    _ipython().update_display(bundle, raw=True, display_id=handle.display_id)


def _ipython() -> Any:
    """`IPython.display`, which a notebook's kernel has and Gymnast does not ask for."""
    return import_module("IPython.display")
