"""A few episodes of a step as people read them: what was asked, what was done, and the reward."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnast.types import Branch, Trajectory


@dataclass(frozen=True)
class ShownEpisode:
    """One episode in words.

    Attributes:
        prompt: The last message before the policy's first turn.
        events: The policy's text, its calls and their results, in order; those of further contexts
            after those of the first, each behind what it begins with.
        reward: The episode's reward.
        stop_reason: Why the episode ended.
    """

    prompt: str
    events: list[str]
    reward: float
    stop_reason: str


def pick_episodes(groups: Sequence[Sequence[Trajectory]], count: int = 3) -> list[ShownEpisode]:
    """The worst episode by reward, the best, and some between them; at most one per group.

    Args:
        groups: The trajectories of each row; those without messages cannot be shown.
        count: At most how many.
    """
    first = [next((t for t in group if t.messages), None) for group in groups]
    shown = sorted((t for t in first if t is not None), key=lambda trajectory: trajectory.reward)
    if len(shown) > count:
        spread = [round(i * (len(shown) - 1) / max(1, count - 1)) for i in range(count)]
        shown = [shown[index] for index in spread]
    return [as_shown(trajectory) for trajectory in shown]


def as_shown(trajectory: Trajectory) -> ShownEpisode:
    """One episode in words."""
    prompt, events = _shown_context(trajectory)
    for number, branch in enumerate(trajectory.branches, start=1):
        begins, others = _shown_context(branch)
        events += [f"[context {number}] {begins}", *others]
    return ShownEpisode(
        prompt=prompt,
        events=events,
        reward=trajectory.reward,
        stop_reason=str(trajectory.stop_reason),
    )


def _shown_context(context: Trajectory | Branch) -> tuple[str, list[str]]:
    """What a context begins with, and what was done in it."""
    start = first_action(context)
    before = context.messages[:start]
    prompt = _text(before[-1].get("content")) if before else ""
    return prompt, [event for m in context.messages[start:] for event in _events(m)]


def first_action(context: Trajectory | Branch) -> int:
    """The index of the policy's first message; the prompt may hold worked turns before it."""
    spoken = [i for i, m in enumerate(context.messages) if m["role"] == "assistant"]
    turns = len(context.turns)
    return spoken[-turns] if 0 < turns <= len(spoken) else len(context.messages)


def _events(message: Mapping[str, Any]) -> list[str]:
    content = _text(message.get("content")).strip()
    if message["role"] != "assistant":
        return [f"-> {content}"]
    if message.get("raw"):  # a call that could not be parsed is shown as it was written
        return [str(message["raw"]).strip()]
    calls = [shown_call(call) for call in message.get("tool_calls") or []]
    return [*([content] if content else []), *calls] or ["(nothing)"]


def shown_call(call: Any) -> str:
    """A call in OpenAI's shape as one writes it in Python: name(argument=value)."""
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
