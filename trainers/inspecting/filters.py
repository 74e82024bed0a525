"""Which saved episodes are wanted, said by what the light columns of their files tell.

Only the columns that a filter asks about are read. A text is searched for in the messages of those
episodes alone that all else has left.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

import jmespath

from gymnast.envs.records.episode import ErrorKind
from gymnast.errors import ConfigError, first_line
from gymnast.lookup import did_you_mean
from gymnast.trainers.saving.saved_runs import RolloutFile
from gymnast.types import StopReason

_FALSE: tuple[Any, ...] = (None, False, "", [], {})  # to jmespath; 0 is a number as any other


class Outcome(Protocol):
    """What is known of an episode before it is loaded; see `index.Entry`."""

    @property
    def group(self) -> int:
        """Which group of its file it is of."""
        ...

    @property
    def reward(self) -> float | None:
        """Its reward, if it has one."""
        ...

    @property
    def stop_reason(self) -> str:
        """Why it ended."""
        ...

    @property
    def environment(self) -> str:
        """Which environment of several played it."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """Numbers about it."""
        ...

    @property
    def row(self) -> Mapping[str, Any]:
        """The dataset row."""
        ...


@dataclass(frozen=True)
class Filter:
    """Takes the episodes for which all of these hold; by default all episodes.

    Attributes:
        steps: Of these steps, or of the evaluations after them.
        evaluations: True: of evaluations; False: of training; None: of both.
        group: Of this group of their file.
        min_reward: With at least this reward; those without a reward are not taken.
        max_reward: With at most this reward; likewise.
        stop_reason: That ended so.
        environment: That this environment of a mixture played, or that are of an evaluation in this
            further environment.
        tool: In which this tool was called: it ran, or failed.
        error: In which a call failed in this way: the KIND of `tools/errors/KIND`.
        tags: Whose row has these values in these columns, as text.
        where: A jmespath expression that holds of their row, as in `evaluation.by`.
        search: Whose messages have this text, without regard to upper and lower case.

    Raises:
        ConfigError: `where` cannot be read, no episode ends with such a `stop_reason`, no call with
            such an `error`, `group` is below 0, or a reward is no number.
    """

    steps: range | None = None
    evaluations: bool | None = None
    group: int | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    stop_reason: str | None = None
    environment: str | None = None
    tool: str | None = None
    error: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    search: str | None = None

    def __post_init__(self) -> None:
        _check_known("stop_reason", self.stop_reason, [str(reason) for reason in StopReason])
        _check_known("error", self.error, get_args(ErrorKind))
        if self.group is not None and self.group < 0:
            raise ConfigError(f"group: must be 0 or more, as groups count from 0, got {self.group}")
        for name, reward in (("min_reward", self.min_reward), ("max_reward", self.max_reward)):
            if reward is not None and math.isnan(reward):
                raise ConfigError(f"{name}: must be a number such as 0.5, got {reward}")
        if self.where is not None:
            try:
                jmespath.compile(self.where)
            except jmespath.exceptions.JMESPathError as error:
                raise ConfigError(
                    f"where: must be a jmespath expression over a row, such as 'a > `50`', got "
                    f"{self.where!r} ({first_line(error).rstrip(':')}); numbers stand between "
                    "backticks"
                ) from error

    def takes_file(self, file: RolloutFile) -> bool:
        """Whether any episode of a file can be wanted."""
        if self.evaluations is not None and file.is_evaluation != self.evaluations:
            return False
        return self.steps is None or file.step in self.steps

    def takes(self, episode: Outcome) -> bool:
        """Whether all holds of an episode of such a file, but the search.

        Raises:
            ConfigError: `where` cannot be applied to its row.
        """
        if self.group is not None and episode.group != self.group:
            return False
        if self.stop_reason is not None and episode.stop_reason != self.stop_reason:
            return False
        return (
            self._takes_reward(episode)
            and (self.environment is None or episode.environment == self.environment)
            and self._takes_calls(episode)
            and self._takes_row(episode)
        )

    def _takes_reward(self, episode: Outcome) -> bool:
        if self.min_reward is None and self.max_reward is None:
            return True
        reward = episode.reward
        return (
            reward is not None
            and (self.min_reward is None or reward >= self.min_reward)
            and (self.max_reward is None or reward <= self.max_reward)
        )

    def _takes_calls(self, episode: Outcome) -> bool:
        counted: list[list[str]] = []
        if self.tool is not None:
            counted.append([f"tools/calls/{self.tool}", f"tools/failures/{self.tool}"])
        if self.error is not None:
            counted.append([f"tools/errors/{self.error}"])
        if not counted:
            return True
        metrics = episode.metrics
        return all(any(metrics.get(name) for name in names) for names in counted)

    def _takes_row(self, episode: Outcome) -> bool:
        if not self.tags and self.where is None:
            return True
        row = episode.row
        if any(key not in row or tag_text(row[key]) != text for key, text in self.tags.items()):
            return False
        return self.where is None or self._holds(self.where, row)

    @staticmethod
    def _holds(expression: str, row: Mapping[str, Any]) -> bool:
        try:
            found = jmespath.search(expression, row)
        except Exception as error:  # jmespath's functions let Python's own errors through
            raise ConfigError(
                f"where: {expression!r} cannot be applied to a row: {first_line(error)}; the row "
                f"is {dict(row)!r:.200}"
            ) from error
        return not any(found is each or (found == each and found != 0) for each in _FALSE)


def _check_known(name: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise ConfigError(
            f"{name}: must be one of {', '.join(known)}, got {value!r}.{did_you_mean(value, known)}"
        )


def tag_text(value: Any) -> str:
    """A value of a row as a tag writes it: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
