"""A run on the console: one line per step, the evaluations, a few episodes, the time left.

`RunConsole` draws with rich where the output is a terminal; elsewhere (a log file, a CI job) it
writes one short line per step and nothing that moves.
"""

import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from gymnast.trainers.base.observer import SLOW, SOLVED, Advice, Groups
from gymnast.trainers.reporting.lines import (
    best_line,
    episode_line,
    episode_table,
    missing,
    step_line,
    warmup_line,
)
from gymnast.trainers.reporting.live.curves import sparkline
from gymnast.trainers.reporting.live.durations import duration
from gymnast.trainers.reporting.live.notebook import NotebookRegion
from gymnast.trainers.reporting.live.run_view import RunView
from gymnast.trainers.reporting.live.terminal import TerminalRegion
from gymnast.trainers.reporting.shown_episodes import pick_episodes
from gymnast.trainers.reporting.table import (
    aligned,
    headline,
    shown_number,
    summary_cells,
    summary_table,
)
from gymnast.trainers.reporting.whole_episodes import Samples
from gymnast.visible import visible_line

SAMPLE_KEY = "s"
_HINT = "Ctrl-C: stop and save   s: show the last episode; again: the one before"
_LONGEST_CURVE = 40


class RunConsole:
    """An `Observer` that shows a run to people.

    Episodes are shown after every evaluation, and after the last step of a run without one. On a
    terminal and in a notebook a region shows the run while it goes on.

    Args:
        console: Where to write; by default standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _standard_output()
        self._view, self._samples = RunView(), Samples()
        self._region: TerminalRegion | NotebookRegion | None = None
        self._is_rich = self._console.is_interactive or self._console.is_jupyter
        self._steps = self._warmup_steps = 0
        self._evaluated = False
        self._last_groups: Groups = ()

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        """Write what a step takes of memory, and show the region, where there is one."""
        self._steps, start = int(trainer_info["steps"]), int(trainer_info.get("start", 0))
        self._warmup_steps = int(trainer_info.get("warmup_steps", 0))
        if memory := trainer_info.get("memory"):
            self._write(f"memory: {memory}")
        self._view.begin(self._steps, start, trainer_info.get("earlier", ()))
        if (warmed := int(trainer_info.get("warmup_start", 0))) < self._warmup_steps:
            self._view.warm_up(self._warmup_steps, warmed)
        self._region = self._make_region()
        if self._region is not None:
            self._region.start()

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        """Move the bar by the share of episodes that ended."""
        self._view.played(step, done, total)
        self._refresh()

    def on_warmup_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the line of a step of the warm-up."""
        self._view.warmup_step(step, metrics)
        self._write(warmup_line(step, self._warmup_steps, metrics))
        self._refresh()

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """Write the step's line."""
        self._last_groups = groups
        self._view.step(step, metrics)
        self._keep(f"step_{step:05d}", groups)  # as `gymnast rollouts` names it
        line = step_line(step, self._steps, metrics, is_logged=not self._is_rich)
        # Where a region shows the time left, lines are short.
        left = self._view.left_s
        self._write(line if self._is_rich or left is None else f"{line}  left {duration(left)}")
        self._refresh()

    def on_advice(self, advice: Advice) -> None:
        """Write why the run does not learn, or that it has nothing left to learn."""
        self._write(f"step {advice.step}, {advice.heading}: {advice}", style="yellow")

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Groups) -> None:
        """Write the evaluation's line, a table if it has parts, and a few of its episodes."""
        self._evaluated = True
        self._keep(f"eval_{step:05d}", groups)
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
        if line := best_line(summary):
            self._write(line, style="bold")
        train_s = summary.get("train/seconds", summary.get("seconds", 0.0))
        train_cpu_s = summary.get("train/cpu_seconds", summary.get("cpu_seconds", 0.0))
        if self._is_rich and len(rewards := self._view.rewards) > 1:
            ascii_only = self._console.options.ascii_only
            curve = sparkline(rewards, _LONGEST_CURVE, ascii_only=ascii_only)
            self._write(f"reward of {len(rewards)} steps: {curve} last {rewards[-1]:.3f}")
        self._write(f"trained for {duration(train_s)} ({train_cpu_s:.0f} CPU seconds)")
        if standing := summary.get("advice"):
            slow = [advice for advice in standing if advice.cause in SLOW]
            for some in ([advice for advice in standing if advice not in slow], slow):
                if not some:
                    continue
                causes = ", ".join(advice.cause for advice in some)
                # Where another cause holds as well, the run has that to mend.
                told = next((advice for advice in some if advice.cause != SOLVED), some[0])
                line = f"{told.heading} at the end: {causes} (see above and {told.page})"
                self._write(line, style="yellow")

    def close(self) -> None:
        """Remove the region; also called when a run ends with an exception."""
        region, self._region = self._region, None
        if region is not None:
            region.stop()

    def notice(self, text: str) -> bool:
        """Show a line in the region, where there is one on a terminal; see `Screen`."""
        if not isinstance(self._region, TerminalRegion):
            return False
        return self._region.notice(text)

    def give_back(self) -> None:
        """Leave the terminal as it was found, at once; also for a signal's handler."""
        if self._region is not None:
            self._region.give_back()

    def _make_region(self) -> TerminalRegion | NotebookRegion | None:
        if self._console.is_jupyter:
            return NotebookRegion(self._view.lines, self._samples.take)
        if self._console.is_interactive:
            ascii_only = self._console.options.ascii_only
            lines = partial(self._view.lines, ascii_only=ascii_only)
            keys = {SAMPLE_KEY: self._show_sample}
            return TerminalRegion(self._console, lines, keys, _HINT)
        return None

    def _refresh(self) -> None:
        if self._region is not None:
            self._region.refresh()

    def _keep(self, place: str, groups: Groups) -> None:
        """Keep the episodes that can be shown in full from now on."""
        self._samples.replace(place, groups)
        if isinstance(self._region, NotebookRegion):
            self._region.show_sample()

    def _show_sample(self) -> None:
        """Write the newest episode that has not been shown, in full."""
        sample = self._samples.take()
        self._console.print(sample or Text("no episode is over yet"))

    def _write(self, line: str, style: str = "") -> None:
        stamp = "" if self._is_rich else time.strftime("%H:%M:%S ")
        # Only a terminal has a width; the lines of a log are never broken.
        self._console.print(
            Text(visible_line(stamp + line), style=style), soft_wrap=not self._is_rich
        )

    def _write_summary(self, cells: list[list[str]]) -> None:
        if self._is_rich:
            self._console.print(summary_table(cells))
        else:
            for line in aligned(cells):
                self._write(f"  {line}")

    def _write_episodes(self, groups: Groups) -> None:
        episodes = pick_episodes(groups)
        if not self._is_rich:
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


def _standard_output() -> Console:
    """In colours where asked for, but nothing moves where it is no terminal."""
    console = Console(highlight=False)
    if not (console.is_jupyter or sys.stdout.isatty()):
        return Console(highlight=False, force_interactive=False)
    return console
