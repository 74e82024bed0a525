"""The table of the runs of `learning.py`, and their plot: reward against time."""

import importlib
from collections.abc import Mapping
from pathlib import Path

from learning_job import WINDOW, Curve
from rollout_report import Target

LEVEL = 0.9
TARGET = 1 / 3


def table(curves: Mapping[str, Curve]) -> str:
    """One line per run, then Gymnast's GRPO as shares of TRL's, seed by seed."""
    lines = [
        f"{'run':10} | eval reward     | mean of the last {WINDOW} steps reaches {LEVEL:g} | whole",
        f"{'':10} | before    after | {'wall s':>9} {'CPU s':>9} {'step':>5}"
        f"          | {'wall s':>7} {'CPU s':>7}",
    ]
    for name, curve in curves.items():
        last, reached = curve.steps[-1], curve.reached(LEVEL)
        when = f"{'not':>9} {'':9} {'':5}"
        if reached is not None:
            number = curve.steps.index(reached) + 1
            when = f"{reached.wall_s:9.0f} {reached.cpu_s:9.0f} {number:5}"
        lines.append(
            f"{name:10} | {curve.before:6.3f}   {curve.after:6.3f} | {when}          | "
            f"{last.wall_s:7.0f} {last.cpu_s:7.0f}"
        )
    return "\n".join([*lines, *map(str, targets(curves))])


def targets(curves: Mapping[str, Curve]) -> list[Target]:
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


def save_plot(curves: Mapping[str, Curve], path: Path) -> None:
    """Plot the reward of every step against the minutes of training, as PNG."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, panel = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    colors: dict[str, str] = {}
    for name, curve in curves.items():
        algorithm = name.partition("-")[0]
        first = algorithm not in colors
        color = colors.setdefault(algorithm, f"C{len(colors)}")
        minutes = [step.wall_s / 60 for step in curve.steps]
        rewards = [step.reward for step in curve.steps]
        label = ("TRL, GRPO" if algorithm == "trl" else f"Gymnast, {algorithm}") if first else None
        panel.plot(minutes, rewards, color=color, marker=".", alpha=0.8, label=label)
    panel.set(xlabel="minutes of training", ylabel="mean reward of a step", ylim=(0, 1.02))
    panel.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
