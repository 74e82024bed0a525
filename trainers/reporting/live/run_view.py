"""What is known of a run while it goes on, and how it looks in so many columns and lines.

    step 13/100 ━━━━━━━────────────────────────────────  37/64 episodes  12:03  21:40 left
    reward ▁▁▂▂▃▃▄▄▅▆▆▇▇█ 0.512  lowest 0.031  highest 0.512
    loss 0.0021  entropy 0.412  KL 0.0012  mismatch 0.00031  gradient 0.126
    tokens/s 812  trained tokens/s 5210  MFU 41.2%  idle 20%
    last step 149.3 s ████████████▓▓▒▒░░░░░░──────────────────────
    █ model 31%  ▓ tools 5%  ▒ environment 4%  ░ waiting 16%  ─ training 44%

Nothing here draws: `terminal.py` and `notebook.py` do. Lines are cut at the width, so that a
terminal never wraps them.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.text import Text

from gymnast.trainers.reporting.live.curves import sparkline
from gymnast.trainers.reporting.live.durations import Pace, duration
from gymnast.trainers.reporting.live.time_split import KINDS, Part, cells, time_split

_STEP, _WARMUP = "step", "warm-up"
_LONGEST_BAR = 40
_LONGEST_CURVE = 60
_SHORTEST_BAR = 5
_STYLES = dict(zip(KINDS, ("cyan", "magenta", "yellow", "bright_black", "green"), strict=True))
# Told apart without colours, too.
_FILLS = dict(zip(KINDS, "█▓▒░─", strict=True))
_ASCII_FILLS = dict(zip(KINDS, "#+=.-", strict=True))
_VALUES = (
    ("loss", "loss", "{:z.4f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("kl", "KL", "{:.2g}"),
    ("engine/kl", "mismatch", "{:.2g}"),
    ("grad_norm", "gradient", "{:.3g}"),
)
_SPEED_VALUES = (
    ("tokens/per_s", "tokens/s", "{:.0f}"),
    ("tokens/trained_per_s", "trained tokens/s", "{:.0f}"),
    ("perf/mfu", "MFU", "{:.1%}"),
    ("perf/waiting_share", "idle", "{:.0%}"),  # of the agent; requests that queue are `waiting`
)
_WARMUP_VALUES = (
    ("warmup/grad_norm", "gradient", "{:.3g}"),
    ("warmup/episodes", "demonstrations", "{:.0f}"),
    ("warmup/tokens/trained", "tokens", "{:.0f}"),
)
REWARD, WARMUP_LOSS = "reward/mean", "warmup/loss"


class RunView:
    """Follows a run, on any thread, and shows it as lines of text.

    Args:
        clock: In seconds; goes on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of_run = (0, 0)
        self._begin(_STEP, *self._of_run)
        self._rewards: dict[int, float] = {}
        self._losses: list[float] = []
        self._metrics: Mapping[str, float] = {}
        self._started = clock()

    def begin(self, steps: int, done: int, earlier: Sequence[Mapping[str, Any]] = ()) -> None:
        """The run begins or goes on.

        Args:
            steps: Of the whole run.
            done: How many of them are done.
            earlier: The metrics of those, as far as they are known; each has its `step`.
        """
        self._started = self._clock()
        known = self._rewards | {
            int(line["step"]): line[REWARD] for line in earlier if line.get(REWARD) is not None
        }
        self._rewards = {step: reward for step, reward in sorted(known.items()) if step <= done}
        self._losses += [line[WARMUP_LOSS] for line in earlier if line.get(WARMUP_LOSS) is not None]
        self._of_run = (done, steps)
        self._begin(_STEP, *self._of_run)

    def warm_up(self, steps: int, done: int) -> None:
        """The warm-up begins or goes on."""
        self._begin(_WARMUP, done, steps)

    def played(self, step: int, done: int, total: int) -> None:
        """Some episodes of a step are over."""
        self._end_warmup()
        note = f"{done}/{total} episodes" if done < total else "training"
        self._place(step - 1 + done / max(1, total), step, note)

    def warmup_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step of the warm-up is done."""
        self._losses.append(metrics.get(WARMUP_LOSS, math.nan))
        self._count(step, metrics)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self._end_warmup()
        if REWARD in metrics:
            self._rewards[step] = metrics[REWARD]
        self._count(step, metrics)

    def doing(self, note: str) -> None:
        """What goes on between steps."""
        self._note = note

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step is done; None before the first one is."""
        return self._pace.left_s(self._total - self._steps_done, self._clock())

    @property
    def rewards(self) -> list[float]:
        """The mean rewards of all steps so far."""
        return list(self._rewards.values())

    def lines(self, width: int, height: int, *, ascii_only: bool = False) -> list[Text]:
        """The view as at most `height` lines, none wider than `width` columns."""
        lines = [self._progress_line(width, ascii_only)]
        lines += self._curve_lines(width, ascii_only)
        warming = self._title == _WARMUP
        for values in (_WARMUP_VALUES,) if warming else (_VALUES, _SPEED_VALUES):
            lines += self._value_lines(values, width)
        lines += self._time_lines(width, ascii_only)
        for line in lines:
            line.no_wrap = True
            line.truncate(width, overflow="crop" if ascii_only else "ellipsis")
        return lines[: max(0, height)]

    def _begin(self, title: str, done: int, total: int) -> None:
        self._title, self._total = title, total
        self._done: float = done
        self._shown_step = self._steps_done = done
        self._note, self._pace = "", Pace()

    def _end_warmup(self) -> None:
        if self._title == _WARMUP:
            self._begin(_STEP, *self._of_run)

    def _place(self, done: float, step: int, note: str) -> None:
        self._done, self._shown_step, self._note = done, step, note

    def _count(self, step: int, metrics: Mapping[str, float]) -> None:
        self._metrics, self._steps_done = dict(metrics), step
        self._pace.count(metrics.get("time/step_s", 0.0), self._clock())
        self._place(step, step, "")

    def _progress_line(self, width: int, ascii_only: bool) -> Text:
        now = self._clock()
        line = Text(f"{self._title} {self._shown_step}/{self._total} ", style="bold")
        said = [self._note] if self._note else []
        said.append(duration(now - self._started))
        if (left_s := self.left_s) is not None:
            said.append(f"{duration(left_s)} left")
        rest = "  ".join(["", *said])
        bar = min(_LONGEST_BAR, width - line.cell_len - len(rest))
        if bar >= _SHORTEST_BAR:
            full = round(bar * min(1.0, self._done / max(1, self._total)))
            done, todo = "#." if ascii_only else "━─"
            line.append(done * full, style="not bold green")
            line.append(todo * (bar - full), style="not bold bright_black")
        return line.append(rest, style="not bold")

    def _curve_lines(self, width: int, ascii_only: bool) -> list[Text]:
        warming = self._title == _WARMUP
        name, values = ("loss", self._losses) if warming else ("reward", self.rewards)
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return []
        said = [f" {values[-1]:.3f}", f"lowest {min(finite):.3f}", f"highest {max(finite):.3f}"]
        rest = "  ".join(said)
        room = min(_LONGEST_CURVE, width - len(name) - 1 - len(rest))
        if room < _SHORTEST_BAR:
            rest, room = said[0], width - len(name) - 1 - len(said[0])
        line = Text(f"{name} ")
        line.append(sparkline(values, room, ascii_only=ascii_only), style="green")
        line.append(said[0], style="bold")
        return [line.append(rest[len(said[0]) :])]

    def _value_lines(self, values: Sequence[tuple[str, str, str]], width: int) -> list[Text]:
        """As many of the last step's numbers as a line holds.

        Args:
            values: The name of each metric, its label and its format.
            width: In columns.
        """
        line = ""
        for metric, label, form in values:
            if metric in self._metrics:
                more = ("  " if line else "") + f"{label} {form.format(self._metrics[metric])}"
                line += more if len(line) + len(more) <= width else ""
        return [Text(line)] if line else []

    def _time_lines(self, width: int, ascii_only: bool) -> list[Text]:
        parts = time_split(self._metrics)
        if not parts:
            return []
        fills = _ASCII_FILLS if ascii_only else _FILLS
        line = Text(f"last step {self._metrics.get('time/step_s', 0.0):.1f} s ")
        room = min(_LONGEST_CURVE, width - line.cell_len)
        for part, count in zip(parts, cells(parts, room), strict=True):
            line.append(fills[part.kind] * count, style=_STYLES[part.kind])
        return [line, *_legend(parts, fills, width)]


def _legend(parts: Sequence[Part], fills: Mapping[str, str], width: int) -> list[Text]:
    """What each fill of the bar means, in as many lines as it takes."""
    lines = [Text()]
    for part in parts:
        if part.share < 0.005:
            continue
        entry = Text(fills[part.kind], style=_STYLES[part.kind])
        entry.append(f" {part.kind} {part.share:.0%}", style="default")
        between = "  " if lines[-1] else ""
        if lines[-1].cell_len + len(between) + entry.cell_len > width:
            lines.append(Text())
            between = ""
        lines[-1].append(between).append_text(entry)
    return lines
