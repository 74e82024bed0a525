"""One episode's program, between what it asks and what the environment answers.

The line of the endpoint brings its requests, `conversations.py` says where they belong, and what is
told is remembered, with whether anybody has read it.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gymnast.envs.programs.conversations import Conversations, Placement, Reasoning
from gymnast.envs.programs.dialects.requests import Answer, Finish, Refused, Request
from gymnast.envs.programs.dialects.telling import Told, told, written_arguments
from gymnast.envs.programs.running import Running
from gymnast.envs.programs.serving.lines import Line, Pending
from gymnast.envs.records.episode import Turn
from gymnast.envs.records.next_request import NextRequest
from gymnast.types import Message


class Answering:
    """Answers the requests of one program, in the order of arrival.

    Args:
        line: What the program says to the endpoint.
        program: The program.
        reasoning: As for `Conversations`.
    """

    def __init__(self, line: Line, program: Running, reasoning: Reasoning) -> None:
        self.line, self.program = line, program
        self.conversations = Conversations(reasoning)
        self._counts: Counter[str] = Counter()
        self._pending: tuple[Pending, Placement] | None = None
        self._told: dict[int, Pending] = {}  # by the index of the turn
        self._turns = 0

    def answer(self, turn: Turn, tokens: tuple[int, int], *, cut: bool) -> None:
        """Answer the pending request.

        Args:
            turn: What the policy said.
            tokens: How many stood before it, and how many it has.
            cut: Whether it was cut by its length.
        """
        assert self._pending is not None
        pending, placement = self._pending
        self._pending = None
        branch = self.conversations.accept(pending.request, placement)
        self._counts["branches"] += placement.branch is None
        for rule, count in placement.changed.items():
            self._counts[f"changed/{rule}"] += count
        for name in pending.request.unused:
            self._counts[f"unused/{name}"] += 1
        answer = _answer(turn, tokens, cut=cut)
        # Before it is sent: the program's next request may be here at once.
        self.conversations.say(branch, _as_told(told(answer, pending.request.stop)))
        self._told[turn.index] = pending
        self._turns = turn.index + 1
        pending.answer(answer)

    async def next(self) -> NextRequest | None:
        """Wait for the next request, or for the end of the program; None: it has ended."""
        self._pending = None  # one that was refused
        arriving = asyncio.ensure_future(self.line.next())
        ending = asyncio.wrap_future(self.program.ended)
        try:
            await asyncio.wait((arriving, ending), return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return None
            pending = await arriving
        finally:
            for each in (arriving, ending):
                each.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(arriving, return_exceptions=True)
        if pending is None:
            return None
        return self._placed(pending)

    def unreceived(self, turns: int) -> list[int]:
        """The turns of an episode, counted from 0, whose message nobody has read."""
        told = self._told
        return [index for index in range(turns) if index not in told or not told[index].received]

    def metrics(self, turns: int) -> dict[str, float]:
        """What happened, by the names of metrics.

        Args:
            turns: How many turns the episode has.
        """
        unreceived = len(self.unreceived(turns))
        counts = {
            "program/requests": 0,
            "program/repeated": 0,
            **self.line.counts,
            "program/received": turns - unreceived,
            "program/unreceived": unreceived,
            **{f"program/{name}": count for name, count in self._counts.items()},
        }
        return {name: float(count) for name, count in counts.items()}

    def _placed(self, pending: Pending) -> NextRequest:
        request: Request = pending.request
        placement = self.conversations.place(request)
        self._pending = pending, placement

        def refuse(reason: str) -> None:
            self.line.count("refused")
            pending.refuse(Refused(reason, kind="context_length_exceeded"))

        return NextRequest(
            placement.branch,
            placement.messages,
            request.tools,
            plain=request.plain,
            max_tokens=request.max_tokens,
            refuse=refuse,
        )


def _answer(turn: Turn, tokens: tuple[int, int], *, cut: bool) -> Answer:
    message: Message = {**turn.message, "tool_calls": turn.tool_calls}
    readable = any(call.error is None for call in turn.tool_calls)
    finish: Finish = "length" if cut else "tool_calls" if readable else "stop"
    return Answer(message, finish, *tokens)


def _as_told(seen: Told) -> Message:
    """The assistant's message as a program that changes nothing sends it back."""
    message: Message = {"role": "assistant", "content": seen.content}
    if seen.reasoning:
        message["reasoning_content"] = seen.reasoning
    if seen.calls:
        message["tool_calls"] = [
            _call(call.id, call.name, written_arguments(call)) for call in seen.calls
        ]
    return message


def _call(call_id: str, name: str, arguments: str) -> Mapping[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
