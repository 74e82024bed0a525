"""What occurs in the episodes of a run, told where a filter asks for what occurs in none."""

from collections.abc import Iterable, Iterator

from gymnast.lookup import did_you_mean
from gymnast.trainers.inspecting.filters import Filter
from gymnast.trainers.inspecting.index import Entry, Index
from gymnast.trainers.saving.saved_runs import shown_steps

_CALLS = ("tools/calls/", "tools/failures/")
_ERRORS = ("tools/errors/",)


def told_of_none(index: Index, wanted: Filter) -> list[str]:
    """What to say of a filter that takes no episode: what of it occurs in none, and what occurs.

    Args:
        index: The run's.
        wanted: The filter.

    Returns:
        Lines, each of which begins with the option that a command has for that part of the filter.
    """
    kind = "evaluation" if wanted.evaluations else "training"
    entries = [
        Entry(file, number)
        for file in index.files
        if wanted.takes_file(file.file)
        for number in range(len(file))
    ]
    if wanted.steps is not None and not entries:
        return [_no_such_steps(index, wanted.steps, kind, evaluations=wanted.evaluations)]
    if not entries:
        return [f"the run has no {kind} episodes"]
    of_steps = "" if wanted.steps is None else " of these steps"
    return [
        f"none of the {len(entries)} {kind} episodes{of_steps} matches",
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
    return f"--step {given}: the run has no {kind} episodes of {which}; {has}"


def _absent(entries: list[Entry], wanted: Filter) -> Iterator[str]:
    """What no episode has of the parts of a filter that name something."""
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
    if wanted.where is not None:
        columns = dict.fromkeys(column for entry in entries for column in entry.row)
        if columns:
            yield f"--where {wanted.where}: the columns of the rows are {', '.join(columns)}"


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
