"""Comparisons of evaluations for people to read: their numbers, and the rows that changed most."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from gymnast.trainers.evaluation.estimates import Estimate
from gymnast.trainers.evaluation.pairs import Comparison, RowChange
from gymnast.trainers.reporting.table import with_interval
from gymnast.visible import visible_line

IDS = ("id", "task_id", "name", "instance_id", "question_id")  # columns that name a row
LONGEST_ROW = 70  # characters


def letters(count: int) -> list[str]:
    """What sides are called: A, B, ..., Z, side 27, ..."""
    return [chr(ord("A") + n) if n < 26 else f"side {n + 1}" for n in range(count)]


def comparison_lines(
    first: str, second: str, by_environment: Mapping[str, Comparison]
) -> list[str]:
    """What compares two sides: for each environment a line of its rows, and one for each metric.

    They are narrow, so that no terminal has to break them.

    Args:
        first: The letter of the one.
        second: That of the other.
        by_environment: How they compare.
    """
    lines = []
    for name, found in by_environment.items():
        where = f" in {visible_line(name)}" if name else ""
        won = "1 row" if found.won == 1 else f"{found.won} rows"
        lines.append(
            f"{second} - {first}{where}: {second} better in {won}, {first} in {found.lost}, both "
            f"alike in {found.tied}"
        )
        cells = [
            ["", first, second, "difference", "95% interval"],
            ["reward", *_numbers(found.rewards, found.reward_difference)],
            ["pass@1", *_numbers(found.passes, found.pass_difference)],
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += [f"  {_aligned(line, widths)}" for line in cells]
    return lines


def comparison_line(first: str, second: str, found: Comparison) -> str:
    """A comparison in one line."""
    seeds = "" if found.same_seeds else "  seeds differ"
    return (
        f"{second} - {first}: reward {signed(found.reward_difference)}  "
        f"pass@1 {signed(found.pass_difference)}  rows {found.rows}{seeds}"
    )


def conclusion(first: str, second: str, found: Comparison, *, of_runs: bool = False) -> str:
    """Which side has the higher mean reward, and whether that is more than chance.

    Args:
        first: The letter of the one.
        second: That of the other.
        found: How they compare.
        of_runs: Whether they are models of two runs.
    """
    value, low, high = found.reward_difference
    if low is None or high is None:
        why = "no row differs" if found.tied == found.rows else "one row cannot tell"
        return f"no difference between {first} and {second} is shown: {why}"
    if low <= 0 <= high:
        return (
            f"no difference between {first} and {second} beyond chance of rows and sampling: "
            f"{value:+.3f}"
        )
    better, worse = (second, first) if value > 0 else (first, second)
    size = Estimate(value, low, high) if value > 0 else Estimate(-value, -high, -low)
    more = "; chance in training is not included: runs with other seeds show it" if of_runs else ""
    return (
        f"{better} is better than {worse} by {with_interval(size)}, which is more than chance of "
        f"rows and sampling{more}"
    )


def difference_lines(
    found: Sequence[tuple[str, Any, Any]], first: str, second: str, most: int
) -> list[str]:
    """Settings that differ, each in a line; at most so many, and how many more there are."""
    lines = [
        f"{first} and {second} differ in {key}: {_setting(ours)} and {_setting(theirs)}"
        for key, ours, theirs in found[:most]
    ]
    more = len(found) - most
    return [*lines, f"and in {more} more setting{'' if more == 1 else 's'}"] if more > 0 else lines


def pairing(first: str, second: str, name: str, found: Comparison) -> str:
    """How many rows pair, and by what, in one environment."""
    of = f" in {name}" if name else ""
    only = ((first, found.only_first), (second, found.only_second))
    left = [f"{count} only in {whose}" for whose, count in only if count]
    more = f" ({', '.join(left)})" if left else ""
    by = "row and seed" if found.same_seeds else "row"
    seeds = "" if found.same_seeds else "; the rows are the same, the seeds of sampling differ"
    pair = "1 row pairs" if found.rows == 1 else f"{found.rows} rows pair"
    return f"{second} and {first}{of}: {pair} by {by}{more}{seeds}"


def change_cells(changes: Sequence[RowChange], first: str, second: str) -> list[list[str]]:
    """The rows that changed, as cells of a table with a header."""
    lines = [
        [
            f"row {change.number}{row_id(change.row)}",
            f"{change.difference:+.3f}",
            f"{change.first:.3f}",
            f"{change.second:.3f}",
            shown_row(change.row),
        ]
        for change in changes
    ]
    return [["changed most", f"{second} - {first}", first, second, ""], *lines]


def change_table(cells: Sequence[Sequence[str]]) -> Table:
    """The same cells for a terminal, which break in words alone, and never in a number."""
    table = Table(box=SIMPLE_HEAD)
    for column, name in enumerate(cells[0]):
        number = 0 < column < len(cells[0]) - 1
        table.add_column(name, no_wrap=number, overflow="fold", justify="left")
    for line in cells[1:]:
        table.add_row(*map(Text, line))
    return table


def signed(estimate: Estimate) -> str:
    """A difference with its sign and its interval: +0.100 [-0.020, 0.220]."""
    return f"+{with_interval(estimate)}" if estimate.value > 0 else with_interval(estimate)


def row_id(row: Mapping[str, Any]) -> str:
    """What a row calls itself, where it does."""
    own = next((str(row[name]) for name in IDS if isinstance(row.get(name), str | int)), None)
    return "" if own is None else f" {visible_line(own)}"


def shown_row(row: Mapping[str, Any]) -> str:
    """A row in a few words: its prompt, or else all of it."""
    prompt = row.get("prompt")
    text = prompt if isinstance(prompt, str) else json.dumps(row, default=str, ensure_ascii=False)
    text = visible_line(" ".join(text.split()))
    return text if len(text) <= LONGEST_ROW else text[: LONGEST_ROW - 3] + "..."


def _setting(value: Any) -> str:
    text = visible_line("not set" if value is None else f"{value}")
    return text if len(text) <= LONGEST_ROW else text[: LONGEST_ROW - 3] + "..."


def _numbers(both: tuple[Estimate, Estimate], difference: Estimate) -> list[str]:
    value, _, interval = signed(difference).partition(" ")
    return [*(f"{each.value:.3f}" for each in both), value, interval or "-"]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """A line of names to the left and numbers to the right; intervals begin below each other."""
    name, *numbers, interval = cells
    columns = [name.ljust(widths[0])]
    columns += [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
    return "  ".join([*columns, interval])
