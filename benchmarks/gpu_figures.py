"""Figures of the GPU benchmarks, printed as JSON lines that `gpu_run.py` collects into its table."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

MARK = "figure: "


@dataclass(frozen=True)
class Figure:
    """One measured value.

    Attributes:
        case: The case that was measured.
        name: The name of the value.
        value: The value; None if it was not measured, and `note` gives the reason.
        unit: The unit of the value.
        note: The conditions of this measurement, or the reason for a missing value.
    """

    case: str
    name: str
    value: float | None
    unit: str = ""
    note: str = ""

    def report(self) -> None:
        """Print the figure as one line."""
        print(MARK + json.dumps(asdict(self)), flush=True)

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.case}: {self.name}: {self.shown}{note}"

    @property
    def shown(self) -> str:
        """The value with its unit; large values have no decimals."""
        if self.value is None:
            return "not measured"
        digits = 0 if self.value == int(self.value) or self.value >= 1000 else 3
        text = f"{self.value:,.{digits}f}"
        return f"{text} {self.unit}".strip()


def parse_figure(line: str) -> Figure | None:
    """Read a line that `Figure.report` printed; None for any other line."""
    if not line.startswith(MARK):
        return None
    return Figure(**json.loads(line.removeprefix(MARK)))


def report_case(case: str, name: str, unit: str, measure: Callable[[], None]) -> bool:
    """Measure one case; report a failure as a missing figure, so that the other cases still run.

    Args:
        case: The name of the case.
        name: The name of the figure that is missing if the case fails.
        unit: Its unit.
        measure: Measures the case and reports its figures.

    Returns:
        True if the case did not fail.
    """
    try:
        measure()
    except Exception as error:  # out of memory, a kernel that does not compile, ...
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        print(f"{case}: failed: {text}", file=sys.stderr, flush=True)
        Figure(case, name, None, unit, f"failed: {text}").report()
        return False
    return True
