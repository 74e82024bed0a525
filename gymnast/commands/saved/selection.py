"""Which saved episodes a command takes: its options, and the filter that they make."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from gymnast.commands.completion.words import complete_run, complete_stop_reason
from gymnast.errors import ConfigError

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run's folder, an evaluation's folder, or one file of rollouts.",
        autocompletion=complete_run,
    ),
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar="N|N-M", help="Only episodes of these steps, or of the evaluations after them."
    ),
]
Evaluations = Annotated[
    bool, typer.Option("--evaluations", help="Episodes of evaluations instead of training.")
]
Group = Annotated[int | None, typer.Option(help="Only this group of each file, counted from 0.")]
MinReward = Annotated[float | None, typer.Option(help="Only episodes with at least this reward.")]
MaxReward = Annotated[float | None, typer.Option(help="Only episodes with at most this reward.")]
StopReason = Annotated[
    str | None,
    typer.Option(
        help="Only episodes that ended this way: answered, max_tokens, ...",
        autocompletion=complete_stop_reason,
    ),
]
Environment = Annotated[
    str | None,
    typer.Option(help="Only episodes of this environment, of a mixture or an evaluation."),
]
Tool = Annotated[str | None, typer.Option(help="Only episodes that called this tool.")]
Error = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Only episodes with a call that failed this way: malformed, unknown_tool, ...",
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", metavar="KEY=VALUE", help="Only episodes whose row has this value in this column."
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="EXPR",
        help="Only episodes whose row satisfies this jmespath expression: 'a > `50`'.",
    ),
]
Search = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only episodes with this text in a message.")
]

# What a filter checks of itself; the options have the names of its fields.
_CHECKED = ("where", "stop_reason", "error", "group", "min_reward", "max_reward")


def steps_of(given: str | None) -> range | None:
    """The steps that --step names.

    Raises:
        ConfigError: It names none.
    """
    match = None if given is None else re.fullmatch(r"(\d+)(?:-(\d+))?", given)
    if given is None:
        return None
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ConfigError(f"--step: must be a step or a range of them, as 7 or 3-7, got {given!r}")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def tags_of(given: list[str] | None) -> dict[str, str]:
    """The columns that --tag names, with their values.

    Raises:
        ConfigError: One has no value.
    """
    given = given or []
    for one in given:
        if one.find("=") < 1:
            raise ConfigError(f"--tag: must be KEY=VALUE, a column of the rows, got {one!r}")
    return {key: value for key, _, value in (one.partition("=") for one in given)}


@contextmanager
def as_options() -> Iterator[None]:
    """Name the filter that a `ConfigError` is about as its option is called."""
    try:
        yield
    except ConfigError as problem:
        name, colon, rest = str(problem).partition(": ")
        if colon and name in _CHECKED:
            raise ConfigError(f"--{name.replace('_', '-')}: {rest}") from None
        raise
