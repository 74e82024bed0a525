"""What an episode begins with: a row, and the messages of its prompt."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from gymnast.envs.records.messages import encodable, read_messages, text_of
from gymnast.errors import DataError
from gymnast.lookup import did_you_mean
from gymnast.types import Message

COLUMN = "environment"  # of a row of a mixture: the name of the environment that plays it
SYSTEM_ROLES = ("system", "developer")
# Of the policy, in the datasets and templates of several families; "gpt" is ShareGPT's.
_POLICY_ROLES = ("assistant", "model", "gpt", "chatbot")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PATH = re.compile(
    rf'(?:{_IDENTIFIER.pattern}|"[^"]*")(?:\.{_IDENTIFIER.pattern}|\."[^"]*"|\[-?\d+\])*', re.ASCII
)
_FROM_SHAREGPT = (
    "{role: from == 'human' && 'user' || from == 'gpt' && 'assistant' || from, content: value}"
)
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


def prompt_of(row: Mapping[str, Any], expression: str | None = None) -> list[Message]:
    """Return the messages of a row's `prompt`; a string is one user message.

    Args:
        row: The row.
        expression: The jmespath expression that made the column, for errors; None: none did.

    Raises:
        DataError: There is no usable prompt, or it ends with a message of the policy.
    """
    prompt = row.get("prompt")
    if prompt is None:
        columns = ", ".join(map(str, row)) or "(none)"
        raise DataError(
            f"the row has no 'prompt' (its columns: {columns}). Name the column that holds it "
            f"(data.columns: {_columns_hint(row)} in a run's YAML), or return messages from "
            "setup(row)."
        )
    try:
        messages = read_messages(
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        )
    except DataError as error:
        raise DataError(f"the row's 'prompt': {error}") from error
    except ValueError as error:
        source = expression or _source_of(row)
        mapping = _mapping(source, prompt, row) if _is_sharegpt(prompt) else None
        hint = f" Write data.columns: {mapping}." if mapping else ""
        raise DataError(
            f"the row's 'prompt' is {prompt!r:.200}; it must be a string or {error}.{hint}"
        ) from error
    if problem := answered(messages):
        mapping = _mapping(expression or _source_of(row), prompt, row)
        hint = (
            f"Leave it out: data.columns: {mapping} in a run's YAML, row['prompt']"
            f"[:-{_said_last(messages)}] in Python"
            if mapping
            else "Name a column that ends with the user's message"
        )
        raise DataError(f"the row's 'prompt' {problem}. {hint}.")
    return messages


def answered(messages: Sequence[Mapping[str, Any]]) -> str:
    """Describe the end of a prompt that the policy has already answered; "" for any other.

    Messages of users, tools and the system are what a policy answers. One of the assistant is an
    answer, and a policy that reads it is asked for nothing.
    """
    last = messages[-1]
    if str(last["role"]).lower() not in _POLICY_ROLES:
        return ""
    said = text_of(last) or f"{len(last.get('tool_calls') or ())} tool calls"
    return (
        f"ends with a message of the role {last['role']!r} ({said!r:.80}), so the answer stands in "
        "the prompt; it must end with what the policy is to answer: a message of the user, or the "
        "result of a tool"
    )


def _said_last(messages: Sequence[Any], key: str = "role") -> int:
    """Return the number of the policy's messages at the end of a conversation."""
    said = (str(message.get(key)).lower() in _POLICY_ROLES for message in reversed(messages))
    return len(list(takewhile(bool, said)))


def _source_of(row: Mapping[str, Any]) -> str:
    """Return an expression for the column that a row's `prompt` is a copy of, or for `prompt`."""
    prompt = row["prompt"]
    names = (name for name, value in row.items() if name != "prompt" and value == prompt)
    return _column(next(names, "prompt"))


def _column(name: Any) -> str:
    return str(name) if _IDENTIFIER.fullmatch(str(name)) else json.dumps(str(name))


def _columns_hint(row: Mapping[str, Any]) -> str:
    """Return the mapping of columns that makes a prompt of a row which has none."""
    found = (_mapping(_column(name), value, row) for name, value in row.items())
    return next(filter(None, found), "{prompt: ...}")


def _mapping(expression: str, conversation: Any, row: Mapping[str, Any]) -> str | None:
    """Return the columns to write for a conversation, or None if nothing in it can be a prompt.

    Args:
        expression: The jmespath expression that finds the conversation.
        conversation: What it finds in this row.
        row: The row, which may already have an `answer`.
    """
    if not isinstance(conversation, list | tuple) or not conversation:
        return None
    sharegpt = _is_sharegpt(conversation)
    key, text = ("from", "value") if sharegpt else ("role", "content")
    if not all(isinstance(m, Mapping) and isinstance(m.get(key), str) for m in conversation):
        return None
    answers = _said_last(conversation, key)
    if all(m[key] in SYSTEM_ROLES for m in conversation[: len(conversation) - answers]):
        return None
    if not _PATH.fullmatch(expression):  # a slice of `a || b` would be one of b
        expression += " | "
    prompt = expression + (f"[:-{answers}]" if answers else "[*]" if sharegpt else "")
    columns = {"prompt": f"{prompt}.{_FROM_SHAREGPT}" if sharegpt else prompt}
    last = conversation[-1]
    if answers and row.get("answer") is None:
        columns["answer"] = f"{expression}[-1].{text}"
        if isinstance(last.get(text), list):
            columns["answer"] = f"join('', {columns['answer']}[*].text)"
        elif not last.get(text) and last.get("tool_calls"):
            columns["answer"] = f"{expression}[-1].tool_calls"
    written = (f"{name}: {_quoted(value)}" for name, value in columns.items())
    return f"{{{', '.join(written)}}}"


def _quoted(expression: str) -> str:
    """Return a jmespath expression as a string of YAML."""
    if _IDENTIFIER.fullmatch(expression):
        return expression
    return f"'{expression}'" if '"' in expression else f'"{expression}"'


def _is_sharegpt(value: Any) -> bool:
    """Recognize a conversation whose messages have `from` and `value`."""
    listed = isinstance(value, list | tuple) and len(value) > 0
    return listed and all(
        isinstance(message, Mapping) and {"from", "value"} <= message.keys() for message in value
    )


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
