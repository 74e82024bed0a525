"""`gymnast rollouts`: prints the episodes that a run has saved."""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from gymnast.commands.output import say
from gymnast.commands.saved.selection import (
    Environment,
    Error,
    Evaluations,
    Group,
    MaxReward,
    MinReward,
    Run,
    Search,
    Step,
    StopReason,
    Tags,
    Tool,
    Where,
    as_options,
    steps_of,
    tags_of,
)
from gymnast.errors import ConfigError

if TYPE_CHECKING:
    from gymnast.trainers.inspecting.filters import Filter
    from gymnast.trainers.inspecting.index import Entry, Index

FORMATS = ("text", "json")

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Print these episodes only, by the names that the command prints: step_00001/0/3.",
        show_default=False,
    ),
]
Limit = Annotated[int, typer.Option(min=0, help="Print at most this many, unless NAMEs are given.")]
Format = Annotated[str, typer.Option("--format", metavar="text|json", help="Output format.")]
Tokens = Annotated[bool, typer.Option("--tokens", help="Show tokens, and who wrote them.")]
Why = Annotated[
    bool, typer.Option("--why", help="Say why the episodes with the lowest reward earned no more.")
]

rollouts = typer.Typer()


@rollouts.command(name="rollouts")
def print_rollouts(
    run: Run,
    names: Names = None,
    step: Step = None,
    evaluations: Evaluations = False,
    group: Group = None,
    min_reward: MinReward = None,
    max_reward: MaxReward = None,
    stop_reason: StopReason = None,
    environment: Environment = None,
    tool: Tool = None,
    error: Error = None,
    tag: Tags = None,
    where: Where = None,
    search: Search = None,
    limit: Limit = 10,
    form: Format = "text",
    tokens: Tokens = False,
    why: Why = False,
) -> None:
    """Print the episodes that a run has saved, with the names that other commands take."""
    check_format(form)
    steps, tags = steps_of(step), tags_of(tag)
    from gymnast.trainers.inspecting.filters import Filter
    from gymnast.trainers.inspecting.index import Index

    index = Index(run)
    with as_options():
        wanted = Filter(
            steps=steps,
            evaluations=evaluations or not index.has_steps,
            group=group,
            min_reward=min_reward,
            max_reward=None if why else max_reward,
            stop_reason=stop_reason,
            environment=environment,
            tool=tool,
            error=error,
            tags=tags,
            where=where,
            search=search,
        )
        found = _named(index, names, wanted) if names else list(index.find(wanted))
    if why and found:
        _say_why(index, found, max_reward, form)
        return
    limit = max(limit, len(names or ()))
    for number, entry in enumerate(found[:limit]):
        _print(entry, form, tokens=tokens, first=number == 0)
    _say_how_many(index, wanted, len(found), limit, form)


def _named(index: "Index", names: list[str], wanted: "Filter") -> "list[Entry]":
    """The episodes with these names.

    Raises:
        ConfigError: A filter is given too.
        DataError: There is none of a name.
    """
    from gymnast.trainers.inspecting.filters import Filter

    if wanted != Filter(evaluations=not index.has_steps):
        raise ConfigError("NAME: names single episodes; give names, or options that choose some")
    return [index.entry(name) for name in names]


def check_format(form: str) -> None:
    """Check how something is to be printed.

    Raises:
        ConfigError: It is none of `FORMATS`.
    """
    if form not in FORMATS:
        raise ConfigError(f"--format: must be {' or '.join(FORMATS)}, got {form!r}")


def _say_why(index: "Index", found: "list[Entry]", bar: float | None, form: str) -> None:
    """Say why episodes that earned no more than `bar` did not."""
    from gymnast.trainers.inspecting.causes import diagnose
    from gymnast.trainers.inspecting.causes_shown import advice_lines, causes_record, causes_text
    from gymnast.trainers.records.json_text import json_line

    diagnosis = diagnose(found, bar=bar)
    if form == "json":
        say(json_line(causes_record(diagnosis)))
        return
    say(causes_text(diagnosis))
    if said := advice_lines(index.run):
        say("\n".join(["", "advice given during the run:", *said]))
    if diagnosis.causes:
        read = shlex.join(["gymnast", "rollouts", str(index.run), diagnosis.causes[0].examples[0]])
        say(f"\nto read an episode: {read}")


def _print(entry: "Entry", form: str, *, tokens: bool, first: bool) -> None:
    from gymnast.trainers.inspecting.shown import episode_record, episode_text
    from gymnast.trainers.records.json_text import json_line

    if form == "json":
        say(json_line(episode_record(entry, tokens=tokens)))
    else:
        say(("" if first else "\n") + episode_text(entry, tokens=tokens))


def _say_how_many(index: "Index", wanted: "Filter", found: int, limit: int, form: str) -> None:
    """Say what is left, where something is; beside JSON on standard error."""
    if not found:
        from gymnast.trainers.inspecting.occurring import told_of_none

        say("\n".join(told_of_none(index, wanted)), err=True)
    elif found > limit:
        shown = f"{limit} of {found} episodes" if limit else f"{found} episodes"
        say(f"{shown}; --limit {found} prints all", err=form == "json")
