"""Saved episodes for the tests of what looks at them: made, not sampled, so that all is known."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymnast.types import Message, Span, StopReason, Trajectory

ASKED: Message = {"role": "user", "content": "What is 2 plus 3?"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]


def call(name: str, arguments: Any, *, number: int = 0, error: str | None = None) -> Message:
    """An assistant message with one call."""
    function = {"name": name, "arguments": arguments}
    written = {"id": f"call_{number}", "type": "function", "function": function}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [written if error is None else {**written, "error": error}],
    }


def answered(content: str, *, number: int = 0, name: str = "add") -> Message:
    """What a tool answers."""
    return {"role": "tool", "tool_call_id": f"call_{number}", "name": name, "content": content}


def said(content: str) -> Message:
    """An assistant message without calls."""
    return {"role": "assistant", "content": content}


def episode(
    *messages: Message,
    reward: float = 0.0,
    stop_reason: StopReason = StopReason.answered,
    metrics: Mapping[str, float] | None = None,
    row: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = TOOLS,
    **given: Any,
) -> Trajectory:
    """An episode that was played in messages; its turns are the assistant messages."""
    turns = sum(message["role"] == "assistant" for message in messages)
    return Trajectory(
        ids=[],
        action_mask=[],
        logprobs=[],
        prompt_length=0,
        turns=[Span(0, 0)] * turns,
        turn_rewards=[0.0] * (turns - 1) + [reward] if turns else [],
        stop_reason=stop_reason,
        terminated=stop_reason.terminated,
        truncated=not stop_reason.terminated,
        messages=[ASKED, *messages],
        tools=tools,
        metrics=metrics or {},
        row=row or {},
        **given,
    )
