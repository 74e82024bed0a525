"""The calls of an episode that failed, how, and what is equal in mistakes of one form.

An episode that was saved is as good as one that was just played: the kind of a failure is read off
its messages, as docs/metrics.md names it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gymnast.trainers.base.contexts import alone
from gymnast.trainers.reporting.shown_episodes import first_action, shown_call
from gymnast.types import StopReason, Trajectory

# What may end an episode in the middle of a message.
CUT = (StopReason.max_tokens, StopReason.context, StopReason.timeout)

# What differs between two mistakes of one form: places, numbers, quoted text, the values given.
VARYING = re.compile(r"\d+|'[^']*'|\"[^\"]*\"|\(got .*?\)")
_FAILED_TO_RUN = "Error: {name}: "
_GIVEN_UP = ("Error: {name} was given up", "Error: {name} was not run")


class FailedCall(NamedTuple):
    """A call that failed; calls of one form make one mistake.

    Attributes:
        kind: `malformed`, `unknown_tool`, `bad_arguments`, `timeout`, or `exception`: the tool
            raised, by the policy's fault or its own.
        form: What is equal in all mistakes of the form.
        name: The tool's.
        written: The call as the policy wrote it.
        answer: What it was told; of a malformed one the error, whether it was told or the episode
            ended.
        context: In which context of the episode it stands, 0 being the first.
        message: In which message of that.
    """

    kind: str
    form: str
    name: str
    written: str
    answer: str
    context: int
    message: int


def failed_calls(episode: Trajectory) -> Iterator[FailedCall]:
    """The calls of an episode that failed, context by context.

    A call that could not be read because a limit cut its message off is none of them.
    """
    for number, context in enumerate(alone(episode)):
        yield from _of_context(context, number)


def offered_tools(episode: Trajectory) -> set[str]:
    """The names of the tools that were offered at first."""
    return {_name_of(tool) for tool in episode.tools}


def _of_context(episode: Trajectory, context: int) -> Iterator[FailedCall]:
    offered = offered_tools(episode)
    answers = {
        message.get("tool_call_id"): str(message.get("content"))
        for message in episode.messages
        if message["role"] == "tool"
    }
    start = first_action(episode)
    said = [n for n, m in enumerate(episode.messages[start:], start) if m["role"] == "assistant"]
    for number, message in enumerate(episode.messages):
        offered |= {_name_of(tool) for tool in message.get("tools") or ()}
        if number not in said:
            continue
        whole = episode.stop_reason not in CUT or number < said[-1]
        for call in message.get("tool_calls") or []:
            answer = answers.get(call.get("id"), "")
            found = _failure(call, message, answer, offered)
            if found is not None and (whole or found[0] != "malformed"):
                yield FailedCall(*found, context, number)


_Failure = tuple[str, str, str, str, str]  # the fields of a `FailedCall` before its place


def _failure(
    call: Mapping[str, Any],
    message: Mapping[str, Any],
    answer: str,
    offered: set[str],
) -> _Failure | None:
    name, written = str(call["function"].get("name")), shown_call(call)
    if error := call.get("error"):
        written = str(message.get("raw") or written).strip()
        return ("malformed", VARYING.sub("…", error), name, written, error)
    if name not in offered:
        return ("unknown_tool", name, name, written, answer)
    form = VARYING.sub("…", answer)
    if answer.startswith(f"Error: {name}("):  # a tool's own errors have no signature
        return ("bad_arguments", form, name, written, answer)
    if answer.startswith(tuple(start.format(name=name) for start in _GIVEN_UP)):
        return ("timeout", form, name, written, answer)
    if answer.startswith(_FAILED_TO_RUN.format(name=name)):
        return ("exception", form, name, written, answer)
    return None


def _name_of(tool: Mapping[str, Any]) -> str:
    return str(tool.get("function", tool).get("name"))
