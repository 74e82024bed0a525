"""Rubrics made of rubrics: all of them, a weighted sum, one behind a gate.

    reward = rubrics.all_of(
        answer=rubrics.weighted(rubrics.numeric("answer"), 0.8),
        brief=rubrics.weighted(lambda episode: len(episode.answer) < 80, 0.2),
    )

Each part is reported twice: what it adds to the reward is a part of the reward of its name
(`reward_parts/answer`, 0.0 to 0.8), and what it found is the metric `rubrics/answer`, 0.0 to 1.0.
Sync parts run one after another, async ones at the same time.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from gymnast.envs.records.score import Score
from gymnast.envs.rubrics.later import Later, Together, give_up
from gymnast.envs.rubrics.rubric import Played, Rubric, Scorer, begin, joined
from gymnast.errors import ConfigError, shown
from gymnast.numbers import is_finite
from gymnast.threads import in_background


class Part(NamedTuple):
    """One of the rubrics that another is made of."""

    name: str
    scorer: Scorer
    share: float

    def begin(self, episode: Played, environment: Any) -> Any:
        """Its `Score` or None, or an awaitable of it."""
        return begin(self.scorer, self.name, episode, environment)


@dataclass(frozen=True)
class Weighted(Rubric):
    """A rubric times a weight; see `weighted`."""

    scorer: Scorer
    weight: float

    def own_name(self) -> str:
        """That of what is weighted."""
        return name_of(self.scorer)

    def score(self, episode: Played, environment: Any = None) -> Any:
        """The rubric's score, times the weight."""
        return Sum((Part("", self.scorer, self.weight),)).score(episode, environment)


@dataclass(frozen=True)
class Sum(Rubric):
    """A weighted sum of rubrics; see `all_of` and `weighted_sum`."""

    parts: tuple[Part, ...]

    def score(self, episode: Played, environment: Any = None) -> Any:
        """The sum, with the names of the parts; None if one of them is None."""
        begun: list[Any] = []
        try:
            for part in self.parts:
                begun.append(part.begin(episode, environment))
        except BaseException:
            give_up(begun)
            raise
        if any(map(inspect.isawaitable, begun)):
            return Later(Together(begun), self._sum)
        return self._sum(begun)

    def _sum(self, found: Sequence[Score | None]) -> Score | None:
        parts: dict[str, float] = {}
        metrics: dict[str, float] = {}
        for part, score in zip(self.parts, found, strict=True):
            if score is None:
                return None
            added, reported = _of_part(part, score)
            parts |= added
            metrics |= reported
        return Score(parts, metrics)


@dataclass(frozen=True)
class Gate(Rubric):
    """A rubric that counts only where another one is reached; see `gate`."""

    condition: Part
    then: Part
    least: float

    def score(self, episode: Played, environment: Any = None) -> Any:
        """What is behind the gate, or 0."""
        found = self.condition.begin(episode, environment)
        if inspect.isawaitable(found):  # then off the event loop, as what is behind may be sync
            return Later(
                found,
                lambda known: in_background(partial(self._after, known, episode, environment)),
            )
        return self._after(found, episode, environment)

    def _after(self, found: Score | None, episode: Played, environment: Any) -> Any:
        """The score once the condition is known, or an awaitable of it."""
        if found is None:
            return None
        _, reported = _of_part(self.condition, found)
        if found.reward < self.least:
            return Score({self.then.name: 0.0}, reported)
        rest = Sum((self.then,)).score(episode, environment)
        if inspect.isawaitable(rest):
            return Later(rest, partial(_reporting, reported))
        return _reporting(reported, rest)


def weighted(scorer: Scorer, weight: float) -> Weighted:
    """A rubric or function with a weight, for `all_of` and `weighted_sum`.

    Args:
        scorer: The rubric.
        weight: Finite. Alone, it multiplies the score.

    Raises:
        ConfigError: The weight is not finite, or `scorer` cannot be called.
    """
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not is_finite(weight):
        raise ConfigError(f"weighted: the weight must be a finite number, got {shown(weight)}")
    _check_scorer("weighted", scorer)
    return Weighted(scorer, float(weight))


def all_of(*scorers: Scorer, **named: Scorer) -> Sum:
    """Rubrics of which each earns its share: 1.0 where every one of them is 1.0.

    The reward is the mean by weight. The weights are 1.0 where `weighted` does not say otherwise.

    Args:
        *scorers: Rubrics and functions, each with a name of its own.
        **named: More of them, with the names of their parts.

    Returns:
        None in an episode where one of them is None.

    Raises:
        ConfigError: There are none, one is no function, a weight is not above 0, or two parts have
            one name.
    """
    parts = _parts("all_of", scorers, named)
    for part in parts:
        if not part.share > 0:
            raise ConfigError(
                f"all_of: the weight of {part.name!r} must be > 0, got {part.share:g}; "
                "weighted_sum takes punishments too"
            )
    total = sum(part.share for part in parts)
    if not is_finite(total):
        raise ConfigError("all_of: the weights add up to more than a float holds; scale them down")
    return Sum(tuple(part._replace(share=part.share / total) for part in parts))


def weighted_sum(*scorers: Scorer, **named: Scorer) -> Sum:
    """Rubrics of which each adds its weight times what it found; a weight may be below 0.

    Args:
        *scorers: As for `all_of`.
        **named: As for `all_of`.

    Raises:
        ConfigError: There are none, one is no function, or two parts have one name.
    """
    return Sum(tuple(_parts("weighted_sum", scorers, named)))


def gate(*scorers: Scorer, least: float = 1.0, **named: Scorer) -> Gate:
    """A rubric behind another one: `gate(parses=rubrics.json_schema(...), right=right)`.

    The reward is that of the second where the first one reaches `least`, else 0; the second is not
    asked then. Of the first, the metric alone is reported.

    Args:
        *scorers: The condition and what is behind it.
        least: What the condition has to reach.
        **named: One or both of them, with names.

    Raises:
        ConfigError: There are not two, one is no function, or both have one name.
    """
    parts = _parts("gate", scorers, named)
    if len(parts) != 2:
        raise ConfigError(f"gate: takes a condition and a rubric behind it, got {len(parts)}")
    return Gate(parts[0], parts[1], least)


def _of_part(part: Part, score: Score) -> tuple[dict[str, float], dict[str, float]]:
    """What a part adds, and its metrics, by names that begin with the part's."""
    added = {joined(part.name, name): part.share * value for name, value in score.parts.items()}
    metrics = {joined(part.name, name): value for name, value in score.metrics.items()}
    own = {part.name: score.reward} if part.name else {}
    return added, own | metrics


def _reporting(metrics: Mapping[str, float], score: Score | None) -> Score | None:
    return None if score is None else Score(score.parts, {**metrics, **score.metrics})


def _parts(kind: str, scorers: Sequence[Scorer], named: Mapping[str, Scorer]) -> list[Part]:
    """The parts of a rubric, with their weights as shares.

    Raises:
        ConfigError: There are none, one is no function or has no name, or two have one.
    """
    parts: dict[str, Part] = {}
    for name, scorer in [*((_name(kind, one), one) for one in scorers), *named.items()]:
        _check_scorer(kind, scorer)
        if name in parts:
            raise ConfigError(
                f"{kind}: two parts are called {name!r}; name them: {kind}(first=..., second=...)"
            )
        inner, share = scorer, 1.0
        if isinstance(scorer, Weighted):
            inner, share = scorer.scorer, scorer.weight
        parts[name] = Part(name, inner, share)
    if not parts:
        raise ConfigError(f"{kind}: takes at least one rubric, got none")
    return list(parts.values())


def _name(kind: str, scorer: Scorer) -> str:
    if not (name := name_of(scorer)):
        raise ConfigError(f"{kind}: {scorer!r:.100} has no name; give it one: {kind}(name=...)")
    return name


def name_of(scorer: Scorer) -> str:
    """What a rubric or function is called where nobody names it; "" if it has no name."""
    if isinstance(scorer, Rubric):
        return scorer.own_name()
    name = str(getattr(scorer, "__name__", ""))
    return "" if name == "<lambda>" else name


def _check_scorer(kind: str, scorer: Any) -> None:
    if not callable(scorer) or isinstance(scorer, type):
        raise ConfigError(
            f"{kind}: takes rubrics and functions of an episode, got {scorer!r:.100}; a rubric is "
            "made with what it looks for: rubrics.exact('answer')"
        )
