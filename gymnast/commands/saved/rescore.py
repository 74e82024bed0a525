"""`gymnast rescore`: grades the episodes that a run has saved anew, without a model."""

import re
from pathlib import Path
from typing import Annotated

import typer

from gymnast.commands.output import no_input, say, waiting
from gymnast.commands.saved.rollouts import Format, check_format
from gymnast.commands.saved.selection import (
    Evaluations,
    Group,
    MaxReward,
    MinReward,
    Run,
    Step,
    Where,
    as_options,
    steps_of,
)
from gymnast.errors import ConfigError, DataError

Rewards = Annotated[
    list[str],
    typer.Option(
        "--reward",
        metavar="file.py:fn",
        help="A reward function or rubric; also as in `rewards` of a YAML: "
        "'{function: exact, column: city, weight: 0.5}'. May be given several times.",
    ),
]
Add = Annotated[
    bool, typer.Option("--add", help="Add the new reward to the saved one instead of replacing it.")
]
Output = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.parquet", help="Write the episodes with their new rewards to this file."
    ),
]
Limit = Annotated[int, typer.Option(min=0, help="List at most this many of the largest changes.")]

rescore = typer.Typer()


@rescore.command(name="rescore")
def rescore_rollouts(
    run: Run,
    reward: Rewards,
    step: Step = None,
    evaluations: Evaluations = False,
    group: Group = None,
    min_reward: MinReward = None,
    max_reward: MaxReward = None,
    where: Where = None,
    add: Add = False,
    output: Output = None,
    limit: Limit = 10,
    form: Format = "text",
) -> None:
    """Grade the episodes that a run has saved anew, and compare with the rewards they have."""
    check_format(form)
    if output is not None and not output.endswith(".parquet"):
        raise ConfigError(f"--output: must end in .parquet, got {output!r}")
    steps = steps_of(step)
    with waiting(f"grading {run}"), no_input():
        from gymnast.threads import run_blocking
        from gymnast.trainers.inspecting.filters import Filter
        from gymnast.trainers.inspecting.index import Index
        from gymnast.trainers.inspecting.occurring import told_of_none
        from gymnast.trainers.records.json_text import json_line
        from gymnast.trainers.rescoring.comparison import (
            compare,
            comparison_lines,
            comparison_record,
        )
        from gymnast.trainers.rescoring.scores import named_rewards, rescore, write_rescored

        try:
            rewards = named_rewards(reward)
        except ConfigError as error:
            raise ConfigError(_of_the_option(str(error), reward)) from None
        index = Index(run)
        with as_options():
            wanted = Filter(
                steps=steps,
                evaluations=evaluations or not index.has_steps,
                group=group,
                min_reward=min_reward,
                max_reward=max_reward,
                where=where,
            )
            entries = list(index.find(wanted))
        if not entries:
            raise DataError("; ".join(told_of_none(index, wanted)))
        if output is not None:
            _check_output(output, [file.file.path for file in index.files])
        rescored = run_blocking(rescore(entries, rewards, add=add))
        found = compare(rescored, most_changes=limit)
        written = None if output is None else write_rescored(output, rescored, add=add)
    if form == "json":
        say(json_line(comparison_record(found)))
    else:
        say("\n".join(comparison_lines(found)))
    if written is not None:
        count = "1 episode" if written == 1 else f"{written} episodes"
        say(f"{output} holds {count} with new rewards", err=form == "json")


def _check_output(output: str, read: list[Path]) -> None:
    if Path(output).resolve() in [path.resolve() for path in read]:
        raise ConfigError(f"--output: {output} is a file that is graded; name another")


def _of_the_option(said: str, given: list[str]) -> str:
    """An error that names places in a YAML, "rewards.0.column: ...", by what the option was."""
    place = re.compile(r"^rewards\.(\d+)(?:\.function)?(?:: |\.)", re.MULTILINE)
    named = place.sub(lambda found: f"--reward {given[int(found[1])]}: ", said)
    return named if named != said else f"--{said}"
