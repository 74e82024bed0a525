"""A curriculum: rows are drawn by how often they pass.

A row teaches most where it passes about as often as it fails: `p (1 - p)` of its pass rate p is the
variance of its reward, and what Foster and Foerster (2025, arXiv:2502.12272) call learnability and
sample by. They measure p by extra rollouts; here it is estimated from the episodes that training
plays anyway, as in MoPPS (Qu et al. 2025, arXiv:2507.04632): a Beta posterior for each row, whose
earlier counts are discounted because the policy changes.

    alpha = 1 + passes,  beta = 1 + failures                       (a row never tried: 1 and 1)
    preference = E[p^(2 t) (1 - p)^(2 (1 - t))]  under Beta(alpha, beta)  (t = 0.5: E[p (1 - p)])
    weight = (1 - uniform_share) * preference / sum of preferences + uniform_share / rows

The preference is highest where p is the target t. The expectation counts what is not known: a row
that failed 8 times keeps a third of the preference of one that passed 4 times of 8. Rows are drawn
by weight without replacement, with the keys of Efraimidis and Spirakis (2006).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import jmespath
import numpy as np

from gymnast.errors import ConfigError
from gymnast.lookup import nearest
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.data.cursor import StepRows
from gymnast.trainers.data.rows import DatasetRows, Row, RowSource, canonical
from gymnast.trainers.data.settings import CurriculumSettings

# Of a source without end, this many rows are made for each that is drawn.
CANDIDATES = 4


class Tried(NamedTuple):
    """What is known of a row, or of the rows with one value of `by`.

    Attributes:
        visits: How many groups were played.
        episodes: How many episodes they had, earlier ones discounted.
        passes: How many of them passed, discounted likewise.
    """

    visits: int = 0
    episodes: float = 0.0
    passes: float = 0.0

    @property
    def pass_rate(self) -> float:
        """The mean of the posterior; 0.5 where nothing is known."""
        return (1 + self.passes) / (2 + self.episodes)

    def preference(self, target: float) -> float:
        """The expectation at the top of this file; above 0."""
        alpha, beta = 1 + self.passes, 1 + self.episodes - self.passes
        ups, downs = 2 * target, 2 * (1 - target)
        return math.exp(_log_beta(alpha + ups, beta + downs) - _log_beta(alpha, beta))

    def after(self, rewards: Sequence[float], settings: CurriculumSettings) -> "Tried":
        """With one more group; one without episodes says nothing."""
        if not rewards:
            return self
        passes = sum(reward >= settings.pass_reward for reward in rewards)
        return Tried(
            self.visits + 1,
            self.episodes * settings.discount + len(rewards),
            self.passes * settings.discount + passes,
        )


class Curriculum(StepRows):
    """Draws the rows of a step by what the steps before it showed.

    Args:
        source: Of the training rows.
        most: How many rows a step is offered.
        settings: The preference.
        seed: Of the draws.
        place: What precedes the settings' names in errors: "trainer.".

    Raises:
        ConfigError: The rows are made without end and `by` is not set, or it finds nothing.
    """

    def __init__(
        self,
        source: RowSource,
        most: int,
        settings: CurriculumSettings,
        *,
        seed: int,
        place: str = "",
    ) -> None:
        super().__init__(source, most)
        self._settings, self._seed, self._by = settings, seed, f"{place}curriculum.by"
        self._tried: dict[str, Tried] = {}
        self._offered: list[str] = []  # the keys of the last offer
        self._next: int | None = None  # the position where a source without end goes on
        if not isinstance(source, DatasetRows) and settings.by is None:
            raise ConfigError(
                f"{self._by}: is required where the environment makes the rows (sample_row), or "
                "a RowSource does: none comes a second time; name a column that rows share, such "
                "as difficulty, or leave the curriculum out"
            )
        self._expression = None if settings.by is None else jmespath.compile(settings.by)
        rows = self._candidates(0)
        self._keys = [self._key(row) for row in rows]  # of a dataset: of all its rows
        if settings.by is not None and set(self._keys) == {"null"}:
            raise self._found_nothing(settings.by, islice(rows, 1000))

    def offer(self, step: int) -> list[Row]:
        """See `StepRows`."""
        if self._next is None:
            self._next = step * CANDIDATES * self.most
        rows = self._candidates(self._next)
        if not isinstance(self.source, DatasetRows):
            self._keys = [self._key(row) for row in rows]
        keys = self._keys
        rng = np.random.default_rng(derive(self._seed, "curriculum", step))
        log_weights, drawn = np.log(self._weights(keys)), list[int]()
        while len(drawn) < self.most:  # a dataset with fewer rows is drawn several times
            order = np.argsort(-(log_weights + rng.gumbel(size=len(keys))), kind="stable")
            drawn += order[: self.most - len(drawn)].tolist()
        self._offered = [keys[number] for number in drawn]
        return [rows[number] for number in drawn]

    def played(self, rewards: Mapping[int, Sequence[float]]) -> dict[str, float]:
        """See `StepRows`; the metrics are in docs/metrics.md."""
        keys = {place: self._offered[place] for place in sorted(rewards)}
        estimates = [self._known(key).pass_rate for key in keys.values()]
        for place, key in keys.items():
            self._tried[key] = self._known(key).after(rewards[place], self._settings)
        assert self._next is not None
        self._next += CANDIDATES * self.most
        all_rewards = [reward for place in keys for reward in rewards[place]]
        passes = sum(reward >= self._settings.pass_reward for reward in all_rewards)
        return {
            "curriculum/pass_estimate": sum(estimates) / max(1, len(estimates)),
            "curriculum/pass_rate": passes / max(1, len(all_rewards)),
            "curriculum/rows_tried": sum(tried.visits > 0 for tried in self._tried.values()),
        }

    @property
    def parts(self) -> dict[str, Any]:
        """See `StepRows`."""
        return {"rows": self}

    def state_dict(self) -> dict[str, Any]:
        """What is known of rows, by key; JSON can express it."""
        tried = {key: list(known) for key, known in self._tried.items()}
        return {"by": self._settings.by, "tried": tried, "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what is known, unless it was known by something else than `by`."""
        self._next = state["next"]
        same = state["by"] == self._settings.by
        self._tried = {key: Tried(*known) for key, known in state["tried"].items() if same}

    def _candidates(self, start: int) -> Sequence[Row]:
        """The rows to draw from: all of a dataset, or the next ones of a source without end."""
        if isinstance(self.source, DatasetRows):
            return self.source.in_order
        positions = range(start, start + CANDIDATES * self.most)
        return [self.source.row(position) for position in positions]

    def _key(self, row: Row) -> str:
        """What a row is known by: its content, wherever it stands, or its value of `by`."""
        if self._expression is None:
            return hashlib.blake2b(canonical(row).encode(), digest_size=8).hexdigest()
        try:
            found = self._expression.search(row)
        except Exception as error:  # jmespath's functions let Python's own errors through
            raise ConfigError(
                f"{self._by}: {self._settings.by!r} cannot be applied to a row: "
                f"{str(error).splitlines()[0]}; the row is {dict(row)!r:.200}"
            ) from error
        return json.dumps(found, sort_keys=True, default=str)

    def _known(self, key: str) -> Tried:
        return self._tried.get(key, Tried())

    def _weights(self, keys: Sequence[str]) -> np.ndarray:
        """[rows]: how likely each is to be drawn next; they add up to 1."""
        target, share = self._settings.target, self._settings.uniform_share
        untried = Tried().preference(target)
        known = {key: tried.preference(target) for key, tried in self._tried.items()}
        preferences = np.array([known.get(key, untried) for key in keys])
        return (1 - share) * preferences / preferences.sum() + share / len(keys)

    def _found_nothing(self, expression: str, rows: Iterable[Row]) -> ConfigError:
        columns = sorted({str(column) for row in rows for column in row})
        near = nearest(expression.strip('"'), columns)
        hint = f"; did you mean {near}?" if near else ""
        return ConfigError(
            f"{self._by}: must find something in a training row, got {expression} "
            f"(the columns: {', '.join(columns)}){hint}"
        )


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
