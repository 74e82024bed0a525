"""`reasoning_gym:NAME`: Answer the questions of a generator of reasoning-gym, which scores them."""

import inspect
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.adapters.evaluated_answers import is_harmless
from gymnast.envs.adapters.made_classes import MadeClass, make_class
from gymnast.envs.adapters.packages import Package, import_package
from gymnast.envs.adapters.scoring import Question, Score, score
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.episode import Episode
from gymnast.errors import ConfigError, InfrastructureError, UnknownEnvironment, first_line
from gymnast.lookup import did_you_mean
from gymnast.types import Message
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

_INSTALL = "gymnast-rl[reasoning-gym]"
PACKAGE = Package("reasoning-gym", _INSTALL)

_SEEDS = 2**31
_SYSTEM_PROMPT = "Answer the question. Write the final answer alone between <answer> and </answer>."
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\((?!entry\b|metadata\b)")


class ReasoningGymEnvironment(Environment, metaclass=MadeClass):
    """Answer a question, without tools.

    The answer is what the last turn's text has between the last `<answer>` and `</answer>`, or all
    of it. The reward is the score that the generator gives it, in a process of its own. Some
    scorers evaluate the answer as Python or as a formula: one that is no literal, plain words or
    formula earns 0 there. So does an answer whose scoring raises, or takes too long, everywhere;
    the metric `scorer/failures` is then 1.

    A row has the `seed` of its question.

    Attributes:
        name: The generator's.

    Args:
        renderer: As for `Environment`.
        rows: As for `Environment`; by default, seeds are drawn.
        config: The generator's settings, without `seed` and `size`.
        score_timeout_s: Seconds of a core that scoring an answer may take.
        system_prompt: By default, it says how the answer is written.
        max_turns: As for `Environment`.
        **settings: As for `Environment`.
    """

    name: ClassVar[str]

    def __init__(
        self,
        renderer: Any = None,
        rows: Any = None,
        *,
        config: Mapping[str, Any] | None = None,
        score_timeout_s: float = 10.0,
        system_prompt: str | None = _SYSTEM_PROMPT,
        max_turns: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(renderer, rows, max_turns, system_prompt=system_prompt, **settings)
        if not score_timeout_s > 0:
            raise ConfigError(f"score_timeout_s must be > 0, got {score_timeout_s!r}.")
        self.config = dict(config or {})
        self.score_timeout_s = score_timeout_s
        self._question = self._asked(0)
        self._score = Score(0.0)

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else a seed."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        return {"seed": int(rng.integers(_SEEDS))}

    def setup(self, row: Mapping[str, Any]) -> list[Message]:
        """Generate the question of the row's seed, or of the environment's where it has none."""
        seed = row.get("seed")
        if seed is None:
            seed = int(self.np_random.integers(_SEEDS))
        try:
            self._question = self._asked(seed)
        except ConfigError as error:  # of this seed alone: there was a question when it was made
            raise InfrastructureError(str(error)) from error
        return [{"role": "user", "content": self._question.entry["question"]}]

    def solve(self, row: Mapping[str, Any]) -> list[Any] | None:
        """The generator's own answer; None where it has none."""
        answer = self._question.entry["answer"]
        return None if answer is None else [f"<answer>{answer}</answer>"]

    def reward(self, episode: Episode) -> float:
        """The score of the answer."""
        found = _ANSWER.findall(episode.answer)
        answer = found[-1] if found else episode.answer
        self._score = Score(0.0)
        if answer != self._question.entry["answer"]:  # whose white space counts in some
            answer = answer.strip()
            if self._evaluates() and not is_harmless(answer):
                return 0.0
        self._score = score(self._question, answer, self.score_timeout_s)
        if self._score.failure:
            logger.debug("reasoning_gym:%s: %s", self.name, self._score.failure)
        return self._score.value

    def metrics(self, episode: Episode) -> dict[str, float]:
        """Whether the answer could not be scored."""
        return {"scorer/failures": float(bool(self._score.failure))}

    def _evaluates(self) -> bool:
        """Whether the scorer evaluates answers; that of a composite is its part's."""
        source = self._question.entry["metadata"].get("source_dataset", self.name)
        known = _generators(f"reasoning_gym:{self.name}")
        return evaluates_answers(known.get(source, known[self.name])[0])

    def _asked(self, seed: int) -> Question:
        """The question of a seed."""
        package = import_package("reasoning_gym", f"reasoning_gym:{self.name}", _INSTALL)
        config = {**self.config, "seed": seed}
        if self.name == "composite" and "datasets" in config:
            spec = import_package("reasoning_gym.composite", self.name, _INSTALL).DatasetSpec
            given = self.config["datasets"]
            config["datasets"] = [spec(**{"weight": 1.0, "config": {}, **one}) for one in given]
        try:
            generator = package.create_dataset(self.name, size=1, **config)
            return Question(self.name, type(generator).__module__, config, generator[0])
        except Exception as error:
            raise ConfigError(
                f"reasoning_gym:{self.name} makes no question of the seed {seed} with config="
                f"{self.config!r:.300}: {type(error).__name__}: {first_line(error)}"
            ) from error


@cache
def dataset(name: str) -> type[ReasoningGymEnvironment]:
    """The class of environments that ask the questions of a generator.

    Raises:
        ConfigError: reasoning-gym is not installed.
        UnknownEnvironment: It has no such generator.
    """
    known = _generators(f"reasoning_gym:{name}")
    if name not in known:
        raise UnknownEnvironment(
            f"reasoning_gym:{name}: there is no such generator.{did_you_mean(name, known)} "
            f"There are {len(known)}, from {min(known)} to {max(known)}."
        )
    about = f"Answer a question of the generator {name} of reasoning-gym."
    return make_class(
        ReasoningGymEnvironment, "reasoning_gym", name, dataset, name=name, __doc__=about
    )


@cache
def evaluates_answers(generator: Any) -> bool:
    """Whether the scorer of a generator's class evaluates answers as Python or as a formula."""
    try:
        source = inspect.getsource(generator.score_answer)
    except OSError:  # nobody can tell
        return True
    return _EVALUATES.search(source) is not None


def _generators(needed_by: str) -> Mapping[str, Any]:
    import_package("reasoning_gym", needed_by, _INSTALL)
    found: Mapping[str, Any] = import_package("reasoning_gym.factory", needed_by, _INSTALL).DATASETS
    return found
