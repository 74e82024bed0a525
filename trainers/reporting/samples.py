"""A few episodes of a step in a form that people read: what was asked, done, and scored."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnast.types import Trajectory


@dataclass(frozen=True)
class Sample:
    """One episode in words.

    Attributes:
        prompt: The last message before the policy's first turn.
        events: What the policy wrote, its calls and their results, in order.
        reward: Of the episode.
        stop_reason: Why it ended.
    """

    prompt: str
    events: list[str]
    reward: float
    stop_reason: str


def pick_samples(groups: Sequence[Sequence[Trajectory]], count: int = 3) -> list[Sample]:
    """The worst, the best and episodes between them, by reward; at most one a group.

    Args:
        groups: The trajectories of each row. Those without messages cannot be shown.
        count: How many at most.
    """
    first = [next((t for t in group if t.messages), None) for group in groups]
    shown = sorted((t for t in first if t is not None), key=lambda trajectory: trajectory.reward)
    if len(shown) > count:
        places = [round(i * (len(shown) - 1) / max(1, count - 1)) for i in range(count)]
        shown = [shown[place] for place in places]
    return [as_sample(trajectory) for trajectory in shown]


def as_sample(trajectory: Trajectory) -> Sample:
    """One episode in words."""
    start = _first_action(trajectory)
    before = trajectory.messages[:start]
    return Sample(
        prompt=_text(before[-1].get("content")) if before else "",
        events=[event for m in trajectory.messages[start:] for event in _events(m)],
        reward=trajectory.reward,
        stop_reason=str(trajectory.stop_reason),
    )


def _first_action(trajectory: Trajectory) -> int:
    """The index of the policy's first message; the prompt may hold worked turns before it."""
    spoken = [i for i, m in enumerate(trajectory.messages) if m["role"] == "assistant"]
    turns = len(trajectory.turns)
    return spoken[-turns] if 0 < turns <= len(spoken) else len(trajectory.messages)


def _events(message: Mapping[str, Any]) -> list[str]:
    content = _text(message.get("content")).strip()
    if message["role"] != "assistant":
        return [f"-> {content}"]
    if message.get("raw"):  # a call that could not be read is shown as it was written
        return [str(message["raw"]).strip()]
    calls = [_call(call) for call in message.get("tool_calls") or []]
    return [*([content] if content else []), *calls] or ["(nothing)"]


def _call(call: Any) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, Mapping):
        inner = ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())
    else:
        inner = str(arguments)
    return f"{function.get('name')}({inner})"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "" if content is None else json.dumps(content, ensure_ascii=False, default=str)
