"""Where a replayed episode first differs from the saved one: pure functions of two trajectories.

The actions are the same in both, so what differs is what the environment said, paid or ended.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gymnast.trainers.reporting.message_lines import message_lines
from gymnast.trainers.reporting.shown_episodes import first_action
from gymnast.types import Branch, Trajectory

What = Literal["prompt", "observation", "reward", "end"]
Context = Trajectory | Branch

_SAME = 1e-6
_MOST_LINES = 24
# After one turn, the first of these is named: an end explains a missing answer, and what is paid.
_KINDS: tuple[What, ...] = ("prompt", "end", "observation", "reward")


@dataclass(frozen=True)
class Difference:
    """The first thing that differs.

    Attributes:
        what: The prompt of a context, what the environment answered, the reward of a turn, or when
            and why the episode ended.
        turn: After which turn, in order of time, the first being 1; 0: before any.
        saved: What was saved, as text.
        found: What was found, as text.
    """

    what: What
    turn: int
    saved: str
    found: str

    def lines(self) -> list[str]:
        """What differs, and a short diff."""
        where = f"after turn {self.turn}" if self.turn else "before the first turn"
        diff = difflib.unified_diff(
            self.saved.splitlines(), self.found.splitlines(), "saved", "found", lineterm="", n=2
        )
        shown = list(diff)
        left = len(shown) - _MOST_LINES
        return [
            f"the {self.what} differs {where}",
            *shown[:_MOST_LINES],
            *([f"... {left} more lines"] if left > 0 else []),
        ]


def first_difference(
    saved: Trajectory, found: Trajectory, decode: Callable[[Sequence[int]], str] | None
) -> Difference | None:
    """What differs first, in order of time; None where nothing does.

    Args:
        saved: The episode as it was saved.
        found: The same actions, played again.
        decode: Tokens to text; None: messages are compared.
    """
    differences = [
        *_contexts(saved, found, decode),
        *_rewards(saved, found),
        *_ends(saved, found),
    ]
    return min(differences, key=lambda each: (each.turn, _KINDS.index(each.what)), default=None)


def _contexts(
    saved: Trajectory, found: Trajectory, decode: Callable[[Sequence[int]], str] | None
) -> Iterator[Difference]:
    order = saved.order or [0] * len(saved.turns)
    for number, context in enumerate(saved.contexts):
        times = [time for time, other in enumerate(order, start=1) if other == number]
        begins = min(times, default=1) - 1  # the turn before its prompt
        if number >= len(found.contexts):
            yield Difference("prompt", begins, f"context {number}", "")
            continue
        other = found.contexts[number]
        where = _of_tokens if decode is not None else _of_messages
        place = where(context, other)
        if place is not None:
            turn = times[place - 1] if place else begins
            texts = (_stretch(each, place, decode) for each in (context, other))
            yield Difference("observation" if place else "prompt", turn, *texts)


def _of_tokens(saved: Context, found: Context) -> int | None:
    """After how many turns of a context its tokens differ; None: nowhere.

    The last answer of an episode that a limit ended is left out where one of them lacks it.
    """
    places = range(min(len(saved.ids), len(found.ids)))
    first = next((n for n in places if saved.ids[n] != found.ids[n]), None)
    if first is None and len(saved.ids) == len(found.ids):
        return None
    first = len(places) if first is None else first
    return sum(turn.start <= first for turn in saved.turns if turn.end <= first)


def _of_messages(saved: Context, found: Context) -> int | None:
    said, heard = saved.messages, found.messages
    places = range(min(len(said), len(heard)))
    first = next((n for n in places if said[n] != heard[n]), None)
    if first is None and len(said) == len(heard):
        return None
    first = len(places) if first is None else first
    start = first_action(saved)
    return sum(message["role"] == "assistant" for message in said[start:first])


def _stretch(context: Context, turns: int, decode: Callable[[Sequence[int]], str] | None) -> str:
    """What was said after so many turns of a context, before the next one; 0: its prompt."""
    if decode is None:
        start = first_action(context)
        spoken = [n for n, m in enumerate(context.messages) if m["role"] == "assistant"]
        own = [n for n in spoken if n >= start]
        begin = own[turns - 1] + 1 if turns and turns <= len(own) else 0
        end = own[turns] if turns < len(own) else len(context.messages)
        some = context.messages[begin:end]
        return "\n".join(line for message in some for line in message_lines(message))
    begin = context.turns[turns - 1].end if turns and turns <= len(context.turns) else 0
    end = context.turns[turns].start if turns < len(context.turns) else len(context.ids)
    ids = context.ids[begin:end]
    return f"{decode(ids)}\n(tokens: {' '.join(map(str, ids))})"


def _rewards(saved: Trajectory, found: Trajectory) -> Iterator[Difference]:
    pairs = zip(saved.all_turn_rewards, found.all_turn_rewards, strict=False)
    for turn, (old, new) in enumerate(pairs, start=1):
        if not abs(old - new) <= _SAME * max(1.0, abs(old)):
            yield Difference("reward", turn, *_shown_rewards(saved, old, found, new))


def _shown_rewards(saved: Trajectory, old: float, found: Trajectory, new: float) -> list[str]:
    def shown(trajectory: Trajectory, reward: float) -> str:
        parts = [f"{name} {value:g}" for name, value in trajectory.reward_parts.items()]
        return "\n".join([f"reward {reward:g}", *parts])

    return [shown(saved, old), shown(found, new)]


def _ends(saved: Trajectory, found: Trajectory) -> Iterator[Difference]:
    old, new = (_end(each) for each in (saved, found))
    if old != new:
        yield Difference("end", min(saved.steps, found.steps), old, new)


def _end(trajectory: Trajectory) -> str:
    ended = f"{trajectory.stop_reason} after turn {trajectory.steps}"
    return f"{ended}, without a reward" if trajectory.no_reward else ended


def goes_on(saved: Trajectory, seen: Sequence[Any]) -> Difference:
    """The difference where an episode asks for a turn more than was saved.

    Args:
        saved: The episode as it was saved.
        seen: What the replayed one asked for, turn by turn.
    """
    return Difference("end", saved.steps, _end(saved), f"goes on with turn {len(seen)}")
