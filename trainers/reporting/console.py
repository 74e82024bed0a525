"""A run on the console: one line per step, the evaluations, a few episodes, the time left.

`RunConsole` draws with rich where the output is a terminal; elsewhere (a log file, a CI job) it
writes one short line per step and nothing that moves.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gymnast.envs.boxes.box import BROKEN
from gymnast.trainers.base.observer import SOLVED, Advice, Groups
from gymnast.trainers.reporting.shown_episodes import ShownEpisode, pick_episodes
from gymnast.trainers.reporting.table import (
    aligned,
    headline,
    shown_number,
    summary_cells,
    summary_table,
)
from gymnast.visible import visible_line

_LONGEST_PROMPT = 120
_LONGEST_EVENT = 160


class RunConsole:
    """An `Observer` that shows a run to people.

    Episodes are shown after every evaluation, and after the last step of a run without one.

    Args:
        console: Where to write; by default standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._progress: Progress | None = None
        self._bar: Any = None
        self._steps = self._warmup_steps = 0
        self._step_s: list[float] = []
        self._evaluated = False
        self._last_groups: Groups = ()

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        """Write what a step takes of memory, and show the bar, on a terminal."""
        self._steps = int(trainer_info["steps"])
        self._warmup_steps = int(trainer_info.get("warmup_steps", 0))
        if memory := trainer_info.get("memory"):
            self._write(f"memory: {memory}")
        start = int(trainer_info.get("start", 0))
        if not self._console.is_terminal:
            return
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),  # with the spinner, it moves where nothing else does
            TextColumn("{task.fields[note]}"),
            console=self._console,
            transient=True,
            refresh_per_second=2,
        )
        self._bar = self._progress.add_task(
            f"step {start}/{self._steps}", total=self._steps, completed=start, note=""
        )
        self._progress.start()

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        """Move the bar by the share of episodes that ended."""
        self._move(step - 1 + done / max(1, total), step, f"{done}/{total} episodes")

    def on_warmup_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the line of a step of the warm-up."""
        self._write(warmup_line(step, self._warmup_steps, metrics))

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """Write the step's line."""
        self._last_groups = groups
        self._step_s.append(metrics.get("time/step_s", 0.0))
        left = duration(self._seconds_left(step))
        self._move(step, step, f"{left} left")
        line = step_line(step, self._steps, metrics)
        # On a terminal the bar shows the time left, and lines are short.
        self._write(line if self._console.is_terminal else f"{line}  left {left}")

    def on_advice(self, advice: Advice) -> None:
        """Write why the run does not learn, or that it has nothing left to learn."""
        self._write(f"step {advice.step}, {advice.heading}: {advice}", style="yellow")

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """Write the evaluation's line, a table if it has parts, and a few of its episodes."""
        self._evaluated = True
        episodes = sum(len(group) for group in groups)
        alone = not self._steps  # there is no training around it
        when = "" if alone else f" after step {step}"
        if "warmup/step" in metrics:
            when = " after the warm-up"
        self._write(
            f"evaluation{when}: {headline(metrics)}  episodes {episodes}"
            + missing(metrics, "eval/"),
            style="bold",
        )
        cells = summary_cells(metrics)
        if len(cells) > (1 if alone else 2):
            self._write_summary(cells)
        self._write_episodes(groups)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Remove the bar and write the results of the run."""
        self.close()
        if not self._evaluated:
            self._write_episodes(self._last_groups)
        if "before" in summary and "after" in summary:
            warm = summary.get("after_warmup")
            between = "" if warm is None else f"{shown_number(warm)} after the warm-up, "
            self._write(
                f"evaluation reward: {shown_number(summary['before'])} before, {between}"
                f"{shown_number(summary['after'])} after",
                style="bold",
            )
        train_s = summary.get("train/seconds", summary.get("seconds", 0.0))
        train_cpu_s = summary.get("train/cpu_seconds", summary.get("cpu_seconds", 0.0))
        self._write(f"trained for {duration(train_s)} ({train_cpu_s:.0f} CPU seconds)")
        if standing := summary.get("advice"):
            causes = ", ".join(advice.cause for advice in standing)
            # Where another cause holds as well, the run has that to mend.
            told = next((advice for advice in standing if advice.cause != SOLVED), standing[0])
            line = f"{told.heading} at the end: {causes} (see above and {told.page})"
            self._write(line, style="yellow")

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """On a terminal, show what is being waited for below what is written meanwhile."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(escape(visible_line(what))):
            yield

    def close(self) -> None:
        """Remove the bar; also called when a run ends with an exception."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _move(self, completed: float, step: int, note: str) -> None:
        if self._progress is not None:
            description = f"step {step}/{self._steps}"
            self._progress.update(
                self._bar, completed=completed, description=description, note=note, refresh=True
            )

    def _seconds_left(self, step: int) -> float:
        """An estimate from the mean of the last steps; the first steps take longer."""
        recent = self._step_s[-5:]
        return (self._steps - step) * sum(recent) / max(1, len(recent))

    def _write(self, line: str, style: str = "") -> None:
        stamp = "" if self._console.is_terminal else time.strftime("%H:%M:%S ")
        # Only a terminal has a width; the lines of a log are never broken.
        self._console.print(
            Text(visible_line(stamp + line), style=style), soft_wrap=not self._console.is_terminal
        )

    def _write_summary(self, cells: list[list[str]]) -> None:
        if self._console.is_terminal:
            self._console.print(summary_table(cells))
        else:
            for line in aligned(cells):
                self._write(f"  {line}")

    def _write_episodes(self, groups: Groups) -> None:
        episodes = pick_episodes(groups)
        if not self._console.is_terminal:
            for episode in episodes:
                self._write(f"  {episode_line(episode)}")
        elif episodes:
            self._console.print(episode_table(episodes))


class DetailedConsole(RunConsole):
    """Also shows some episodes of every step, and every metric of an evaluation."""

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """Write the step's line and a few of its episodes."""
        super().on_step(step, metrics, groups)
        self._write_episodes(groups)

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """Write the evaluation and all of its metrics."""
        super().on_evaluation(step, metrics, groups)
        for name in sorted(metrics):
            self._write(f"{name} {metrics[name]:.6g}")


def step_line(step: int, steps: int, metrics: Mapping[str, float]) -> str:
    """A step in one line of a terminal; what was not measured is left out.

    The loss is not shown: it is about zero wherever each episode is trained on once.
    """
    parts = [f"step {step}/{steps}"]
    for name, label, form in (
        ("reward/mean", "reward", "{:.3f}"),
        ("reward/std", "std", "{:.3f}"),
        ("grad_norm", "grad", "{:.3g}"),
        ("tools/calls", "calls", "{:.0f}"),
        ("tools/errors", "errors", "{:.0f}"),
        ("tokens/per_s", "tokens/s", "{:.0f}"),
        ("time/step_s", "seconds", "{:.1f}"),
    ):
        if name in metrics:
            parts.append(f"{label} {form.format(metrics[name])}")
    if metrics.get("grad_norm") == 0:  # advantages compare the episodes of a row
        why = "the rewards of each row are alike"
        if metrics.get("episodes/masked") and not metrics.get("tokens/trained"):
            why = "every episode ended in a way that masked_stop_reasons leaves out"
        parts.append(f"nothing learned: {why}")
    return "  ".join(parts) + missing(metrics)


def warmup_line(step: int, steps: int, metrics: Mapping[str, float]) -> str:
    """A step of the warm-up in one line of a terminal."""
    parts = [f"warm-up {step}/{steps}"]
    for name, label, form in (
        ("warmup/loss", "loss", "{:.3f}"),
        ("warmup/grad_norm", "grad", "{:.3g}"),
        ("warmup/episodes", "demonstrations", "{:.0f}"),
        ("warmup/tokens/trained", "tokens", "{:.0f}"),
        ("time/step_s", "seconds", "{:.1f}"),
    ):
        if name in metrics:
            parts.append(f"{label} {form.format(metrics[name])}")
    return "  ".join(parts)


def missing(metrics: Mapping[str, float], area: str = "") -> str:
    """What a step or an evaluation lacks, or has of what should not be; "" where all is well."""
    return _left_out(metrics, area) + _broken_boxes(metrics, area) + _bugs(metrics, area)


def _broken_boxes(metrics: Mapping[str, float], area: str) -> str:
    """How many episodes have reward 0 because the policy broke their box."""
    share = metrics.get(f"{area}{BROKEN}", 0.0)
    number = round(share * metrics.get(f"{area}episodes/finished", 0))
    return f"  boxes that the policy broke {number}" if number else ""


def _bugs(metrics: Mapping[str, float], area: str) -> str:
    """How many calls failed because of bugs, which a tool's author has to fix."""
    calls = metrics.get(f"{area}tools/errors/bug", 0)
    return f"  calls that failed because of bugs in tools {calls:.0f}" if calls else ""


def _left_out(metrics: Mapping[str, float], area: str) -> str:
    """The episodes and rows that a step or an evaluation had to leave out, if any."""
    left_out = metrics.get(f"{area}episodes/left_out", 0)
    skipped = metrics.get(f"{area}episodes/rows_skipped", 0)
    prefix = f"{area}episodes/left_out/"
    reasons = [
        f"{number:.0f} {name.removeprefix(prefix).replace('_', ' ')}"
        for name, number in metrics.items()
        if name.startswith(prefix) and number
    ]
    why = f" ({', '.join(reasons)})" if reasons else ""
    parts = [f"  episodes left out {left_out:.0f}{why}"] if left_out else []
    parts += [f"  rows with too long a prompt {skipped:.0f}"] if skipped else []
    return "".join(parts)


def episode_line(episode: ShownEpisode) -> str:
    """An episode in one line."""
    events = " | ".join(_clipped(event, _LONGEST_EVENT) for event in episode.events)
    prompt = _tail(episode.prompt, _LONGEST_PROMPT)
    return f"reward {episode.reward:.2f}  {episode.stop_reason}  {prompt} | {events}"


def episode_table(episodes: list[ShownEpisode]) -> Table:
    """Episodes as a table; text of a model or a tool is never interpreted as rich's markup."""
    table = Table(show_lines=True)
    for name in ("prompt", "episode", "reward", "stop"):
        side: Literal["left", "right"] = "right" if name == "reward" else "left"
        table.add_column(name, justify=side, overflow="fold")
    for episode in episodes:
        events = "\n".join(_clipped(event, _LONGEST_EVENT) for event in episode.events)
        prompt = Text(_tail(episode.prompt, _LONGEST_PROMPT))
        table.add_row(prompt, Text(events), f"{episode.reward:.2f}", episode.stop_reason)
    return table


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _clipped(text: str, longest: int) -> str:
    text = _printable(text)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _tail(text: str, longest: int) -> str:
    text = _printable(text)
    return text if len(text) <= longest else "..." + text[3 - longest :]


def _printable(text: str) -> str:
    """One line, in which nothing steers a terminal."""
    return visible_line(" ".join(text.split()))
