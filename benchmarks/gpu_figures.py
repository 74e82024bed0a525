"""Figures of the GPU benchmarks, printed as JSON lines that `gpu_run.py` collects in a table."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import psutil

MARK = "figure: "
H100_SHARE = 0.7  # of an H200's speed, where a step waits for memory
SECONDS_HELP = "end by this time, counted from the start of the process"


@dataclass(frozen=True)
class Goal:
    """The value that a figure should reach, on an H200.

    Attributes:
        value: In the figure's unit.
        at_least: False if lower is better.
        memory_bound: Most of the time the GPU reads memory, so an H100 reaches `H100_SHARE`.
    """

    value: float
    at_least: bool = True
    memory_bound: bool = False

    def compare(self, value: float | None, unit: str, card: str) -> str:
        """Return the goal as the table shows it, with "met" or "missed" on a card that it is for.

        Args:
            value: The figure's; None if it was not measured.
            unit: The figure's.
            card: The name of the device.
        """
        goal, name = self.value, "H200"
        if "H100" in card:
            name = "H100"
            if self.memory_bound:
                goal *= H100_SHARE if self.at_least else 1 / H100_SHARE
        text = f"{'>=' if self.at_least else '<='} {show(goal, unit)} on an {name}"
        if value is None or name not in card:
            return text
        met = value >= goal if self.at_least else value <= goal
        return f"{text}: {'met' if met else 'missed'}"


@dataclass(frozen=True)
class Figure:
    """One measured value.

    Attributes:
        case: The case that was measured.
        name: The name of the value.
        value: The value; None if it was not measured, and `note` gives the reason.
        unit: The unit of the value.
        note: The conditions of this measurement, or the reason for a missing value.
        goal: Of `Goal.compare`; "" if there is none.
    """

    case: str
    name: str
    value: float | None
    unit: str = ""
    note: str = ""
    goal: str = ""

    def report(self) -> None:
        """Print the figure as one line."""
        print(MARK + json.dumps(asdict(self)), flush=True)

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        goal = f" [{self.goal}]" if self.goal else ""
        return f"{self.case}: {self.name}: {self.shown}{goal}{note}"

    @property
    def shown(self) -> str:
        """The value with its unit."""
        return "not measured" if self.value is None else show(self.value, self.unit)


def show(value: float, unit: str) -> str:
    """Return a value with its unit, to three digits, or to whole units from 1,000 on."""
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def parse_figure(line: str) -> Figure | None:
    """Read a line that `Figure.report` printed; None for any other line."""
    if not line.startswith(MARK):
        return None
    return Figure(**json.loads(line.removeprefix(MARK)))


def deadline_after(seconds: float) -> float:
    """Return the `time.perf_counter()` at which the process is `seconds` old, imports included."""
    age: float = time.time() - psutil.Process().create_time()
    return time.perf_counter() + seconds - age


def report_case(
    case: str, name: str, unit: str, measure: Callable[[], None], goal: str = ""
) -> bool:
    """Measure one case; report a failure as a missing figure, so that the other cases still run.

    Args:
        case: The name of the case.
        name: The name of the figure that is missing if the case fails.
        unit: Its unit.
        measure: Measures the case and reports its figures.
        goal: Of the missing figure.

    Returns:
        True if the case did not fail.
    """
    try:
        measure()
    except Exception as error:  # out of memory, a kernel that does not compile, ...
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        print(f"{case}: failed: {text}", file=sys.stderr, flush=True)
        Figure(case, name, None, unit, f"failed: {text}", goal).report()
        return False
    return True
