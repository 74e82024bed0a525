"""The figures of docs/algorithms.md, from what `learning.py` has measured: reward against steps.

    python benchmarks/algorithm_curves.py        writes docs/images/*.svg

Each panel has one run, before all of them in grey. Nothing is measured here: the curves are
those of benchmarks/learning/. The same curves give the same bytes, and no plotting library is
needed, so that a test tells whether a figure is out of date.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from learning_curve import Curve

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "learning"
IMAGES = ROOT / "docs" / "images"
LETTERS = (
    *("grpo", "dr_grpo", "dapo", "rloo", "gspo"),
    *("cispo", "reinforce_pp", "reinforce_pp_baseline", "reinforce_pp_tokens", "rejection"),
    *("gdpo", "gdpo_tokens", "turn_level", "gigpo", "state_baseline"),
)

# Sizes in pixels.
WIDTH, HEIGHT = 150, 92  # of a panel's plot
LEFT, TOP, GAP_X, GAP_Y, BOTTOM = 34, 26, 14, 34, 34
INK, GREY, LINE, SHOWN = "#24292f", "#c6ccd4", "#8b949e", "#0969da"


@dataclass(frozen=True)
class Figure:
    """A figure of small panels.

    Attributes:
        name: Of its file.
        runs: The job of `learning.py` that each panel shows, by the panel's title.
        columns: How many panels stand side by side.
        highest: The reward at the top of each panel.
        words: What it shows, for those who do not see it.
    """

    name: str
    runs: Mapping[str, str]
    columns: int
    highest: float
    words: str

    @property
    def path(self) -> Path:
        """Its file."""
        return IMAGES / f"{self.name}.svg"

    def curves(self) -> dict[str, Curve]:
        """What was measured, by the panel's title."""
        return {title: Curve.load(MEASURED / f"{job}.json") for title, job in self.runs.items()}


FIGURES = (
    Figure(
        "algorithms",
        {name: f"letters-{name}-0" for name in LETTERS},
        columns=5,
        highest=0.6,
        words="Mean reward of each of eight steps, a panel for each algorithm",
    ),
    Figure(
        "credit",
        {name: f"trail-{name}-0" for name in ("grpo", "gigpo")},
        columns=2,
        highest=1.0,
        words="Mean reward of each step after a warm-up of three, by GRPO and by GiGPO",
    ),
)


def svg(figure: Figure) -> str:
    """The figure as SVG."""
    curves = figure.curves()
    lines = {title: _points(curve, figure) for title, curve in curves.items()}
    rows = -(-len(lines) // figure.columns)
    width = LEFT + figure.columns * (WIDTH + GAP_X)  # the last gap is the right margin
    height = TOP + rows * HEIGHT + (rows - 1) * GAP_Y + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="11" fill="{INK}">',
        f"<title>{escape(figure.words)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<defs><g id="all">',
        *(_line(points, GREY, 1) for points in lines.values()),
        "</g></defs>",
    ]
    for number, title in enumerate(lines):
        row, column = divmod(number, figure.columns)
        x, y = LEFT + column * (WIDTH + GAP_X), TOP + row * (HEIGHT + GAP_Y)
        last_row = number + figure.columns >= len(lines)
        parts.append(f'<g transform="translate({x} {y})">')
        steps = len(curves[title].steps)
        parts += _axes(title, figure, steps, labelled=column == 0, last_row=last_row)
        parts += ['<use href="#all"/>', _line(lines[title], SHOWN, 2), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _points(curve: Curve, figure: Figure) -> Sequence[tuple[float, float]]:
    """Where the steps that have a reward stand in a panel."""
    last = len(curve.steps)
    return [
        (WIDTH * (number - 1) / (last - 1), HEIGHT * (1 - step.reward / figure.highest))
        for number, step in enumerate(curve.steps, 1)
        if step.reward is not None
    ]


def _axes(title: str, figure: Figure, steps: int, *, labelled: bool, last_row: bool) -> list[str]:
    parts = [f'<text x="0" y="-8" font-weight="bold">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = HEIGHT * (1 - share)
        parts.append(f'<path d="M0 {y:g}H{WIDTH}" stroke="{GREY}" stroke-width="0.5"/>')
        if labelled:
            value = f"{share * figure.highest:.1f}"
            parts.append(f'<text x="-6" y="{y + 4:g}" text-anchor="end">{value}</text>')
    parts.append(f'<path d="M0 {HEIGHT}H{WIDTH}" stroke="{LINE}"/>')
    if last_row:
        y = HEIGHT + 14
        parts.append(f'<text x="0" y="{y}">1</text>')
        parts.append(f'<text x="{WIDTH / 2:g}" y="{y}" text-anchor="middle">step</text>')
        parts.append(f'<text x="{WIDTH}" y="{y}" text-anchor="end">{steps}</text>')
    return parts


def _line(points: Sequence[tuple[float, float]], color: str, width: int) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def main() -> None:
    """Write all figures."""
    IMAGES.mkdir(exist_ok=True)
    for figure in FIGURES:
        figure.path.write_text(svg(figure))
        commits = sorted({curve.commit for curve in figure.curves().values()})
        print(f"{figure.path.relative_to(ROOT)}: commits {', '.join(commits)}")


if __name__ == "__main__":
    main()
