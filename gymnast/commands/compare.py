"""`gymnast eval --compare`: evaluations of the same rows, row by row."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gymnast.commands.output import say
from gymnast.errors import ConfigError
from gymnast.visible import visible_line

if TYPE_CHECKING:
    from gymnast.trainers.evaluating.results import Compared

SHOWN = 5  # rows that changed most; all with -v
NAMED = 8  # settings that differ; all with -v


def refuse_beside_compare(options: Mapping[str, object]) -> None:
    """Refuse options of an evaluation.

    Args:
        options: By name; None where one is not given.

    Raises:
        ConfigError: One is given.
    """
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--compare: compares what was evaluated; leave {name} out")


def compare_folders(paths: Sequence[str], *, verbose: bool, quiet: bool) -> None:
    """Compare each evaluation with the first one; the numbers and what they say come last.

    Args:
        paths: Folders of evaluations or runs, or files of an evaluation's rollouts.
        verbose: Show every row that changed, and every setting that differs.
        quiet: Say one line for each comparison.
    """
    from gymnast.trainers.evaluating.results import compare_sides
    from gymnast.trainers.evaluating.sides import find_sides
    from gymnast.trainers.reporting.comparison import comparison_line, letters

    sides = find_sides(paths)
    names = letters(len(sides))
    found = [compare_sides(sides[0], side) for side in sides[1:]]
    notes = [f"{name}: {side.note}" for name, side in zip(names, sides, strict=True) if side.note]
    if not quiet:
        for name, side in zip(names, sides, strict=True):
            say(f"{name}  {side.name}{f'  {side.shown_model}' if side.model else ''}")
        _say_all(names, found, notes, verbose=verbose)
        return
    for name, each in zip(names[1:], found, strict=True):
        for comparison in each.by_environment.values():
            say(comparison_line(names[0], name, comparison))
    for note in notes:
        say(note, err=True)


def _say_all(
    names: Sequence[str], found: Sequence["Compared"], notes: Sequence[str], *, verbose: bool
) -> None:
    """What differs, which rows changed, and last the numbers and what they say."""
    from rich.console import Console
    from rich.text import Text

    from gymnast.trainers.reporting.comparison import (
        change_cells,
        change_table,
        comparison_lines,
        conclusion,
        difference_lines,
        pairing,
    )
    from gymnast.trainers.reporting.evaluation_console import write_table

    console = Console(highlight=False)
    first, pairs = names[0], list(zip(names[1:], found, strict=True))
    for name, each in pairs:
        most = len(each.differences) if verbose else NAMED
        for line in difference_lines(each.differences, first, name, most):
            say(line)
        for environment, comparison in each.by_environment.items():
            say(pairing(first, name, environment, comparison))
            changed = [change for change in comparison.changes if change.difference]
            shown = changed if verbose else changed[:SHOWN]
            cells = change_cells(shown, first, name) if shown else []
            write_table(console, cells, change_table)
    for name, each in pairs:
        for line in comparison_lines(first, name, each.by_environment):
            say(line)
    for note in notes:
        say(note)
    for name, each in pairs:
        for environment, comparison in each.by_environment.items():
            where = f"in {environment}: " if environment else ""
            verdict = f"{where}{conclusion(first, name, comparison, of_runs=each.of_runs)}"
            # A terminal would break it within words and numbers; the lines of a log are whole.
            console.print(Text(visible_line(verdict)), soft_wrap=not console.is_terminal)
