"""An evaluation for people to read: one line, and a table of its environments and divisions.

Both are made from metrics alone; `trainers/evaluation/metrics.py` says what those mean.
"""

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from gymnast.trainers.evaluation.estimates import Estimate
from gymnast.trainers.evaluation.metrics import PREFIX, Scope, scopes
from gymnast.visible import visible_line

OWN_ROWS = "all rows"
# What an endpoint took, in all, and the names of the columns.
_USED = (
    ("chat/prompt_tokens", "prompt tokens"),
    ("chat/completion_tokens", "completion tokens"),
    ("chat/cost", "cost"),
)


def headline(metrics: Mapping[str, float]) -> str:
    """The reward with its interval, and the first and last pass@k if there are several."""
    mean = metrics.get(f"{PREFIX}reward/mean")
    bounds = (metrics.get(f"{PREFIX}reward/{bound}") for bound in ("low", "high"))
    reward = "-" if mean is None else with_interval(Estimate(mean, *bounds))
    parts = [f"reward {reward}", f"std {shown_number(metrics.get(f'{PREFIX}reward/std'))}"]
    own = next((scope for scope in scopes(metrics) if not scope.name), None)
    passes = sorted(own.passes.items()) if own is not None else []
    if len(passes) > 1:
        parts += [f"pass@{k} {chance.value:.3f}" for k, chance in (passes[0], passes[-1])]
    return "  ".join(parts)


def summary_cells(metrics: Mapping[str, float]) -> list[list[str]]:
    """The table's cells: the header, then a line per scope; empty if nothing was measured."""
    measured = scopes(metrics)
    if not measured:
        return []
    ks = sorted({k for scope in measured for k in scope.passes})
    header = ["95% intervals", "rows", "reward", *(f"pass@{k}" for k in ks)]
    used = [(metric, name) for metric, name in _USED if metrics.get(f"{PREFIX}{metric}")]
    header += [name for _, name in used]
    counts = [[_count(metrics, scope, metric) for metric, _ in used] for scope in measured]
    cells = (_cells(scope, ks) for scope in measured)
    return [header, *(line + more for line, more in zip(cells, counts, strict=True))]


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Cells as aligned lines of text: the number of rows to the right, all else to the left."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column == 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def summary_table(cells: Sequence[Sequence[str]]) -> Table:
    """Cells as a narrow table of rich's, each interval below its number.

    A tag's value is never interpreted as rich's markup.
    """
    table = Table(box=SIMPLE_HEAD)
    for column, name in enumerate(cells[0]):
        table.add_column(name, justify="right" if column == 1 else "left", overflow="fold")
    for name, *numbers in cells[1:]:
        table.add_row(Text(name), *(Text(number.replace(" [", "\n[")) for number in numbers))
    return table


def with_interval(estimate: Estimate) -> str:
    """A number with its interval: 0.500 [0.250, 0.750]."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _cells(scope: Scope, ks: Sequence[int]) -> list[str]:
    environment, _, division = f"/{scope.name}".rpartition("/by/")
    name = " ".join(filter(None, (environment.strip("/"), division.strip("/")))) or OWN_ROWS
    name = visible_line(name)  # it holds the value of a row's tag
    passes = [with_interval(scope.passes[k]) if k in scope.passes else "-" for k in ks]
    return [name, str(scope.rows), with_interval(scope.reward), *passes]


def _count(metrics: Mapping[str, float], scope: Scope, metric: str) -> str:
    """A sum over the episodes of a scope, where it is known: not of divisions."""
    value = metrics.get(f"{PREFIX}{scope.name}/{metric}" if scope.name else PREFIX + metric)
    return "-" if value is None else f"{value:.4g}" if value % 1 else f"{value:.0f}"


def shown_number(value: float | None) -> str:
    """A number with three decimals; "-" if there is none."""
    return "-" if value is None else f"{value:.3f}"
