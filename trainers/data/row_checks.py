"""Checks of every row of a dataset before a run, so that what would end it late ends it at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gymnast.envs import Environment, Mixture
from gymnast.envs.composed import any_has_own
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.rows import prompt_of, row_limits
from gymnast.envs.tools.episode_tools import offered_tools
from gymnast.errors import DataError
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.data.row_formats import expression_of, location_of
from gymnast.trainers.data.rows import Row


def check_rows(rows: Sequence[Row], env: Environment, source: str) -> None:
    """Check every row for what would end a run late: no prompt, tools that do not exist, limits.

    With a `setup` of the environment's own, rows may lack prompts if the first one does.
    """
    if isinstance(env, Mixture):
        _check_rows_of_all(rows, env, source)
        return
    _check_rows_of_one(rows, range(len(rows)), env, source)


def _check_rows_of_all(rows: Sequence[Row], env: Mixture, source: str) -> None:
    """Check rows each of which names an environment of a mixture."""
    by_name: dict[str, list[int]] = {name: [] for name in env.members}
    for row_index, row in enumerate(rows):
        with _at_row(rows, row_index, source):
            by_name[env.member_for(row)].append(row_index)
    for name, row_indices in by_name.items():
        _check_rows_of_one(rows, row_indices, env.members[name], source)


def _check_rows_of_one(
    rows: Sequence[Row], row_indices: Sequence[int], env: Environment, source: str
) -> None:
    """Check some of the rows, all of which one environment plays."""
    own_tools = any_has_own(type(env), "tools_for")  # which only an episode has
    own_start = type(env).setup is not Hooks.setup
    first = rows[row_indices[0]] if len(row_indices) else {}
    expression = expression_of(rows, "prompt")
    need_prompts = not (own_start and first.get("prompt") is None)
    for row_index in row_indices:
        row = rows[row_index]
        with _at_row(rows, row_index, source):
            row_limits(row)
            if not own_tools:
                offered_tools(row, env.tool_definitions)
            # A `setup` of the environment's own reads a prompt as it likes.
            if need_prompts and (not own_start or row.get("prompt") is None):
                prompt_of(row, expression)


@contextmanager
def _at_row(rows: Sequence[Row], row_index: int, source: str) -> Iterator[None]:
    """Say of what is wrong with a row where it stands."""
    try:
        yield
    except DataError as error:
        place = location_of(rows, row_index, shown_path(source))
        raise DataError(f"{place}: {error}") from error
