"""What `gymnast demos` prints of the episodes that were played: which are not kept, and why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from gymnast.commands.output import say
from gymnast.visible import visible_line

if TYPE_CHECKING:
    from gymnast.trainers.conversations.many import Demonstration

PROMPT = 60  # characters of a row's prompt
REASON = 300  # characters of what went wrong


def report(played: "Sequence[Demonstration]", min_reward: float) -> None:
    """Print a line for each row that is not kept, and a summary."""
    from gymnast.numbers import mean
    from gymnast.trainers.conversations.many import tools_called

    for index, each in enumerate(played):
        if not each.kept(min_reward):
            say(f"row {index} ({_prompt(each.row)}): {_why(each, min_reward)}", err=True)
    ended = [each.trajectory for each in played if each.trajectory is not None]
    called = sum((tools_called(trajectory) for trajectory in ended), Counter[str]())
    rows = "row" if len(played) == 1 else "rows"
    summary = [f"played {len(played)} {rows}: {len(ended)} to their end"]
    if ended:
        turns = [trajectory.steps for trajectory in ended]
        rewards = [trajectory.reward for trajectory in ended if not trajectory.no_reward]
        if rewards:
            summary.append(f"mean reward {mean(rewards):.3g}")
        summary.append(f"{sum(turns) / len(turns):.3g} turns (at most {max(turns)})")
        tools = ", ".join(f"{name} {count}" for name, count in sorted(called.items()))
        summary.append(f"calls: {tools or 'none'}")
    say("; ".join(summary))


def left_out(played: "Sequence[Demonstration]", min_reward: float) -> str:
    """How many rows are not kept, by the kind of reason; "" where all are."""
    kinds = Counter(_kind(each, min_reward) for each in played if not each.kept(min_reward))
    if not kinds:
        return ""
    parts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return f"; left out: {parts}"


def fail_if_none(kept: int, played: int, ended: int, min_reward: float, out: str) -> None:
    """End the command where there is nothing to write.

    Args:
        kept: How many episodes are.
        played: How many there are.
        ended: How many of these came to their end.
        min_reward: What was asked for.
        out: The file that is not written.
    """
    if kept:
        return
    why = f"none of {ended} episodes has a reward of at least {min_reward:g}"
    way_out = "; --min-reward lowers what is asked"
    if not ended:
        why, way_out = f"none of {played} rows was played to its end", ""
    say(f"failed: {why}, so {out} is not written{way_out}", err=True)
    raise typer.Exit(1)


def _why(each: "Demonstration", min_reward: float) -> str:
    """Why an episode is not kept."""
    ended = each.trajectory
    if ended is None:
        return _shortened(each.problem, REASON)
    earned = "no reward" if ended.no_reward else f"reward {ended.reward:g}"
    turns = f"{ended.steps} turn{'' if ended.steps == 1 else 's'}"
    return f"{earned}, not {min_reward:g} ({ended.stop_reason} after {turns})"


def _kind(each: "Demonstration", min_reward: float) -> str:
    if each.trajectory is None:
        return "failed"
    return "without a reward" if each.trajectory.no_reward else f"with less than {min_reward:g}"


def _prompt(row: Mapping[str, Any]) -> str:
    """The last text of a row's prompt, or the row, where `setup` makes the messages."""
    prompt = row.get("prompt")
    if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt:
        last = prompt[-1]
        prompt = last.get("content") if isinstance(last, Mapping) else None
    return _shortened(prompt if isinstance(prompt, str) else repr(dict(row)), PROMPT)


def _shortened(text: str, most: int) -> str:
    line = visible_line(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 3]}..."
