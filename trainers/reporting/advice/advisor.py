"""Sees every step of a run, and says once what keeps it from learning."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import Any, Protocol

import gymnasium

from gymnast.envs import Environment, can_solve
from gymnast.envs.mixture import members_of
from gymnast.trainers.base.observer import Advice, EvaluatedPolicy
from gymnast.trainers.evaluation.settings import EvaluationSettings
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.trainers.reporting.advice.cases import Facts, advise
from gymnast.trainers.reporting.advice.history import History, SeenEvaluation
from gymnast.trainers.reporting.advice.seen import see
from gymnast.trainers.reporting.advice.speed import NO_FACTS, SpeedFacts
from gymnast.trainers.reporting.advice.sudden_falls import Remedy
from gymnast.types import Sampling, Trajectory
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

# What has not held for so many steps is said anew when it holds again.
FORGOTTEN_AFTER = 10


class Notes(Protocol):
    """Where advice is kept: a run's folder."""

    def add_advice(self, advice: Mapping[str, Any]) -> None:
        """Keep one."""
        ...


def without_solve(make_env: Callable[[], gymnasium.Env[Any, Any]]) -> str:
    """The name of an environment's class where it has no `solve`, else "".

    Of a mixture, that of the first such environment.

    Args:
        make_env: Makes one.
    """
    env = make_env()
    try:
        made = env.unwrapped
        members = members_of(made) if isinstance(made, Environment) else []
        return next((type(each).__name__ for each in members if not can_solve(each)), "")
    finally:
        env.close()


def _remedy(learning: LearnerSettings, run: str | None) -> Remedy:
    adapters = learning.adapter_learning_rate is not None
    name = "trainer.adapter_learning_rate" if adapters else "trainer.learning_rate"
    return Remedy(name, learning.rate_of_adapters, learning.warmup_steps, run)


class Advisor:
    """What was seen of a run, and what was said about it; a part of the run's state.

    Args:
        make_env: Makes one of the run's environments.
        sampling: How its episodes are sampled.
        learning: Its optimizer's settings.
        evaluation: Its evaluations' settings.
        warmup_steps: How many steps its warm-up has; 0: there is none.
        run: The run's folder, if its best weights are kept there.
        speed: What advice about speed depends on.

    Attributes:
        facts: What it knows of the run besides its steps.
        standing: What holds after the last step.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        sampling: Sampling,
        learning: LearnerSettings,
        evaluation: EvaluationSettings,
        warmup_steps: int = 0,
        *,
        run: str | None = None,
        speed: SpeedFacts = NO_FACTS,
    ) -> None:
        unsolved = cache(partial(without_solve, make_env))
        self.facts = Facts(
            *(unsolved, learning.max_grad_norm, sampling.max_new_tokens, evaluation.pass_reward),
            warmup_steps,
            _remedy(learning, run),
            speed,
        )
        self._history = History()
        self._held: dict[str, int] = {}  # the last step after which each cause that was said held
        self._new: list[Advice] = []
        self.standing: list[Advice] = []

    def see(
        self, step: int, metrics: Mapping[str, float], groups: Sequence[Sequence[Trajectory]]
    ) -> list[Advice]:
        """Look at a step; returns what is to be said after it.

        Args:
            step: Its number; the first is 1.
            metrics: The step's.
            groups: Its episodes.
        """
        self._history.add(see(step, metrics, groups, self.facts.max_new_tokens))
        return self._advise(step)

    def see_evaluation(
        self, evaluated: EvaluatedPolicy, metrics: Mapping[str, float]
    ) -> list[Advice]:
        """Look at an evaluation; returns what is to be said after it.

        Args:
            evaluated: Its policy.
            metrics: Named `eval/...`.
        """
        self._history.add_evaluation(SeenEvaluation.of(evaluated, metrics))
        return self._advise(evaluated.step)

    def _advise(self, step: int) -> list[Advice]:
        self.standing = advise(self._history, self.facts)
        self._new = [
            advice
            for advice in self.standing
            if step - self._held.get(advice.cause, -FORGOTTEN_AFTER) >= FORGOTTEN_AFTER
        ]
        self._held |= {advice.cause: step for advice in self.standing}
        return self._new

    def tell(self, folder: Notes | None, observer: object) -> None:
        """Write what is to be said to the run's folder, and say it.

        Args:
            folder: The run's, if it has one.
            observer: Is told by its `on_advice`; where it has none, the advice is logged.
        """
        on_advice = getattr(observer, "on_advice", None)
        for advice in self._new:
            if folder is not None:
                folder.add_advice(asdict(advice))
            if on_advice is not None:
                on_advice(advice)
            else:
                logger.warning("step %d, %s: %s", advice.step, advice.heading, advice)

    def state_dict(self) -> dict[str, Any]:
        """What the run has seen and heard."""
        return {"history": self._history.to_dict(), "held": dict(self._held)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._history, self._held = History.from_dict(state["history"]), dict(state["held"])
        self.standing = advise(self._history, self.facts)
