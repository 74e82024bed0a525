"""Comparisons as people read them: narrow lines, whole numbers, and a verdict that says of what."""

import io
import re

import pytest
from rich.console import Console

from gymnast.trainers.evaluation.pairs import Comparison, ScoredRow, compare
from gymnast.trainers.reporting.comparison import (
    change_cells,
    change_table,
    comparison_lines,
    conclusion,
)
from gymnast.trainers.reporting.evaluation_console import write_table


def scored(*rewards: float) -> list[ScoredRow]:
    prompt = "What is 17 times 23? Say nothing but the number, and say it once."
    return [
        ScoredRow((f"row {n}", n), n, {"id": f"question-{n}", "prompt": f"{n}: {prompt}"}, [reward])
        for n, reward in enumerate(rewards)
    ]


@pytest.fixture
def found() -> Comparison:
    return compare(scored(0.0, 0.1, 0.2, 1.0), scored(1.0, 1.0, 1.0, 1.0), 1.0)


def test_numbers_stand_below_each_other_in_lines_that_no_terminal_breaks(
    found: Comparison,
) -> None:
    lines = comparison_lines("A", "B", {"": found, "hundreds": found})
    assert lines[:4] == [
        "B - A: B better in 3 rows, A in 0, both alike in 1",
        "              A      B  difference  95% interval",
        "  reward  0.325  1.000      +0.675  [-0.053, 1.403]",
        "  pass@1  0.250  1.000      +0.750  [-0.046, 1.546]",
    ]
    assert lines[4] == "B - A in hundreds: B better in 3 rows, A in 0, both alike in 1"
    assert lines[5:] == lines[1:4]
    [line, *_] = comparison_lines("A", "B", {"": compare(scored(0.0, 1.0), scored(1.0, 1.0), 1.0)})
    assert line == "B - A: B better in 1 row, A in 0, both alike in 1"


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_number_is_broken_on_a_terminal(found: Comparison, width: int) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=width, color_system=None)
    write_table(console, change_cells(found.changes[:3], "A", "B"), change_table)
    text = re.sub(r"\x1b\[[\d;]*m", "", written.getvalue())
    for numbers in (("+1.000", "0.000"), ("+0.900", "0.100"), ("+0.800", "0.200")):
        assert re.search(rf"{re.escape(numbers[0])} +{numbers[1]} +1\.000 ", text), text
    assert all(len(line) <= width for line in text.splitlines())
    assert "question-0" in text and "What" in text


def test_the_verdict_of_runs_says_that_chance_in_training_is_not_in_it() -> None:
    found = compare(scored(0.0, 0.1, 0.2, 0.1), scored(1.0, 1.0, 0.9, 1.0), 1.0)
    alone = conclusion("A", "B", found)
    assert alone.endswith(", which is more than chance of rows and sampling")
    of_runs = conclusion("A", "B", found, of_runs=True)
    assert of_runs == (
        f"{alone}; chance in training is not included: runs with other seeds show it"
    )
