"""What rubrics look at: the answer of an episode, a place in it, and columns of the row.

And how what names a place or a column is checked.
"""

from collections.abc import Mapping
from typing import Any

import jmespath
import regex

from gymnast.envs.records.messages import text_of
from gymnast.envs.rubrics.rubric import Played
from gymnast.envs.tools.searching import search
from gymnast.errors import ConfigError, DataError
from gymnast.types import Message

TIMEOUT_S = 5.0  # processor time of a search


def answer_of(episode: Played) -> str:
    """The text of the last turn, "" if it has none."""
    if not episode.turns:
        return ""
    said = [message for message in episode.messages if message["role"] == "assistant"]
    return text_of(said[-1]) if said else ""


def prompt_of(episode: Played) -> list[Message]:
    """The messages before the policy's first one."""
    said = [i for i, message in enumerate(episode.messages) if message["role"] == "assistant"]
    own = said[-len(episode.turns) :] if episode.turns else []
    return list(episode.messages[: own[0]] if own else episode.messages)


def extracted(text: str, pattern: str | None) -> str | None:
    """The last place in a text that a pattern matches; None where there is none.

    Args:
        text: The text.
        pattern: A regular expression, whose first group is taken if it has one; None takes all.
    """
    if pattern is None:
        return text
    found = search(pattern, text, last=True, timeout_s=TIMEOUT_S)
    if found is None:
        return None
    return found.group(1) if found.re.groups else found.group()


def check_pattern(rubric: str, option: str, pattern: Any) -> None:
    """Check a regular expression.

    Raises:
        ConfigError: It is none.
    """
    try:
        if not isinstance(pattern, str) or not pattern:
            raise TypeError("it must be a text that is not empty")
        regex.compile(pattern)
    except (regex.error, TypeError) as error:
        raise ConfigError(
            f"{rubric}: {option} must be a regular expression, got {pattern!r:.100} ({error})"
        ) from error


def check_timeout(rubric: str, timeout_s: Any) -> None:
    """Check a limit of processor time.

    Raises:
        ConfigError: It is no number of seconds above 0.
    """
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not number or not timeout_s > 0:
        raise ConfigError(f"{rubric}: timeout_s must be a number > 0, got {timeout_s!r:.100}")


def check_column(rubric: str, column: Any) -> None:
    """Check what names a column.

    Raises:
        ConfigError: It is no jmespath expression.
    """
    if not isinstance(column, str) or not column:
        raise ConfigError(f"{rubric}: column must be the name of a column, got {column!r:.100}")
    try:
        jmespath.compile(column)
    except jmespath.exceptions.JMESPathError as error:
        if not column.replace(" ", "").replace("-", "").isidentifier():
            raise ConfigError(
                f"{rubric}: column must be the name of a column or a jmespath expression, got "
                f"{column!r:.100} ({str(error).splitlines()[0]})"
            ) from error


def of_row(row: Mapping[str, Any], column: str, rubric: str) -> Any:
    """What a row says in a column.

    Args:
        row: The episode's.
        column: Its name, or a jmespath expression where the row has none of that name.
        rubric: Who asks, for errors.

    Raises:
        DataError: The row has nothing there.
    """
    found = row[column] if column in row else _searched(row, column)
    if found is None:
        raise DataError(
            f"{rubric}: the row has nothing in {column!r}, which the answer is compared with; its "
            f"columns are: {', '.join(map(str, row))} (row: {dict(row)!r:.300})"
        )
    return found


def _searched(row: Mapping[str, Any], column: str) -> Any:
    try:
        return jmespath.search(column, row)
    except Exception:  # jmespath's functions let Python's own errors through
        return None
