"""The state of one running episode, and why it ends.

`episode_runner.py` makes a fresh one for each episode and changes it turn by turn, so nothing of an
earlier episode can leak into the next. Limits on tokens are in `context.py`.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gymnast.envs.boxes.box import BROKEN
from gymnast.envs.environment.episode_boxes import EpisodeBoxes
from gymnast.envs.records.episode import Episode, Turn
from gymnast.envs.records.metrics import Timings, episode_metrics
from gymnast.envs.tools.definition import Tool
from gymnast.errors import InfrastructureError, SandboxBroken
from gymnast.types import Message, StopReason

PRECEDENCE = (
    StopReason.error,
    StopReason.stop_tool,
    StopReason.answered,
    StopReason.environment,
    StopReason.context,
    StopReason.max_tokens,
    StopReason.max_turns,
    StopReason.timeout,
)


def first_reason(holding: Collection[StopReason]) -> StopReason | None:
    """The reason an episode ends for, of those that hold; None where none does."""
    return next((reason for reason in PRECEDENCE if reason in holding), None)


@dataclass
class EpisodeState:
    """One episode as it runs.

    Attributes:
        row: The row it began with.
        tools: Those offered, by name.
        deadline: When its time is up, on `time.monotonic`; None is never.
        prompt: The messages it began with.
        turns: Those taken.
        timings: Of the turn being taken.
        ended: Whether the environment ended it.
        failure: What broke under it.
        broke_box: Whether the policy broke its box.
        unusable: Whether a hook that scores met a file or a text of the policy's that no box takes.
        paid: The rewards of its turns so far.
        stop_reason: Why it ended; None while it runs.
        abandoned_before: Threads given up before it began.
    """

    row: Mapping[str, Any]
    tools: Mapping[str, Tool]
    deadline: float | None = None
    prompt: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    timings: Timings = field(default_factory=Timings)
    ended: bool = False
    failure: InfrastructureError | None = None
    broke_box: bool = False
    unusable: bool = False
    paid: float = 0.0
    stop_reason: StopReason | None = None
    abandoned_before: int = 0

    @property
    def episode(self) -> Episode:
        """The record of it so far."""
        return Episode(self.row, tuple(self.prompt), tuple(self.turns), self.stop_reason)

    def holding(self, turn: Turn, *, cut: bool, max_turns: int) -> set[StopReason]:
        """What ends the episode after this turn, apart from the limits on tokens.

        Args:
            turn: The turn just taken; not yet among `turns`.
            cut: Whether the action was cut by its length: it has no stop id at its end.
            max_turns: How many turns the episode may have.
        """
        readable = any(call.error is None for call in turn.tool_calls)
        holds = {
            StopReason.error: self.failure is not None,
            StopReason.stop_tool: any(map(self._stops, turn.calls)),
            StopReason.answered: not turn.calls and not cut,
            StopReason.environment: self.ended,
            StopReason.max_tokens: cut and not readable,
            StopReason.max_turns: len(self.turns) + 1 >= max_turns,
            StopReason.timeout: self.deadline is not None and time.monotonic() >= self.deadline,
        }
        return {reason for reason, holding in holds.items() if holding}

    @contextmanager
    def settling(self, boxes: EpisodeBoxes) -> Iterator[None]:
        """Tools or hooks run inside; take note of whose doing it was that one raised or broke.

        Args:
            boxes: Those of the episode: one that broke need not have raised anything.

        Raises:
            Exception: What was raised, where it is the user's to mend.
        """
        raised: Exception | None = None
        try:
            yield
        except Exception as error:
            raised = error
        found = boxes.broke
        if isinstance(found, SandboxBroken) or isinstance(raised, SandboxBroken):
            self.broke_box = self.ended = True
        elif found is not None:
            self.failure = found
        elif isinstance(raised, InfrastructureError):
            self.failure = raised
        elif raised is not None:
            raise raised

    def counts(self, *, abandoned: int, boxed: bool) -> dict[str, float]:
        """The metrics of an episode that is over, apart from those of the subclass.

        Args:
            abandoned: Threads that it gave up.
            boxed: Whether it has a box.
        """
        counts = {**episode_metrics(self.episode), "tools/abandoned_threads": float(abandoned)}
        if boxed:
            counts |= {BROKEN: float(self.broke_box), "sandbox/unusable": float(self.unusable)}
        return counts

    def _stops(self, record: Any) -> bool:
        """A stop tool ends the episode only where its call succeeded."""
        return record.error is None and self.tools[record.call.name].options.stop
