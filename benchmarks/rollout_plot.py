"""The plot: what a rollout costs against the number of its tool turns."""

import importlib
from collections.abc import Sequence
from pathlib import Path

from rollout_report import Point


def save_plot(points: Sequence[Point], path: Path) -> None:
    """Plot CPU seconds and tokens pushed of both sides on two logarithmic panels, as PNG."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for side in sorted({point.side for point in points}):
        # If two scenarios measured the same number of turns, the first measurement is drawn.
        found = {point.turns: point.cost for point in reversed(points) if point.side == side}
        turns = sorted(found)
        panels[0].plot(turns, [found[n].cpu_s for n in turns], marker="o", label=side)
        panels[1].plot(turns, [found[n].tokens for n in turns], marker="o", label=side)
    for panel, what in zip(panels, ("CPU seconds", "tokens pushed"), strict=True):
        panel.set(xscale="log", yscale="log", xlabel="tool turns", ylabel=what)
        panel.set_xticks(sorted({point.turns for point in points}))
        panel.get_xaxis().set_major_formatter("{x:.0f}")
        panel.minorticks_off()
        panel.legend()
    figure.suptitle("Rolling out 16 episodes")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
