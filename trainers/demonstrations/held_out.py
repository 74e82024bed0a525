"""Which demonstrations are of evaluation rows, which are never learned from.

A saved episode has its row. A conversation has none: it is of a row if the assistant answers the
row's `prompt` in it. A prompt that several of the evaluation rows share tells nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gymnast.envs.environment.rows import own_messages, prompt_of, without_name
from gymnast.envs.records.messages import text_of
from gymnast.errors import DataError
from gymnast.trainers.data.rows import Row, canonical
from gymnast.trainers.records.json_text import from_json, to_json
from gymnast.types import Trajectory
from gymnast.visible import visible_logger

Asked = tuple[tuple[Any, str], ...]

logger = visible_logger(__name__)


def without_held_out(
    trajectories: Sequence[Trajectory], rows: Iterable[Row], source: str
) -> list[Trajectory]:
    """The demonstrations of a list that are of no evaluation row; tells how many are.

    Args:
        trajectories: The list.
        rows: Evaluation rows.
        source: Where the list is from, for messages.

    Raises:
        DataError: There are demonstrations, and all are of evaluation rows.
    """
    held_out = HeldOut(rows)
    kept = [trajectory for trajectory in trajectories if not held_out.is_played_in(trajectory)]
    if trajectories and not kept:
        raise DataError(
            f"{source}: has no demonstration to learn from: its {len(trajectories)} are all of "
            "evaluation rows; name others, or evaluate on other rows"
        )
    if len(kept) < len(trajectories):
        logger.warning(
            "%s: %d of %d demonstrations are of evaluation rows, and left out",
            *(source, len(trajectories) - len(kept), len(trajectories)),
        )
    return kept


class HeldOut:
    """Evaluation rows.

    Args:
        rows: All of them, those of further environments too.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        different = {_as_written(row): row for row in rows}
        self._rows = different.keys()
        prompts = Counter(asked for row in different.values() if (asked := _prompt(row)))
        self._prompts = {asked for asked, count in prompts.items() if count == 1}
        self._lengths = {len(asked) for asked in self._prompts}

    def is_played_in(self, trajectory: Trajectory) -> bool:
        """Whether an episode is of one of them."""
        if trajectory.row:
            return self.has(trajectory.row)
        return self.asks(trajectory.messages)

    def has(self, row: Row) -> bool:
        """Whether a row, as it was or as a file has it, is one of them."""
        return _as_written(row) in self._rows

    def without(self, rows: Iterable[Row]) -> list[Row]:
        """The different ones of some rows that are none of these, and have no prompt of these.

        A prompt that several different rows share tells nothing here either.
        """
        different = {_as_written(row): row for row in rows}
        asked = {text: _prompt(row) for text, row in different.items()}
        counts = Counter(asked.values())
        return [
            row
            for text, row in different.items()
            if text not in self._rows
            and not (asked[text] in self._prompts and counts[asked[text]] == 1)
        ]

    def asks(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the assistant answers one of them in a conversation."""
        said = _said(messages)
        return any(
            said[end - length : end] in self._prompts
            for end, message in enumerate(messages)
            if message.get("role") == "assistant"
            for length in self._lengths
            if length <= end
        )


def _as_written(row: Row) -> str:
    """A row as text: what JSON has no form for is what a file of rollouts has in its place.

    Demonstrations of an environment may be of rows that a mixture has too.
    """
    return canonical(from_json(to_json(without_name(row))))


def _prompt(row: Row) -> Asked:
    """The messages of a row's prompt, without the system's; () where `setup` makes them."""
    try:
        messages = prompt_of(row)
    except DataError:
        return ()
    return _said(messages[len(messages) - own_messages(messages) :])


def _said(messages: Sequence[Mapping[str, Any]]) -> Asked:
    return tuple((message.get("role"), text_of(message)) for message in messages)
