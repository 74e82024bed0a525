"""What an episode begins with: a row, and the messages of its prompt."""

import copy
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from gymnast.envs.records.messages import encodable, read_messages
from gymnast.errors import DataError
from gymnast.lookup import did_you_mean
from gymnast.types import Message

COLUMN = "environment"  # of a row of a mixture: the name of the environment that plays it
SYSTEM_ROLES = ("system", "developer")
LIMITS = ("max_turns", "max_tokens", "episode_timeout_s")  # that a row may have of its own


def pick_row(rows: Any, rng: np.random.Generator, owner: str) -> Mapping[str, Any]:
    """Draw one of some rows uniformly.

    Raises:
        DataError: There are none.
    """
    if rows is None or len(rows) == 0:
        offer = "no rows" if rows is None else "an empty list of rows"
        raise DataError(
            f"{owner}.reset was given no row, and the environment has {offer} to take one from. "
            'Pass options={"row": {...}} or rows=[...], or override sample_row(rng).'
        )
    row: Mapping[str, Any] = rows[int(rng.integers(len(rows)))]
    return row


def checked_row(row: Any, owner: str) -> dict[str, Any]:
    """A deep copy of a row, so that what an episode does to it does not reach the next one.

    Raises:
        DataError: It is not a mapping.
    """
    if not isinstance(row, Mapping):
        raise DataError(
            f"{owner} was given the row {row!r:.200}; a row must be a dict, whether it comes from "
            "sample_row, from rows or from reset's options."
        )
    return copy.deepcopy(dict(row))


def prompt_of(row: Mapping[str, Any]) -> list[Message]:
    """The messages of a row's `prompt`; a string is one user message.

    Raises:
        DataError: There is no usable prompt.
    """
    prompt = row.get("prompt")
    if prompt is None:
        columns = ", ".join(map(str, row)) or "(none)"
        raise DataError(
            f"the row has no 'prompt' (its columns: {columns}). Name the column that holds it "
            "(data.columns: {prompt: ...} in a run's YAML), or return messages from setup(row)."
        )
    try:
        return read_messages(
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        )
    except DataError as error:
        raise DataError(f"the row's 'prompt': {error}") from error
    except ValueError as error:
        raise DataError(
            f"the row's 'prompt' is {prompt!r:.200}; it must be a string or {error}."
        ) from error


def without_name(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as its environment knows it, without what a mixture calls the environment."""
    return {column: value for column, value in row.items() if column != COLUMN}


def row_limits(row: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of an episode that its row has, in place of the environment's: its `limits`.

    Raises:
        DataError: It is not a mapping of limits that a row may have, or one is out of range.
    """
    given = row.get("limits")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DataError(
            f"the row's 'limits' is {given!r:.200}; it must be a mapping, of which the keys may be "
            f"{', '.join(LIMITS)}. Name a column with another meaning otherwise."
        )
    limits = {str(name): value for name, value in given.items() if value is not None}
    for name, value in limits.items():
        if name not in LIMITS:
            raise DataError(
                f"the row's 'limits' has {name!r}.{did_you_mean(name, LIMITS)} It may have: "
                f"{', '.join(LIMITS)}."
            )
        seconds = name.endswith("_s")
        number = isinstance(value, int | float if seconds else int) and not isinstance(value, bool)
        if not number or not (value > 0):
            rule = "a number > 0" if seconds else "a whole number >= 1"
            raise DataError(f"the row's 'limits': {name} must be {rule}, got {value!r:.100}.")
    return limits


def own_messages(messages: Sequence[Message]) -> int:
    """How many messages of a row or of `setup` follow its leading system messages."""
    leading = (message["role"] in SYSTEM_ROLES for message in messages)
    return len(messages) - len(list(takewhile(bool, leading)))


def with_hint(
    prompt: Sequence[Message], hint: Sequence[Message], own: int
) -> tuple[list[Message], list[Message]]:
    """A prompt with a hint before its own messages, as it is and with neighbours joined.

    Args:
        prompt: The messages of the episode's prompt.
        hint: Those of the hint.
        own: How many of the prompt's, counted from its end, are its own: before them stand system
            messages and worked turns.

    Returns:
        Both: the second has no two texts of one role beside each other, for templates in which
        roles take turns.
    """
    place = len(prompt) - own
    hinted = [*prompt[:place], *hint, *prompt[place:]]
    joined: list[Message] = []
    for message in hinted:
        before = joined[-1] if joined else None
        if before is not None and _alike(before, message):
            text = f"{before['content']}\n\n{message['content']}"
            joined[-1] = {**before, "content": text}
        else:
            joined.append(message)
    return hinted, joined


def _alike(first: Message, second: Message) -> bool:
    """Whether two messages are texts of one role, and no tool's, without anything else."""
    same = first["role"] == second["role"] != "tool" and first.keys() == second.keys()
    return same and all(
        isinstance(message.get("content"), str) and not message.get("tool_calls")
        for message in (first, second)
    )


def with_system_prompt(messages: list[Message], system_prompt: str | None) -> list[Message]:
    """The messages with a system prompt in front, unless they begin with a system message."""
    if system_prompt is None or messages[0]["role"] in SYSTEM_ROLES:
        return messages
    return [{"role": "system", "content": encodable(system_prompt)}, *messages]
