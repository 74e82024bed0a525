"""All saved episodes of a run as an index, in which they are found and from which one is loaded.

    index = Index("runs/tiny")
    for entry in index.find(Filter(min_reward=0.5)):
        print(entry.id, entry.reward, entry.stop_reason)
    saved = index.entry("step_00001/0/3").load()

An entry knows what the light columns of its file say (`files.py`); messages and tokens are read
when it is loaded. `filters.py` says which entries a filter takes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from gymnast.errors import DataError
from gymnast.trainers.inspecting.files import EpisodeFile, episode_file
from gymnast.trainers.inspecting.filters import Filter
from gymnast.trainers.inspecting.texts import Search
from gymnast.trainers.records.json_text import from_json
from gymnast.trainers.saving.rollout_files import SavedTrajectory
from gymnast.trainers.saving.saved_runs import (
    FOLDER,
    RolloutFile,
    check_ended,
    rollout_files,
    runs_nearby,
    shown_steps,
)

_OF_A_MIXTURE = re.compile(r"environments/(.+)/episodes")


@dataclass(frozen=True)
class Entry:
    """A saved episode of which nothing but its light columns has been read.

    Attributes:
        file: That it is in.
        number: Its row in the file, counted from 0.
    """

    file: EpisodeFile
    number: int

    def _value(self, name: str) -> Any:
        return self.file.column(name)[self.number]

    @property
    def id(self) -> str:
        """What names it: "step_00007/3/1" is member 1 of group 3."""
        return f"{self.file.name}/{self.group}/{self.member}"

    @property
    def step(self) -> int:
        """The step that it was played for, or after which it was."""
        return self.file.file.step

    @property
    def is_evaluation(self) -> bool:
        """Whether it is of an evaluation."""
        return self.file.file.is_evaluation

    @property
    def group(self) -> int:
        """Which group of its file it is of."""
        return int(self._value("group"))

    @property
    def member(self) -> int:
        """Its place in the group."""
        return int(self._value("member"))

    @property
    def reward(self) -> float | None:
        """Its reward; None where the environment gave none."""
        return None if self._value("no_reward") else float(self._value("reward"))

    @property
    def stop_reason(self) -> str:
        """Why it ended."""
        return str(self._value("stop_reason"))

    @property
    def truncated(self) -> bool:
        """Whether a limit cut it off."""
        return bool(self._value("truncated"))

    @property
    def seed(self) -> int | None:
        """The environment's."""
        seed: int | None = self._value("seed")
        return seed

    @property
    def turns(self) -> int:
        """How many actions it has, in all contexts."""
        order = self._value("order")
        return len(self._value("turn_rewards") if order is None else order)

    @property
    def row(self) -> Mapping[str, Any]:
        """The dataset row."""
        row: Mapping[str, Any] = from_json(self._value("row"))
        return row

    @property
    def metrics(self) -> Mapping[str, float]:
        """What `Trajectory.metrics` has."""
        metrics: Mapping[str, float] = from_json(self._value("metrics"))
        return metrics

    @property
    def reward_parts(self) -> Mapping[str, float]:
        """What `Trajectory.reward_parts` has."""
        parts: Mapping[str, float] = from_json(self._value("reward_parts"))
        return parts

    @property
    def environment(self) -> str:
        """That of a mixture which played it, or the further one of its evaluation; "" otherwise."""
        counted = (_OF_A_MIXTURE.fullmatch(name) for name in self.metrics)
        return next((match[1] for match in counted if match), self.file.further)

    def load(self) -> SavedTrajectory:
        """The episode, whole.

        Raises:
            DataError: Its file cannot be read.
        """
        return self.file.load(self.number)


def load_all(entries: Iterable[Entry]) -> Iterator[tuple[Entry, SavedTrajectory]]:
    """Load episodes one after another, each part of a file once.

    Args:
        entries: In the order of their index.

    Raises:
        DataError: A file cannot be read.
    """
    for file, some in groupby(entries, key=lambda entry: entry.file):
        by_number = {entry.number: entry for entry in some}
        for number, saved in file.load_some(sorted(by_number)):
            yield by_number[number], saved


class Index:
    """The saved episodes of a run.

    Args:
        run: The folder of a run or of an evaluation on its own, or one file of episodes.

    Attributes:
        files: By step and name.

    Raises:
        DataError: There is no such run, or it has no saved episodes.
    """

    def __init__(self, run: str | Path) -> None:
        self.run = Path(run).expanduser()
        self._stamps: dict[Path, tuple[int, int]] = {}
        self.files: list[EpisodeFile] = []
        self.refresh()
        if not self.files:
            check_ended(run)
            raise DataError(
                f"{run}: has no saved episodes (in {FOLDER}/); a run writes them unless "
                f"rollouts.keep is none{runs_nearby(self.run)}"
            )

    def refresh(self) -> None:
        """Look for files that were added, written anew or removed since."""
        known = {each.file.path: each for each in self.files}
        stamps, self._stamps = self._stamps, {}
        self.files = []
        for file in _files_of(self.run):
            try:
                stat = file.path.stat()
            except FileNotFoundError:  # removed by a run that is resumed
                continue
            stamp = self._stamps[file.path] = (stat.st_mtime_ns, stat.st_size)
            kept = known.get(file.path) if stamps.get(file.path) == stamp else None
            self.files.append(kept or episode_file(file))

    def __len__(self) -> int:
        return sum(map(len, self.files))

    def entries(self) -> Iterator[Entry]:
        """All of them, in the order of `load_rollouts`: step by step, as they were written."""
        return (Entry(file, number) for file in self.files for number in range(len(file)))

    def find(self, wanted: Filter) -> Iterator[Entry]:
        """The entries that a filter takes, likewise.

        Raises:
            ConfigError: Its expression cannot be applied to a row.
            DataError: A file cannot be read.
        """
        for file in self.files:
            if not wanted.takes_file(file.file):
                continue
            found = [n for n in range(len(file)) if wanted.takes(Entry(file, n))]
            if wanted.search is not None:
                search = Search(wanted.search)
                found = [n for n, texts in file.texts(found) if search.finds(texts)]
            yield from (Entry(file, number) for number in found)

    def entry(self, name: str) -> Entry:
        """The entry with an id.

        Raises:
            DataError: There is none; the error says what there is.
        """
        match = re.fullmatch(r"(.+)/(\d+)/(\d+)", name)
        if match is None:
            raise DataError(
                f"{name!r}: names no episode; write FILE/GROUP/MEMBER, as {self._example} "
                "(gymnast rollouts prints them)"
            )
        file = self._by_name.get(match[1])
        if file is None:
            raise DataError(f"{name}: {self.run} has no file {match[1]!r}; it has {self._there}")
        place = int(match[2]), int(match[3])
        places = list(zip(file.column("group"), file.column("member"), strict=True))
        if place not in places:
            members = [member for group, member in places if group == place[0]]
            groups = f"the file has groups {shown_steps(group for group, _ in places)}"
            there = f"group {place[0]} has members {shown_steps(members)}" if members else groups
            raise DataError(f"{name}: there is no such episode; {there}")
        return Entry(file, places.index(place))

    @property
    def _by_name(self) -> dict[str, EpisodeFile]:
        return {file.name: file for file in self.files}

    @property
    def _example(self) -> str:
        return next((entry.id for entry in self.entries()), "step_00001/0/0")

    @property
    def _there(self) -> str:
        names = [file.name for file in self.files]
        return ", ".join(names if len(names) < 8 else [*names[:3], "...", *names[-3:]])

    @cached_property
    def has_steps(self) -> bool:
        """Whether there are episodes of training, not of evaluations alone."""
        return any(not file.file.is_evaluation for file in self.files)


def _files_of(run: Path) -> list[RolloutFile]:
    """The files of a run's folder, or the one file.

    Raises:
        DataError: There is nothing of that name.
    """
    if run.is_dir():
        named = {file.path.stem: file for file in rollout_files(run)}  # .parquet before .jsonl
        return sorted(named.values(), key=lambda file: (file.step, file.path.name))
    if not run.exists():
        raise DataError(
            f"{run}: there is no such folder or file; name the folder of a run, or a file of its "
            f"{FOLDER}/{runs_nearby(run)}"
        )
    match = re.match(r"(step|eval)_(\d+)", run.stem)
    step, kind = (int(match[2]), match[1]) if match else (0, "step")
    return [RolloutFile(run, step, kind == "eval")]
