"""`reasoning_gym:NAME`: Answer the questions of a generator of reasoning-gym, which scores them."""

import inspect
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.adapters.evaluated_answers import is_harmless
from gymnast.envs.adapters.made_classes import MadeClass, make_class
from gymnast.envs.adapters.packages import import_package
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.episode import Episode
from gymnast.errors import ConfigError, UnknownEnvironment, first_line
from gymnast.lookup import did_you_mean
from gymnast.types import Message

_INSTALL = "gymnast[reasoning-gym]"
_SEEDS = 2**31
_SYSTEM_PROMPT = "Answer the question. Write the final answer alone between <answer> and </answer>."
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(answer\b")


class ReasoningGymEnvironment(Environment, metaclass=MadeClass):
    """Answer a question, without tools.

    The answer is what the last turn's text has between the last `<answer>` and `</answer>`, or all
    of it. The reward is the score that the generator gives it. Some scorers evaluate the answer as
    Python or as a formula: one that is no literal, plain words or short formula earns 0 there.

    A row has the `seed` of its question.

    Attributes:
        name: The generator's.

    Args:
        renderer: As for `Environment`.
        rows: As for `Environment`; by default, seeds are drawn.
        config: The generator's settings, without `seed` and `size`.
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
        system_prompt: str | None = _SYSTEM_PROMPT,
        max_turns: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(renderer, rows, max_turns, system_prompt=system_prompt, **settings)
        self.config = dict(config or {})
        self._generator, self._entry = self._generated(0)

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
        self._generator, self._entry = self._generated(seed)
        return [{"role": "user", "content": self._entry["question"]}]

    def solve(self, row: Mapping[str, Any]) -> list[Any] | None:
        """The generator's own answer; None where it has none."""
        answer = self._entry["answer"]
        return None if answer is None else [f"<answer>{answer}</answer>"]

    def reward(self, episode: Episode) -> float:
        """The score of the answer."""
        found = _ANSWER.findall(episode.answer)
        answer = found[-1] if found else episode.answer
        if answer != self._entry["answer"]:  # whose white space counts in some
            answer = answer.strip()
            if self._evaluates() and not is_harmless(answer):
                return 0.0
        return float(self._generator.score_answer(answer=answer, entry=self._entry))

    def _evaluates(self) -> bool:
        """Whether the scorer evaluates answers; that of a composite is its part's."""
        source = self._entry["metadata"].get("source_dataset", self.name)
        known = _generators(f"reasoning_gym:{self.name}")
        return evaluates_answers(known.get(source, known[self.name])[0])

    def _generated(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """The generator of a seed, and its one question."""
        package = import_package("reasoning_gym", f"reasoning_gym:{self.name}", _INSTALL)
        config = dict(self.config)
        if self.name == "composite" and "datasets" in config:
            spec = import_package("reasoning_gym.composite", self.name, _INSTALL).DatasetSpec
            given = config["datasets"]
            config["datasets"] = [spec(**{"weight": 1.0, "config": {}, **one}) for one in given]
        try:
            generator = package.create_dataset(self.name, seed=seed, size=1, **config)
            return generator, generator[0]
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
    return _EVALUATES.search(inspect.getsource(generator.score_answer)) is not None


def _generators(needed_by: str) -> Mapping[str, Any]:
    import_package("reasoning_gym", needed_by, _INSTALL)
    found: Mapping[str, Any] = import_package("reasoning_gym.factory", needed_by, _INSTALL).DATASETS
    return found
