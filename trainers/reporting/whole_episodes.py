"""Whole episodes as people read them: every message, wrapped, with nothing that steers a terminal.

`shown_episodes.py` shows a few of them in short.
"""

import threading

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from gymnast.trainers.base.observer import Groups
from gymnast.trainers.reporting.message_lines import message_lines
from gymnast.types import Trajectory
from gymnast.visible import visible

_STYLES = {"system": "blue", "user": "blue", "assistant": "green", "tool": "magenta"}


class Samples:
    """The episodes that can be shown, the newest first; on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[tuple[str, Trajectory]] = []
        self._shown = 0

    def replace(self, place: str, groups: Groups) -> None:
        """Show those of a step or an evaluation from now on.

        Args:
            place: Which one it is, as its file is named.
            groups: Its episodes; those without messages cannot be shown.
        """
        found = [
            (f"{place}/{row}/{member}", episode)
            for row, group in enumerate(groups)
            for member, episode in enumerate(group)
            if episode.messages
        ]
        with self._lock:
            self._found, self._shown = found[::-1], 0

    def take(self) -> RenderableType | None:
        """The newest episode; asked again, the one before it, and so on; None if there is none."""
        with self._lock:
            if not self._found:
                return None
            place, episode = self._found[self._shown % len(self._found)]
            self._shown += 1
        return whole_episode(episode, place)


def whole_episode(episode: Trajectory, place: str) -> RenderableType:
    """Every message of an episode, between two rules.

    Args:
        episode: Which one.
        place: Where it comes from; the title says it.
    """
    turns = len(episode.order) or len(episode.turns)
    facts = [f"reward {episode.reward:g}", str(episode.stop_reason)]
    facts += [f"{turns} turn{'' if turns == 1 else 's'}", f"sampled tokens {episode.action_tokens}"]
    title = Text(visible(f"{place}: {', '.join(facts)}"), style="bold")
    shown: list[RenderableType] = [Rule(), title]
    for number, context in enumerate(episode.contexts):
        if episode.branches:
            shown.append(Text(f"context {number}", style="bold"))
        for message in context.messages:
            who, *said = message_lines(message)
            shown.append(Text(visible(who), style=_STYLES.get(message["role"], "bold")))
            shown += [Text(visible(line), overflow="fold") for line in said]
    return Group(*shown, Rule())
