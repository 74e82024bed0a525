"""One file of saved episodes, of which only what is asked for is read.

Its *light* columns, which are the place, outcome, row and metrics of every episode, are read once
and kept. Messages are read for a search, and not kept. Tokens are read with the one episode that is
loaded.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from gymnast.trainers.inspecting.conversations import CONVERSATION, as_conversation
from gymnast.trainers.inspecting.file_parts import (
    count_episodes,
    read_columns,
    read_episodes,
    read_some,
)
from gymnast.trainers.inspecting.texts import COLUMNS, texts_of
from gymnast.trainers.records.columns import as_record
from gymnast.trainers.saving.rollout_files import SavedTrajectory
from gymnast.trainers.saving.saved_runs import RolloutFile, read_file
from gymnast.types import Trajectory

# Read together: all that a list of episodes shows takes one look at the file.
OUTCOMES = (
    *("group", "member", "reward", "no_reward", "stop_reason", "terminated", "truncated", "seed"),
    *("prompt_length", "turn_rewards", "order"),
)

_FURTHER = re.compile(r"eval_\d+(?:_warmup(?=_))?_(?!warmup$)(.+)")


class EpisodeFile:
    """A file of saved episodes.

    Args:
        file: Which one.

    Attributes:
        file: The same.
        name: "step_00001", "eval_00000", ...
        further: The further environment that its evaluation was in; "" for the run's own.
    """

    def __init__(self, file: RolloutFile) -> None:
        self.file = file
        self.name = file.path.stem
        further = _FURTHER.fullmatch(self.name) if file.is_evaluation else None
        self.further = further[1] if further else ""
        self._columns: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _count(self) -> int:
        return count_episodes(self.file.path)

    def column(self, name: str) -> list[Any]:
        """A light column: one value an episode.

        Raises:
            DataError: The file cannot be read.
        """
        if name not in self._columns:
            together = OUTCOMES if name in OUTCOMES else (name,)
            self._columns |= self._read(together)
        return self._columns[name]

    def texts(self, numbers: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
        """The messages of some episodes as JSON text, one text a context.

        Of those without messages, what their tokens are decoded to is a message.

        Args:
            numbers: Of the episodes, counted from 0, in rising order.

        Raises:
            DataError: The file cannot be read.
        """
        for number, record in read_some(self.file.path, COLUMNS, numbers):
            yield number, texts_of(record)

    def conversations(self, numbers: Sequence[int]) -> Iterator[tuple[int, Trajectory]]:
        """Some episodes without their tokens, as if they had been played in messages.

        Args:
            numbers: Of the episodes, counted from 0, in rising order.

        Raises:
            DataError: The file cannot be read.
        """
        for number, record in read_some(self.file.path, CONVERSATION, numbers):
            yield number, as_conversation(record)

    def load(self, number: int) -> SavedTrajectory:
        """One episode, whole.

        Args:
            number: Its row in the file, counted from 0.

        Raises:
            DataError: The file cannot be read.
        """
        return next(self.load_some([number]))[1]

    def load_some(self, numbers: Sequence[int]) -> Iterator[tuple[int, SavedTrajectory]]:
        """Some episodes, whole, one after another.

        Args:
            numbers: Of the episodes, counted from 0, in rising order.

        Raises:
            DataError: The file cannot be read.
        """
        return read_episodes(self.file.path, numbers)

    def _read(self, names: Sequence[str]) -> dict[str, list[Any]]:
        return read_columns(self.file.path, names)


class JsonLinesFile(EpisodeFile):
    """A file that an earlier version wrote, which can only be read whole; it is kept."""

    @cached_property
    def _saved(self) -> list[SavedTrajectory]:
        return read_file(self.file.path)

    @cached_property
    def _count(self) -> int:
        return len(self._saved)

    def texts(self, numbers: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
        """As of any file."""
        for number in numbers:
            yield number, texts_of(as_record(self._saved[number].trajectory))

    def conversations(self, numbers: Sequence[int]) -> Iterator[tuple[int, Trajectory]]:
        """As of any file."""
        for number in numbers:
            yield number, as_conversation(as_record(self._saved[number].trajectory))

    def load_some(self, numbers: Sequence[int]) -> Iterator[tuple[int, SavedTrajectory]]:
        """As of any file."""
        return ((number, self._saved[number]) for number in numbers)

    def _read(self, names: Sequence[str]) -> dict[str, list[Any]]:
        records = [
            as_record(saved.trajectory) | {"group": saved.group, "member": saved.member}
            for saved in self._saved
        ]
        return {name: [record.get(name) for record in records] for name in names}


def episode_file(file: RolloutFile) -> EpisodeFile:
    """A file of either format."""
    return (JsonLinesFile if file.path.suffix == ".jsonl" else EpisodeFile)(file)
