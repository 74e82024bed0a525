"""The tables of the jobs of `learning.py`, one for each study, and their plots."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from learning_curve import WINDOW, Curve, Evaluation, Step
from learning_jobs import JOBS
from rollout_report import Target

LEVEL = 0.9
TARGET = 1 / 3
MOST_INSIDE = 8  # names that a legend has room for within a panel
COLORS = (*(f"C{number}" for number in range(10)), "black", "navy", "gold", "lime", "hotpink")
HEAD = (
    "run",
    "reward before",
    "after",
    "right calls before",
    "after",
    f"{LEVEL:g} held out: s",
    "CPU s",
    "sampled tokens",
    f"mean of {WINDOW} steps at {LEVEL:g}: s",
    "in step",
    "whole: s",
    "CPU s",
)

Curves = Mapping[str, Curve]
What = Literal["reward", "held_out", "right_calls", "hopeful"]
Against = Literal["minutes", "steps", "thousand sampled tokens"]


@dataclass(frozen=True)
class Panel:
    """One panel of a study's figure.

    Attributes:
        what: What is drawn: of steps the reward, of evaluations the others.
        against: Over what.
    """

    what: What
    against: Against


PANELS: Mapping[str, Sequence[Panel]] = {
    "shop": [Panel("held_out", "minutes"), Panel("right_calls", "minutes")],
    "warehouse": [Panel("held_out", "minutes"), Panel("right_calls", "minutes")],
    "trail": [Panel("reward", "steps"), Panel("held_out", "minutes")],
    "hopeless": [Panel("hopeful", "thousand sampled tokens")],
    "main": [Panel("reward", "minutes")],
    "algorithms": [Panel("reward", "minutes")],
    "others": [Panel("reward", "steps")],
    "eight steps": [Panel("reward", "steps")],
    "alone": [Panel("right_calls", "steps")],
    "code": [Panel("reward", "steps")],
    "program": [Panel("reward", "steps"), Panel("held_out", "minutes")],
    "coding": [Panel("reward", "steps"), Panel("held_out", "minutes")],
    "search": [Panel("reward", "steps"), Panel("held_out", "minutes")],
    "sql": [Panel("reward", "steps"), Panel("held_out", "minutes")],
    "game": [Panel("reward", "steps"), Panel("held_out", "minutes")],
    "server": [Panel("reward", "steps"), Panel("held_out", "minutes")],
}
WORDS = {
    "reward": "mean reward of a step",
    "held_out": "held-out reward",
    "right_calls": "share with the right calls",
    "hopeful": "held-out reward of rows that have one",
    "minutes": "minutes of training",
    "steps": "step",
    "thousand sampled tokens": "thousand sampled tokens of training",
}


def by_study(curves: Curves) -> Iterator[tuple[str, Curves]]:
    """The curves of each study, in the order of its jobs."""
    for study in PANELS:
        found = {n: c for n, c in curves.items() if JOBS[n].study == study}
        if found:
            yield study, found


def tables(curves: Curves) -> str:
    """A table for each study, and Gymnast's GRPO as shares of TRL's, seed by seed."""
    lines = []
    for study, found in by_study(curves):
        lines += [f"{study}:", "", _row(HEAD), _row(["---"] * len(HEAD))]
        lines += [_row(_cells(name, curve)) for name, curve in found.items()]
        lines += ["", *sorted({f"{c.commit}; {c.conditions}" for c in found.values()}), ""]
    return "\n".join([*lines, *map(str, targets(curves))])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(name: str, curve: Curve) -> list[str]:
    """A line of the table; "not" for a level that was not reached, "" for what is not known."""
    first, last = curve.evaluations[0], curve.evaluations[-1]
    shares = ["" if s is None else f"{s:.3f}" for s in (first.right_calls, last.right_calls)]
    held_out, end = curve.evaluated(LEVEL), curve.steps[-1]
    at = ["not", "", ""]
    if held_out is not None:
        tokens = f"{held_out.sampled_tokens:,}"
        at = [f"{held_out.wall_s:.0f}", f"{held_out.cpu_s:.0f}", tokens]
    reached = curve.reached(LEVEL)
    when = ["not", ""]
    if reached is not None:
        when = [f"{reached.wall_s:.0f}", str(list(curve.steps).index(reached) + 1)]
    rewards = [f"{curve.before:.3f}", f"{curve.after:.3f}"]
    return [name, *rewards, *shares, *at, *when, f"{end.wall_s:.0f}", f"{end.cpu_s:.0f}"]


def targets(curves: Curves) -> list[Target]:
    """Gymnast's time to the level as a share of TRL's, for each seed that both have reached."""
    found = []
    for name, theirs in curves.items():
        algorithm, _, seed = name.partition("-")
        ours = curves.get(f"grpo-{seed}")
        if algorithm != "trl" or ours is None:
            continue
        a, b = ours.reached(LEVEL), theirs.reached(LEVEL)
        if a is not None and b is not None:
            what = f"seed {seed}: time to {LEVEL:g}, Gymnast / TRL"
            found.append(Target(f"{what}, wall", a.wall_s / b.wall_s, "<=", TARGET))
            found.append(Target(f"{what}, CPU", a.cpu_s / b.cpu_s, "<=", TARGET))
    return found


def points(curve: Curve, panel: Panel) -> list[tuple[float, float]]:
    """What a panel draws of a curve."""
    found: list[tuple[float, float]] = []
    if panel.what == "reward":
        for number, step in enumerate(curve.steps, 1):
            if step.reward is not None:
                found.append((_place(panel.against, number, step), step.reward))
        return found
    for each in curve.evaluations:
        values = {
            "held_out": each.reward,
            "right_calls": each.right_calls,
            "hopeful": each.reward if each.hopeful is None else each.hopeful,
        }
        if (value := values[panel.what]) is not None:
            found.append((_place(panel.against, each.taken, each), value))
    return found


def _place(against: Against, number: int, entry: Step | Evaluation) -> float:
    """Where a step or an evaluation stands on an axis."""
    places: dict[Against, float] = {
        "minutes": entry.wall_s / 60,
        "steps": float(number),
        "thousand sampled tokens": entry.sampled_tokens / 1000,
    }
    return places[against]


def save_plots(curves: Curves, folder: Path) -> list[Path]:
    """Plot each study as PNG; returns the files."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    paths = []
    for study, found in by_study(curves):
        panels = PANELS[study]
        size = (5.5 * len(panels) + 2.5 * (len(found) > MOST_INSIDE), 4.5)
        figure, axes = pyplot.subplots(1, len(panels), figsize=size, layout="constrained")
        for panel, axis in zip(panels, [axes] if len(panels) == 1 else axes, strict=True):
            _draw(axis, panel, found)
        paths.append(folder / f"{study.replace(' ', '_')}.png")
        figure.savefig(paths[-1], dpi=120)
        pyplot.close(figure)
    return paths


def _draw(axis: Any, panel: Panel, curves: Curves) -> None:
    """One panel: a colour for each kind of run, and a line for each seed."""
    colors: dict[str, str] = {}
    for name, curve in curves.items():
        kind = name.rpartition("-")[0]
        label = None if kind in colors else kind
        color = colors.setdefault(kind, COLORS[len(colors) % len(COLORS)])
        drawn = points(curve, panel)
        axis.plot(
            [x for x, _ in drawn],
            [y for _, y in drawn],
            color=color,
            marker=".",
            alpha=0.8,
            label=label,
        )
    axis.set(xlabel=WORDS[panel.against], ylabel=WORDS[panel.what], ylim=(-0.02, 1.02))
    if len(colors) > MOST_INSIDE:  # beside the curves, which it would hide
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    else:
        axis.legend()
