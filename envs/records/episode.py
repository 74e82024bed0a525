"""The records of an episode, which `reward` and `turn_reward` read, and its metrics and timings."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gymnast.envs.records.messages import text_of
from gymnast.errors import UsageError
from gymnast.types import Message, StopReason, ToolCall
from gymnast.visible import visible_line

ErrorKind = Literal["malformed", "unknown_tool", "bad_arguments", "exception", "timeout", "bug"]
Info = dict[str, Any]
_MAX_SHOWN = 80
# Kinds of errors with an existing tool; in others, the name may be anything that the model wrote.
_TOOL_FAILURES = ("bad_arguments", "exception", "timeout", "bug")


@dataclass(frozen=True)
class ToolError:
    """Why a call did not succeed.

    Attributes:
        kind: `malformed` (could not be read), `unknown_tool`, `bad_arguments`, `exception` (the
            tool raised), `timeout`, or `bug`: the tool's own code is at fault, not the policy (it
            returned a value that JSON cannot hold, or raised an exception that no argument
            explains: `tools/bugs.py`).
        tool: The name the policy wrote; "" if it could not be read.
        message: What the policy is told: what was wrong and what would have been right.
        exception: The type of the exception that the tool or its result raised; else "".
        traceback: For a `bug` that was raised, where in the tool's code; else "".
    """

    kind: ErrorKind
    tool: str
    message: str
    exception: str = ""
    traceback: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call and its result.

    Attributes:
        call: As the policy wrote it.
        arguments: Validated and coerced, as the tool got them; {} if it did not run.
        result: What the tool returned, as it was then: a string, or the value in JSON (a dataclass
            as a dict, a tuple as a list), whatever happened to the object later; None after an
            error. A result that was cut for the policy is whole here.
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


@dataclass(frozen=True, slots=True)
class Turn:
    """One action and the environment's answer: the argument of `turn_reward`.

    Attributes:
        index: 0 for the first turn of the episode.
        message: The assistant message.
        calls: Its tool calls, in the order written, with their results.
        results: The environment's messages.
        raw: All that the policy wrote, as its tokens decode: thoughts, markup and stop token
            included. Where messages are all there is (`act`), the text of the message.
        branch: The context in which it was taken; 0 where an episode has one.

    Where a program has the loop (`next_request`), it runs the calls: what it then appends to the
    context are the `results`, which `turn_reward` does not see yet.
    """

    index: int
    message: Message
    calls: tuple[CallRecord, ...] = ()
    results: tuple[Message, ...] = ()
    raw: str = field(default="", repr=False)
    branch: int = 0

    @property
    def text(self) -> str:
        """The text of the assistant message, "" if it has none."""
        return text_of(self.message)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls as the policy wrote them, including those that could not be read."""
        return [record.call for record in self.calls]

    @property
    def errors(self) -> list[ToolError]:
        """Why calls did not succeed, in order."""
        return [record.error for record in self.calls if record.error is not None]

    def __repr__(self) -> str:
        return (
            f"<Turn index={self.index} calls={len(self.calls)} errors={len(self.errors)} "
            f"text={_clipped(self.text)!r}>"
        )


@dataclass(frozen=True)
class Episode:
    """A whole episode: the argument of `reward`.

    Attributes:
        row: The dataset row it began with.
        prompt: The messages it began with.
        turns: The turns taken, in all contexts, in order.
        stop_reason: Why it ended.
        other_prompts: Those of its further contexts, which a program opened (`next_request`).
        unreceived: The numbers of the turns whose message its program never read.
    """

    row: Mapping[str, Any]
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...] = ()
    stop_reason: StopReason | None = None
    other_prompts: tuple[tuple[Message, ...], ...] = ()
    unreceived: frozenset[int] = frozenset()

    @property
    def branches(self) -> tuple[tuple[Message, ...], ...]:
        """The prompts of its contexts, in order; that of the first is `prompt`."""
        return (self.prompt, *self.other_prompts)

    def messages_of(self, branch: int) -> list[Message]:
        """The conversation in one context, as `messages` has it.

        Raises:
            UsageError: There is no such context.
        """
        if not 0 <= branch < len(self.branches):
            raise UsageError(
                f"the episode has no context {branch!r}; it has {len(self.branches)}, counted "
                "from 0."
            )
        messages = list(self.branches[branch])
        for turn in self.turns:
            if turn.branch == branch:
                messages += [turn.message, *turn.results]
        return messages

    @property
    def messages(self) -> list[Message]:
        """The conversation in OpenAI's shape, JSON-serialisable; a new list each time.

        Of an episode with several contexts, it is that of the first.
        """
        return self.messages_of(0)

    @property
    def answer(self) -> str:
        """The text of the last turn whose message was read; "" if it has none."""
        read = (turn.text for turn in reversed(self.turns) if turn.index not in self.unreceived)
        return next(read, "")

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
        """Why calls did not succeed, in order."""
        return [error for turn in self.turns for error in turn.errors]

    def __repr__(self) -> str:
        return (
            f"<Episode turns={len(self.turns)} calls={len(self.calls)} errors={len(self.errors)} "
            f"stop_reason={self.stop_reason} answer={_clipped(self.answer)!r}>"
        )


class Outcome(NamedTuple):
    """The result of `act`: that of `step`, with the environment's messages instead of ids."""

    messages: list[Message]
    reward: float
    terminated: bool
    truncated: bool
    info: Info


def _clipped(text: str) -> str:
    """A text as one short line."""
    text = visible_line(" ".join(text.split()))
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def episode_metrics(episode: Episode) -> dict[str, float]:
    """Count an episode's calls and errors.

    Returns:
        `tools/calls`; `tools/calls/<tool>`, the calls that ran, whether or not the tool then raised
        or timed out; `tools/failures/<tool>`, the calls of an existing tool that did not succeed;
        `tools/errors`; `tools/errors/<kind>`, of which `bug` counts the author's mistakes. Counts
        of a tool or a kind are left out if they are 0.
    """
    ran = Counter(record.call.name for record in episode.calls if _ran(record))
    failed = Counter(error.tool for error in episode.errors if error.kind in _TOOL_FAILURES)
    kinds = Counter(error.kind for error in episode.errors)
    metrics = {
        "tools/calls": len(episode.calls),
        "tools/errors": len(episode.errors),
        **{f"tools/calls/{name}": count for name, count in ran.items()},
        **{f"tools/failures/{name}": count for name, count in failed.items()},
        **{f"tools/errors/{kind}": count for kind, count in kinds.items()},
    }
    return {name: float(value) for name, value in metrics.items()}


def _ran(record: CallRecord) -> bool:
    return record.error is None or record.error.kind in ("exception", "timeout", "bug")


class Timings(Mapping[str, float]):
    """Seconds by kind of work: "parse", "tools", "render", "tool/multiply", ...

    Two are equal if they measured the same kinds of work, whatever the seconds: Gymnasium's
    `check_env` requires that equal actions after equal seeds give equal infos.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Add the time that the block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(kind, time.perf_counter() - start)

    def add(self, kind: str, seconds: float) -> None:
        """Add some seconds to a kind."""
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    def __getitem__(self, kind: str) -> float:
        return self._seconds[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._seconds)

    def __len__(self) -> int:
        return len(self._seconds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timings) and self._seconds.keys() == other._seconds.keys()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Timings({self._seconds})"
