"""The settings of a `Program`, checked."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymnast.errors import ConfigError, UsageError
from gymnast.sandboxes.contract.spec import check_env_variables


def checked_command(owner: str, given: Any) -> list[str] | None:
    """An argument vector, of one or of a text for the shell; None of None.

    Raises:
        ConfigError: It is something else, or empty.
    """
    if given is None:
        return None
    words = ["/bin/sh", "-c", given] if isinstance(given, str) else given
    listed = isinstance(words, Sequence) and len(words) > 0
    if not given or not listed or not all(isinstance(word, str) and word for word in words):
        raise ConfigError(
            f"{owner}: command must be a text or a list of texts, none of them empty, got "
            f"{given!r:.200}. Write: command: [python, agent.py]."
        )
    return list(words)


def checked_columns(owner: str, given: Any) -> tuple[str, ...]:
    """The names of the columns that a program is shown.

    Raises:
        ConfigError: It is no list of texts.
    """
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    if not listed or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"{owner}: shown must be a list of columns, got {given!r:.200}.")
    return tuple(given)


def checked_variables(owner: str, given: Any) -> Mapping[str, str]:
    """Environment variables.

    Raises:
        ConfigError: They are not texts by name.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{owner}: variables must be texts by name, got {given!r:.200}.")
    try:
        return dict(check_env_variables(given))
    except UsageError as error:
        raise ConfigError(f"{owner}: variables: {error}") from error
