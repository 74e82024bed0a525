"""`gymnast eval --compare`: evaluations of the same rows, row by row."""

from collections.abc import Mapping, Sequence

from gymnast.commands.output import say
from gymnast.errors import ConfigError

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
    """Compare each evaluation with the first one; the table and what it says come last.

    Args:
        paths: Folders of evaluations or runs, or files of an evaluation's rollouts.
        verbose: Show every row that changed, and every setting that differs.
        quiet: Say one line for each comparison.
    """
    from rich.console import Console

    from gymnast.trainers.evaluating.results import compare_sides, find_sides
    from gymnast.trainers.reporting.comparison import (
        change_cells,
        comparison_cells,
        comparison_line,
        conclusion,
        difference_lines,
        letters,
        pairing,
    )
    from gymnast.trainers.reporting.evaluation_console import write_table

    sides = find_sides(paths)
    names = letters(len(sides))
    found = [compare_sides(sides[0], side) for side in sides[1:]]
    if quiet:
        for name, each in zip(names[1:], found, strict=True):
            for comparison in each.by_environment.values():
                say(comparison_line(names[0], name, comparison))
        return
    console = Console(highlight=False)
    for name, side in zip(names, sides, strict=True):
        say(f"{name}  {side.name}{f'  {side.model}' if side.model else ''}")
    for name, each in zip(names[1:], found, strict=True):
        most = len(each.differences) if verbose else NAMED
        for line in difference_lines(each.differences, names[0], name, most):
            say(line)
        for environment, comparison in each.by_environment.items():
            say(pairing(names[0], name, environment, comparison))
            changed = [change for change in comparison.changes if change.difference]
            shown = changed if verbose else changed[:SHOWN]
            write_table(console, change_cells(shown, names[0], name) if shown else [])
    pairs = zip(names[1:], found, strict=True)
    table = [(names[0], name, each.by_environment) for name, each in pairs]
    write_table(console, comparison_cells(table))
    for name, each in zip(names[1:], found, strict=True):
        for environment, comparison in each.by_environment.items():
            where = f"in {environment}: " if environment else ""
            say(f"{where}{conclusion(names[0], name, comparison)}")
