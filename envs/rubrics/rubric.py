"""What a rubric is: a callable that scores an episode, and says by name what it found.

    class Shop(Environment):
        reward = rubrics.numeric("price")

    class Brief(Rubric):                                    # one of your own
        def score(self, episode, environment=None):
            return 1.0 if len(answer_of(episode)) < 80 else 0.0

A rubric gets what an environment's `reward` gets, an `Episode`, or what a function of a YAML's
`rewards` gets, a `Trajectory`. Within `score`, names are short: "" is the rubric itself. They are
written out once, by the outermost rubric.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

from gymnast.envs.records.score import Score
from gymnast.envs.rubrics.later import Later
from gymnast.errors import shown
from gymnast.numbers import finite_number
from gymnast.types import Message

METRICS = "rubrics/"


class Played(Protocol):
    """What a rubric scores: an `Episode` or a `Trajectory`."""

    @property
    def row(self) -> Mapping[str, Any]:
        """The dataset row."""
        ...

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation, in OpenAI's shape."""
        ...

    @property
    def turns(self) -> Sequence[Any]:
        """The turns taken."""
        ...


Scorer = Callable[..., Any]
"""A rubric, or a function of an episode that returns what the hook `reward` may return, or an
awaitable of it. A function of two arguments gets the environment first, as a method does."""


class Rubric(ABC):
    """Scores episodes; usable as an environment's `reward`, and in `rewards` of a YAML.

    Subclasses are frozen dataclasses, so that they can be compared and pickled.
    """

    name: ClassVar[str] = ""  # of its part of the reward, unless it is given another one

    def own_name(self) -> str:
        """What its part is called where nobody names it; "" for one that is made of parts."""
        return self.name

    @abstractmethod
    def score(self, episode: Played, environment: Any = None) -> Any:
        """Score an episode.

        Args:
            episode: An `Episode` or a `Trajectory`.
            environment: The environment, where the rubric is its `reward`.

        Returns:
            A number, a `Score` with short names, None if the episode cannot be judged; or an
            awaitable of one of these.
        """

    def __call__(self, episode: Played) -> Any:
        """The `Score` of an episode, with whole names, or None; or an awaitable of it."""
        return self.scored(episode)

    def scored(self, episode: Played, *, environment: Any = None, name: str | None = None) -> Any:
        """The same for an environment's episode, or under another name."""
        own = self.own_name() if name is None else name
        found = begin(self, own, episode, environment)
        if inspect.isawaitable(found):
            return _named_later(own, found)
        return _with_names(own, found)

    def of_environment(self, environment: Any) -> Callable[[Played], Any]:
        """The same as a bound method of an environment, which `score` gets."""
        return partial(self.scored, environment=environment)

    def __get__(self, environment: Any, owner: type | None = None) -> Any:
        return self if environment is None else self.of_environment(environment)


def begin(scorer: Scorer, name: str, episode: Played, environment: Any) -> Any:
    """Call a scorer: a `Score` with short names, or None; or an awaitable of it.

    Args:
        scorer: A rubric or a function.
        name: What it is called, for errors.
        episode: What it scores.
        environment: None, or that of the episode.

    Raises:
        ValueError: It returned something else.
    """
    if isinstance(scorer, Rubric):
        found = scorer.score(episode, environment)
    elif takes_environment(scorer):
        found = scorer(environment, episode)
    else:
        found = scorer(episode)
    if inspect.isawaitable(found):
        return Later(found, partial(as_score, name))
    return as_score(name, found)


def takes_environment(scorer: Scorer) -> bool:
    """Whether a function has to be given two arguments: the environment and the episode."""
    try:
        parameters = inspect.signature(scorer).parameters.values()
    except (TypeError, ValueError):  # some functions that are written in C
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return len(needed) == 2


def as_score(name: str, found: Any) -> Score | None:
    """What a scorer returned as a `Score` with short names; None stays None.

    Args:
        name: What the scorer is called, for errors.
        found: A number, a mapping of numbers, a `Score` or None.

    Raises:
        ValueError: It is something else, or not finite.
    """
    if found is None:
        return None
    if not isinstance(found, Score):
        found = Score(found if isinstance(found, Mapping) else {"": found})
    return Score(
        {str(part): _number(name, value) for part, value in found.parts.items()},
        {str(metric): _number(name, value) for metric, value in found.metrics.items()},
    )


def _number(name: str, value: Any) -> float:
    try:
        return finite_number(value)
    except ValueError as error:
        problem = f"the rubric {name!r} returned {shown(value)}; it must be a finite number"
        raise ValueError(problem) from error


def joined(*names: str) -> str:
    """The name of a part of a part: "answer/format"; "" is the part itself."""
    return "/".join(filter(None, names))


async def _named_later(own: str, found: Awaitable[Score | None]) -> Score | None:
    return _with_names(own, await found)


def _with_names(own: str, found: Score | None) -> Score | None:
    if found is None:
        return None
    return Score(
        {joined(own, part): value for part, value in found.parts.items()},
        {METRICS + joined(own, metric): value for metric, value in found.metrics.items()},
    )
