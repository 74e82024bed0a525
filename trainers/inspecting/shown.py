"""A saved episode for people, as text, and for programs, as a record of JSON.

The text is as the policy wrote it: whoever prints it makes it `visible` first. `tokens.py` shows
tokens.
"""

from collections.abc import Iterator
from typing import Any

from gymnast.trainers.inspecting.index import Entry
from gymnast.trainers.inspecting.tokens import token_lines, token_records
from gymnast.trainers.reporting.message_lines import message_lines
from gymnast.trainers.reporting.shown_episodes import first_action
from gymnast.trainers.saving.rollout_files import SavedTrajectory
from gymnast.types import Branch, Trajectory

END_OF_PROMPT = "--- the prompt, with its worked turns, ends here ---"


def headline(entry: Entry) -> str:
    """One line about an episode: its id, reward and parts of it, end and turns."""
    reward = "no reward" if entry.reward is None else f"reward {entry.reward:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in entry.reward_parts.items())
    turns = f"{entry.turns} turn{'' if entry.turns == 1 else 's'}"
    said = [entry.id, reward + (f" ({parts})" if parts else ""), entry.stop_reason, turns]
    return "  ".join([*said, *filter(None, [entry.environment])])


def episode_text(entry: Entry, *, tokens: bool = False) -> str:
    """An episode as text: its headline, and the conversation or the tokens of each context.

    Args:
        entry: Which one; it is loaded.
        tokens: Whether its tokens are shown in place of its messages.
    """
    saved = entry.load()
    lines = [headline(entry)]
    contexts = saved.trajectory.contexts
    for number, context in enumerate(contexts):
        lines += [f"context {number}"] if len(contexts) > 1 else []
        if tokens or not context.messages:
            lines += token_lines(saved, number)
        else:
            lines += _conversation(context)
    return "\n".join(lines)


def _conversation(context: Trajectory | Branch) -> Iterator[str]:
    """The messages; where a prompt has worked turns, a line says where it ends."""
    start = first_action(context)
    for number, message in enumerate(context.messages):
        if number == start and any(
            each["role"] == "assistant" for each in context.messages[:start]
        ):
            yield END_OF_PROMPT
        yield from message_lines(message)


def episode_record(entry: Entry, *, tokens: bool = False) -> dict[str, Any]:
    """An episode as a record that JSON can express, but for numbers that are not finite.

    Args:
        entry: Which one; it is loaded.
        tokens: Whether its tokens are in it: ids, kinds, log-probabilities, advantages, text.
    """
    saved = entry.load()
    trajectory = saved.trajectory
    record: dict[str, Any] = {
        "id": entry.id,
        "step": entry.step,
        "evaluation": entry.is_evaluation,
        "group": saved.group,
        "member": saved.member,
        "environment": entry.environment,
        "reward": entry.reward,
        "reward_parts": dict(trajectory.reward_parts),
        "turns": entry.turns,
        "turn_rewards": trajectory.all_turn_rewards,
        "stop_reason": str(trajectory.stop_reason),
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "seed": trajectory.seed,
        "row": dict(trajectory.row),
        "metrics": dict(trajectory.metrics),
        **_context_record(saved, 0, tokens),
    }
    if trajectory.branches:
        others = range(1, 1 + len(trajectory.branches))
        record["branches"] = [_context_record(saved, number, tokens) for number in others]
        record["order"] = list(trajectory.order)
    return record


def _context_record(saved: SavedTrajectory, number: int, tokens: bool) -> dict[str, Any]:
    context = saved.trajectory.contexts[number]
    shown: dict[str, Any] = {
        "messages": context.messages,
        "prompt_messages": first_action(context),  # how many of them are the prompt
        "tools": list(context.tools),
    }
    return shown | ({"tokens": token_records(saved, number)} if tokens else {})
