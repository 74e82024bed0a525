"""What happened in an episode so far: the records that `reward` and `turn_reward` read.

Records only; they are made in `environment/environment.py` and `tools/running.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gymnast.envs.records.messages import text_of
from gymnast.types import Message, StopReason, ToolCall
from gymnast.visible import visible_line

ErrorKind = Literal["malformed", "unknown_tool", "bad_arguments", "exception", "timeout", "bug"]
Info = dict[str, Any]
_MAX_SHOWN = 80


@dataclass(frozen=True)
class ToolError:
    """A call that did not succeed. The policy was told the message.

    Attributes:
        kind: `malformed` (could not be read), `unknown_tool`, `bad_arguments`, `exception` (the
            tool raised), `timeout`, or `bug`: the tool's own code is at fault, not the policy (it
            returned what JSON cannot hold, or raised what no argument explains: `tools/bugs.py`).
        tool: The name the policy wrote, "" where it could not be read.
        message: What was wrong and what would have been right.
        exception: The type of what the tool raised, or of what its result raised; "" elsewhere.
        traceback: Of a `bug` that was raised: where in the tool's code; "" elsewhere.
    """

    kind: ErrorKind
    tool: str
    message: str
    exception: str = ""
    traceback: str = field(default="", repr=False)


@dataclass(frozen=True)
class CallRecord:
    """One call and what came of it.

    Attributes:
        call: As the policy wrote it.
        arguments: Validated and coerced, as the tool got them; {} where it did not run.
        result: What the tool returned, as it was then: a string, or the value in JSON (a
            dataclass is a dict, a tuple a list), whatever became of the object later; None after
            an error. A result too long for its tool is whole here.
        text: What the policy reads.
        error: Why it did not succeed, or None.
        seconds: How long the tool ran.
    """

    call: ToolCall
    arguments: Mapping[str, Any]
    result: Any
    text: str
    error: ToolError | None
    seconds: float

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.call.arguments.items())
        name, given, text = map(_clipped, (self.call.name, given, self.text))
        return f"<CallRecord {name}({given}) -> {text}>"


@dataclass(frozen=True)
class Turn:
    """One action and what the environment answered: what `turn_reward` gets.

    Attributes:
        index: 0 for the first turn of the episode.
        message: The assistant message.
        calls: Its tool calls, in the order written, with their results.
        results: The messages the environment answered with.
    """

    index: int
    message: Message
    calls: tuple[CallRecord, ...] = ()
    results: tuple[Message, ...] = ()

    @property
    def text(self) -> str:
        """The text of the assistant message, "" where it has none."""
        return text_of(self.message)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls as the policy wrote them, those that could not be read included."""
        return [record.call for record in self.calls]

    @property
    def errors(self) -> list[ToolError]:
        """The calls that did not succeed."""
        return [record.error for record in self.calls if record.error is not None]

    def __repr__(self) -> str:
        return (
            f"<Turn index={self.index} calls={len(self.calls)} errors={len(self.errors)} "
            f"text={_clipped(self.text)!r}>"
        )


@dataclass(frozen=True)
class Episode:
    """A whole episode: what `reward` gets.

    Attributes:
        row: The dataset row it began with.
        prompt: The messages it began with.
        turns: In order.
        stop_reason: Why it ended.
    """

    row: Mapping[str, Any]
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...] = ()
    stop_reason: StopReason | None = None

    @property
    def messages(self) -> list[Message]:
        """The conversation in OpenAI's shape, JSON-serialisable; a new list each time."""
        found = list(self.prompt)
        for turn in self.turns:
            found += [turn.message, *turn.results]
        return found

    @property
    def answer(self) -> str:
        """The text of the last turn, "" where it has none."""
        return self.turns[-1].text if self.turns else ""

    @property
    def calls(self) -> list[CallRecord]:
        """Every call with its result, in order."""
        return [record for turn in self.turns for record in turn.calls]

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Every call as the policy wrote it, in order."""
        return [record.call for record in self.calls]

    @property
    def errors(self) -> list[ToolError]:
        """Every call that did not succeed, in order."""
        return [error for turn in self.turns for error in turn.errors]

    def __repr__(self) -> str:
        return (
            f"<Episode turns={len(self.turns)} calls={len(self.calls)} errors={len(self.errors)} "
            f"stop_reason={self.stop_reason} answer={_clipped(self.answer)!r}>"
        )


class Outcome(NamedTuple):
    """What `act` returns: as `step` does, with the environment's messages in place of ids."""

    messages: list[Message]
    reward: float
    terminated: bool
    truncated: bool
    info: Info


def _clipped(text: str) -> str:
    """A text as one short line."""
    text = visible_line(" ".join(text.split()))
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
