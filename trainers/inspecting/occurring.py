"""What occurs in the episodes of a run, told where a filter asks for what occurs in none."""

from collections.abc import Iterable, Iterator

from gymnast.lookup import did_you_mean
from gymnast.trainers.inspecting.filters import Filter, tag_text
from gymnast.trainers.inspecting.index import Entry, Index
from gymnast.trainers.saving.saved_runs import shown_steps

_CALLS = ("tools/calls/", "tools/failures/")
_ERRORS = ("tools/errors/",)
_SHOWN = 10  # values of a column


def told_of_none(index: Index, wanted: Filter) -> list[str]:
    """What to say of a filter that takes no episode: what of it occurs in none, and what occurs.

    Args:
        index: The run's.
        wanted: The filter.

    Returns:
        Lines, each of which begins with the option that a command has for that part of the filter.
    """
    kind = {True: "evaluation episodes", False: "training episodes", None: "episodes"}[
        wanted.evaluations
    ]
    entries = [
        Entry(file, number)
        for file in index.files
        if wanted.takes_file(file.file)
        for number in range(len(file))
    ]
    if wanted.steps is not None and not entries:
        return [_no_such_steps(index, wanted.steps, kind, evaluations=wanted.evaluations)]
    if not entries:
        return [f"the run has no {kind}"]
    of_steps = "" if wanted.steps is None else " of these steps"
    return [
        f"none of the {len(entries)} {kind}{of_steps} matches",
        *_absent(entries, wanted),
    ]


def _no_such_steps(index: Index, steps: range, kind: str, *, evaluations: bool | None) -> str:
    given = shown_steps(steps)
    there = {
        file.file.step
        for file in index.files
        if evaluations is None or file.file.is_evaluation == evaluations
    }
    which = "this step" if len(steps) == 1 else "these steps"
    plural = "" if len(there) == 1 else "s"
    has = f"it has those of step{plural} {shown_steps(there)}" if there else "it has none"
    return f"--step {given}: the run has no {kind} of {which}; {has}"


def _absent(entries: list[Entry], wanted: Filter) -> Iterator[str]:
    """What no episode has of the parts of a filter that name something."""
    if wanted.group is not None:
        groups = {entry.group for entry in entries}
        if wanted.group not in groups:
            yield f"--group {wanted.group}: is in no file. The groups: {shown_steps(groups)}"
    yield from _no_such_rewards(entries, wanted)
    if wanted.tool is not None:
        yield from _unless_in(wanted.tool, _counted(entries, _CALLS), "--tool", "The called tools")
    if wanted.error is not None:
        yield from _unless_in(wanted.error, _counted(entries, _ERRORS), "--error", "The errors")
    if wanted.stop_reason is not None:
        ends = {entry.stop_reason for entry in entries}
        yield from _unless_in(wanted.stop_reason, ends, "--stop-reason", "The stop reasons")
    if wanted.environment is not None:
        names = {entry.environment for entry in entries} - {""}
        yield from _unless_in(wanted.environment, names, "--environment", "The named environments")
    for column, value in wanted.tags.items():
        yield from _unless_tagged(entries, column, value)
    if wanted.where is not None:
        columns = dict.fromkeys(column for entry in entries for column in entry.row)
        if columns:
            yield f"--where {wanted.where}: the columns of the rows are {', '.join(columns)}"


def _no_such_rewards(entries: Iterable[Entry], wanted: Filter) -> Iterator[str]:
    only = Filter(min_reward=wanted.min_reward, max_reward=wanted.max_reward)
    if any(only.takes(entry) for entry in entries):
        return
    ends = (("--min-reward", wanted.min_reward), ("--max-reward", wanted.max_reward))
    given = " ".join(f"{option} {value:g}" for option, value in ends if value is not None)
    rewards = [entry.reward for entry in entries if entry.reward is not None]
    there = f"they are from {min(rewards):g} to {max(rewards):g}" if rewards else "none has any"
    yield f"{given}: no episode has such a reward; {there}"


def _unless_tagged(entries: Iterable[Entry], column: str, value: str) -> Iterator[str]:
    rows = [entry.row for entry in entries]
    values = list(dict.fromkeys(tag_text(row[column]) for row in rows if column in row))
    if not values:
        columns = dict.fromkeys(name for row in rows for name in row)
        near = did_you_mean(column, columns)
        listed = ", ".join(columns) or "none"
        yield f"--tag {column}={value}: no row has this column.{near} The columns: {listed}"
    elif value not in values:
        shown = ", ".join(f"{each:.40}" for each in values[:_SHOWN])
        more = f", and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
        yield f"--tag {column}={value}: no row has this value. Those of {column}: {shown}{more}"


def _counted(entries: Iterable[Entry], prefixes: tuple[str, ...]) -> set[str]:
    """The ends of the names of metrics that begin so and are not 0."""
    return {
        name.removeprefix(prefix)
        for entry in entries
        for name, value in entry.metrics.items()
        for prefix in prefixes
        if name.startswith(prefix) and value
    }


def _unless_in(given: str, there: set[str], option: str, what: str) -> Iterator[str]:
    if given not in there:
        listed = ", ".join(sorted(there)) or "none"
        near = did_you_mean(given, there)
        yield f"{option} {given}: is in no episode.{near} {what}: {listed}"
