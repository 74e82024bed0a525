"""The state of one running episode, and the reasons for it to end.

`episode_runner.py` makes a fresh one for each episode and `turn.py` changes it turn by turn, so
nothing of an earlier episode can leak into the next. Limits on tokens are in `tokens/context.py`.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gymnast.envs.boxes.box import BROKEN
from gymnast.envs.boxes.episode_boxes import EpisodeBoxes
from gymnast.envs.records.episode import Episode, Timings, Turn, episode_metrics
from gymnast.envs.tools.definition import Tool
from gymnast.errors import InfrastructureError, SandboxBroken
from gymnast.types import Message, StopReason


@dataclass
class EpisodeState:
    """One episode as it runs.

    Attributes:
        row: The row it began with.
        tools: The offered tools, by name.
        limits: Those that the row has, in place of the environment's.
        deadline: When its time is up, on `time.monotonic`; None: never.
        prompt: The messages it began with.
        own_messages: How many of them, at its end, are those of the row or of `setup`.
        turns: The turns taken.
        timings: Of the current turn.
        ended: Whether the environment ended it.
        cut_off: Whether a limit of the environment's own was reached.
        failure: The infrastructure error that ended it, if any.
        broke_box: Whether the policy broke its box.
        unusable: Whether a scoring hook failed on a file or a text of the policy's.
        paid: The rewards of its turns so far.
        unreceived: The turns whose message nobody has read.
        stop_reason: Why it ended; None while it runs.
        abandoned_before: How many threads had been given up when it began.
        other_prompts: Those of the contexts after the first, which requests opened.
        offered: The schemas of the tools of each context; empty where nothing is requested.
        branch: The context of the next action.
        follows_branches: Whether whoever drives the episode follows it into other contexts.
        program_runs: Whether a program runs, which has not ended by itself.
    """

    row: Mapping[str, Any]
    tools: Mapping[str, Tool]
    limits: Mapping[str, Any] = field(default_factory=dict)
    deadline: float | None = None
    prompt: list[Message] = field(default_factory=list)
    own_messages: int = 0
    turns: list[Turn] = field(default_factory=list)
    timings: Timings = field(default_factory=Timings)
    ended: bool = False
    cut_off: bool = False
    failure: InfrastructureError | None = None
    broke_box: bool = False
    unusable: bool = False
    paid: float = 0.0
    unreceived: set[int] = field(default_factory=set)
    stop_reason: StopReason | None = None
    abandoned_before: int = 0
    other_prompts: list[tuple[Message, ...]] = field(default_factory=list)
    offered: list[list[dict[str, Any]]] = field(default_factory=list)
    branch: int = 0
    follows_branches: bool = False
    program_runs: bool = False

    @property
    def episode(self) -> Episode:
        """The record of the episode so far."""
        prompt, turns, others = tuple(self.prompt), tuple(self.turns), tuple(self.other_prompts)
        unreceived = frozenset(self.unreceived)
        return Episode(self.row, prompt, turns, self.stop_reason, others, unreceived)

    @property
    def broken(self) -> StopReason | None:
        """How the episode ends because something that it runs on broke; None: nothing did."""
        if self.failure is not None:
            return StopReason.error
        return StopReason.environment if self.broke_box else None

    @property
    def time_left_s(self) -> float | None:
        """Seconds until its time is up; None: it has no limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def holding(self, turn: Turn, *, answered: bool, cut: bool, max_turns: int) -> set[StopReason]:
        """The reasons to end the episode after this turn, other than token limits.

        Args:
            turn: The turn just taken, not yet in `turns`.
            answered: Whether it has no calls, and the environment says nothing to it.
            cut: Whether the action reached its maximum length, and so lacks a stop id.
            max_turns: How many turns the episode may have.
        """
        readable = any(call.error is None for call in turn.tool_calls)
        holds = {
            StopReason.error: self.failure is not None,
            StopReason.stop_tool: any(map(self._stops, turn.calls)),
            StopReason.answered: answered,
            StopReason.environment: self.ended,
            StopReason.max_tokens: cut and not readable,
            StopReason.max_turns: self.cut_off or len(self.turns) + 1 >= max_turns,
            StopReason.timeout: self.deadline is not None and time.monotonic() >= self.deadline,
        }
        return {reason for reason, holding in holds.items() if holding}

    @contextmanager
    def settling(self, boxes: EpisodeBoxes) -> Iterator[None]:
        """Run tools or hooks inside; note whether the policy or the infrastructure broke something.

        Args:
            boxes: The episode's, which may have broken without an exception.

        Raises:
            Exception: Whatever was raised, if it is the user's mistake.
        """
        raised: Exception | None = None
        try:
            yield
        except Exception as error:
            raised = error
        broke = boxes.broke
        if isinstance(broke, SandboxBroken) or isinstance(raised, SandboxBroken):
            self.broke_box = self.ended = True
        elif broke is not None:
            self.failure = broke
        elif isinstance(raised, InfrastructureError):
            self.failure = raised
        elif raised is not None:
            raise raised

    def counts(self, *, abandoned: int, boxed: bool) -> dict[str, float]:
        """The metrics of a finished episode, without those of the subclass.

        Args:
            abandoned: How many threads it gave up.
            boxed: Whether it had a box.
        """
        counts = {**episode_metrics(self.episode), "tools/abandoned_threads": float(abandoned)}
        if boxed:
            counts |= {BROKEN: float(self.broke_box), "sandbox/unusable": float(self.unusable)}
        return counts

    def _stops(self, record: Any) -> bool:
        """Whether a call ends the episode: one of a stop tool, if it succeeded."""
        return record.error is None and self.tools[record.call.name].options.stop
