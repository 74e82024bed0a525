"""An evaluation on its own on the console: how far it is, a few episodes, and the table at the end.

On a terminal a bar moves; elsewhere a line is written every half minute, and less often the longer
it takes. `RunConsole` shows the evaluations of a run.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gymnast.trainers.base.observer import Groups
from gymnast.trainers.evaluation.metrics import PREFIX
from gymnast.trainers.evaluation.progress import SoFar
from gymnast.trainers.reporting.lines import episode_line, episode_table, missing
from gymnast.trainers.reporting.live.durations import duration
from gymnast.trainers.reporting.shown_episodes import pick_episodes
from gymnast.trainers.reporting.table import aligned, shown_number, summary_cells, summary_table
from gymnast.visible import visible_line

LINE_EVERY_S = 30.0
LINE_EVERY_SHARE = 0.05  # of the time that has passed, where that is longer


class EvaluationConsole:
    """Shows an evaluation to people.

    Args:
        console: Where to write; by default standard output.
        detailed: Whether every number is written too.
    """

    def __init__(self, console: Console | None = None, *, detailed: bool = False) -> None:
        self._console = console or Console(highlight=False)
        self._detailed = detailed
        self._progress: Progress | None = None
        self._bar: Any = None
        self._started = self._written = time.monotonic()

    @contextmanager
    def showing(self) -> Iterator[None]:
        """On a terminal, show the bar within the block."""
        self._started = self._written = time.monotonic()
        if not self._console.is_terminal:
            yield
            return
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self._bar = self._progress.add_task("evaluating", total=None, note="")
        try:
            with self._progress:
                yield
        finally:
            self._progress = None

    def on_resumed(self, before: int, total: int) -> None:
        """Write how many episodes are there."""
        self._write(f"going on: {before} of {total} episodes are there")

    def on_episode(self, so_far: SoFar) -> None:
        """Move the bar, or write a line where one is due."""
        line = progress_line(so_far)
        if self._progress is not None:
            self._progress.update(
                self._bar, total=so_far.total, completed=so_far.over, description=line
            )
            return
        now = time.monotonic()
        pause = max(LINE_EVERY_S, LINE_EVERY_SHARE * (now - self._started))
        if now - self._written >= pause and so_far.over < so_far.total:
            self._written = now
            self._write(f"{time.strftime('%H:%M:%S')} {line}")

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """Write a few episodes, what is missing, and last the table."""
        if self._progress is not None:
            self._progress.stop()
        if self._detailed:
            for name in sorted(metrics):
                self._write(f"{name} {metrics[name]:.6g}")
        self._write_episodes(groups)
        took = duration(time.monotonic() - self._started)
        finished = metrics.get(f"{PREFIX}episodes/finished", 0)
        std = shown_number(metrics.get(f"{PREFIX}reward/std"))
        self._write(
            f"evaluation: {finished:.0f} episodes  std {std}  {took}{missing(metrics, PREFIX)}"
        )
        write_table(self._console, summary_cells(metrics))

    def _write_episodes(self, groups: Groups) -> None:
        episodes = pick_episodes(groups)
        if not self._console.is_terminal:
            for episode in episodes:
                self._write(f"  {episode_line(episode)}")
        elif episodes:
            self._console.print(episode_table(episodes))

    def _write(self, line: str) -> None:
        # Only a terminal has a width; the lines of a log are never broken.
        text = Text(visible_line(line))
        self._console.print(text, soft_wrap=not self._console.is_terminal)


def progress_line(so_far: SoFar) -> str:
    """How far an evaluation is, in one line."""
    parts = [f"{so_far.over} of {so_far.total} episodes"]
    if so_far.before:
        parts.append(f"{so_far.before} from before")
    if so_far.reward is not None:
        parts.append(f"reward {so_far.reward:.3f}")
    if so_far.cost:
        parts.append(f"cost {so_far.cost:.4g}")
    return "  ".join(parts)


def write_table(
    console: Console,
    cells: Sequence[Sequence[str]],
    on_terminal: Callable[[Sequence[Sequence[str]]], Table] = summary_table,
) -> None:
    """Write a table: narrow on a terminal, aligned elsewhere; nothing without cells.

    Args:
        console: Where to write it.
        cells: A header, and its lines.
        on_terminal: Makes the table of a terminal.
    """
    if not cells:
        return
    if console.is_terminal:
        console.print(on_terminal(cells))
        return
    for line in aligned(cells):
        console.print(Text(line), soft_wrap=True)
