"""What an episode begins with: a row, its tools, and the messages of its prompt."""

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from gymnast.envs.records.messages import encodable, read_messages
from gymnast.envs.tools.definition import Tool, no_such_tool, with_stop_tools
from gymnast.envs.tools.json_schema import tools_by_name
from gymnast.errors import DataError, ToolDefinitionError
from gymnast.types import Message

SYSTEM_ROLES = ("system", "developer")


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


def episode_tools(
    given: Any,
    row: Mapping[str, Any],
    stop_tools: Iterable[str],
    methods: Collection[str] | None,
    owner: str,
) -> dict[str, Tool]:
    """The tools of an episode whose class has its own `tools_for`.

    Args:
        given: What `tools_for` returned.
        row: The episode's row, whose `tools` may select some.
        stop_tools: Names of the tools that end the episode.
        methods: Names of the tools that are methods of the class; None if it has its own
            `call_tool`, which runs any tool.
        owner: The class, for messages.

    Raises:
        ToolDefinitionError: An entry cannot be a tool, or nothing runs its calls.
        ConfigError: `stop_tools` names an unknown tool.
        DataError: The row names an unknown tool.
    """
    tools = with_stop_tools(tools_by_name(given, f"{owner}.tools_for"), stop_tools)
    for name, tool in tools.items():
        if methods is not None and tool.function is None and name not in methods:
            raise ToolDefinitionError(
                f"{owner}.tools_for returned a description of {name!r}, but nothing runs its "
                "calls. Override call_tool(name, arguments), or return a function."
            )
    return offered_tools(row, tools)


def offered_tools(row: Mapping[str, Any], tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """The tools that a row's `tools` names, in the environment's order; by default, all.

    Raises:
        DataError: It is not a list of names, or names an unknown tool.
    """
    names = row.get("tools")
    if names is None:
        return dict(tools)
    listed = isinstance(names, Sequence) and not isinstance(names, str)
    if not listed or not all(isinstance(name, str) for name in names):
        raise DataError(f"the row's 'tools' is {names!r:.200}; it must be a list of tool names.")
    for name in names:
        if name not in tools:
            raise DataError(f"the row's 'tools' names {name!r}. {no_such_tool(name, tools)}")
    return {name: tool for name, tool in tools.items() if name in names}


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
