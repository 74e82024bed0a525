"""Figures of the GPU benchmarks, printed as JSON lines that `gpu_run.py` collects in a table."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import psutil

MARK = "figure: "
SECONDS_HELP = "end by this time, counted from the start of the process"


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
        """The value with its unit, to three digits, or to whole units from 1,000 on."""
        if self.value is None:
            return "not measured"
        text = f"{self.value:,.0f}" if self.value >= 1000 else f"{self.value:.3g}"
        return f"{text} {self.unit}".strip()


def parse_figure(line: str) -> Figure | None:
    """Read a line that `Figure.report` printed; None for any other line."""
    if not line.startswith(MARK):
        return None
    return Figure(**json.loads(line.removeprefix(MARK)))


def deadline_after(seconds: float) -> float:
    """Return the `time.perf_counter()` at which the process is `seconds` old, imports included."""
    age: float = time.time() - psutil.Process().create_time()
    return time.perf_counter() + seconds - age


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
