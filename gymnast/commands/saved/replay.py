"""`gymnast replay`: plays saved episodes again in their environment, and says where they differ."""

from typing import TYPE_CHECKING, Annotated

import typer

from gymnast.commands.completion.words import complete_environment
from gymnast.commands.output import no_input, say, waiting
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
from gymnast.errors import CannotReplay, ConfigError

if TYPE_CHECKING:
    from gymnast.trainers.replaying.replay import Replayed

Rollout = Annotated[
    str | None,
    typer.Argument(metavar="ROLLOUT", help="The episode's name, as `gymnast rollouts` prints it."),
]
All = Annotated[
    bool, typer.Option("--all", help="Replay every episode that the other options select.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="With --all: replay at most this many.")]
Environment = Annotated[
    str | None,
    typer.Option(
        metavar="ENV",
        help="Play in this environment, with its defaults, in place of that of a run: for a file "
        "of `gymnast demos`.",
        autocompletion=complete_environment,
    ),
]

replay = typer.Typer()


@replay.command(name="replay")
def replay_rollouts(
    run: Run,
    rollout: Rollout = None,
    everything: All = False,
    step: Step = None,
    evaluations: Evaluations = False,
    group: Group = None,
    min_reward: MinReward = None,
    max_reward: MaxReward = None,
    where: Where = None,
    limit: Limit = None,
    environment: Environment = None,
) -> None:
    """Play saved episodes again with their actions; exit code 1 if one differs."""
    if everything and rollout is not None:
        raise ConfigError(
            f"--all: replays every episode, and {rollout} names one; leave one of the two out"
        )
    if not everything and rollout is None:
        raise ConfigError("ROLLOUT: name one, as `gymnast rollouts` prints it, or say --all")
    chosen = [step, group, min_reward, max_reward, where, limit]
    if rollout is not None and (evaluations or any(each is not None for each in chosen)):
        raise ConfigError("ROLLOUT: is one episode; --step and the like choose those of --all")
    steps = steps_of(step)
    from gymnast.trainers.inspecting.filters import Filter
    from gymnast.trainers.inspecting.index import Index
    from gymnast.trainers.inspecting.occurring import told_of_none

    index = Index(run)
    if rollout is not None:
        entries = [index.entry(rollout)]
    else:
        with as_options():
            wanted = Filter(
                steps=steps,
                evaluations=evaluations or not index.has_steps,
                group=group,
                min_reward=min_reward,
                max_reward=max_reward,
                where=where,
            )
            entries = list(index.find(wanted))[:limit]
        if not entries:
            raise ConfigError("; ".join(told_of_none(index, wanted)))
    with waiting(f"making the environment {environment or f'of {run}'}"), no_input():
        from gymnast.threads import run_blocking
        from gymnast.trainers.replaying.replay import replay
        from gymnast.trainers.replaying.stage import set_stage, stage_of

        stage = stage_of(environment, entries) if environment else set_stage(index.run)
    same = differing = 0
    for entry in entries:
        try:
            with no_input():
                replayed = run_blocking(replay(entry, stage))
        except CannotReplay as error:
            if not everything:
                raise
            say(error)
            continue
        same, differing = (
            same + (replayed.difference is None),
            differing + bool(replayed.difference),
        )
        say("\n".join(_lines(replayed)))
    if everything:
        left = len(entries) - same - differing
        cannot = f", {left} cannot be replayed" if left else ""
        say(f"{same} of {len(entries)} are the same, {differing} differ{cannot}")
    if differing:
        raise typer.Exit(1)


def _lines(replayed: "Replayed") -> list[str]:
    """What is said of one episode."""
    found, note = replayed.found, f" ({replayed.note})" if replayed.note else ""
    if replayed.difference is not None:
        return [f"{replayed.entry.id}: {line}" for line in replayed.difference.lines()[:1]] + [
            *replayed.difference.lines()[1:],
            *([replayed.note] if note else []),
        ]
    assert found is not None
    turns = f"{found.steps} turn{'' if found.steps == 1 else 's'}"
    outcome = f"{turns}, reward {found.reward:g}, {found.stop_reason}"
    return [f"{replayed.entry.id}: the same: {outcome}{note}"]
