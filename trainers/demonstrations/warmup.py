"""The warm-up: steps that learn from demonstrations alone, before the first rollout.

    evaluation -> step on demonstrations -> ... -> evaluation -> RL

    warmup/step           how many of these steps are done; their lines have `step` 0
    warmup/loss           the mean negative log-likelihood of a demonstration's token, in nats
    warmup/episodes       how many demonstrations the step learned from; where none of its rows has
                          one, 0, and no loss and no gradient are told
    warmup/reward         their mean reward, where they were played
    warmup/grad_norm, warmup/grad_clipped, warmup/learning_rate, warmup/tokens/trained,
    warmup/updates/taken, warmup/updates/skipped, warmup/updates/skipped_total
                          as in an update (`trainers/learner/update.py`)

When it is over, RL begins as on a model that was loaded: the optimizer has no moments and grows its
learning rate anew, since they would be those of another loss, and the reference of a divergence is
the policy as it is then, so that RL is not held back to the model that could not do the task. A
good policy has few episodes to learn from, and an optimizer without moments makes whole steps of
them: RL's learning rate is multiplied by the share of episodes that teach (`scale_by_teaching`).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from accelerate import Accelerator

from gymnast.errors import ConfigError, DataError
from gymnast.numbers import mean
from gymnast.trainers.base.stopping import Stopping
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.data.rows import Row, RowSource
from gymnast.trainers.demonstrations.files import read_demonstrations
from gymnast.trainers.demonstrations.held_out import without_held_out
from gymnast.trainers.demonstrations.settings import SOLVE, WarmupSettings, check_weight
from gymnast.trainers.demonstrations.sources import (
    Demonstrations,
    ListedDemonstrations,
    SolvedRows,
    check_environment,
    fitting,
)
from gymnast.trainers.learner.learner import Learner
from gymnast.types import Trajectory
from gymnast.visible import visible_logger

logger = visible_logger(__name__)


class Trained(Protocol):
    """What a warm-up knows of `gymnast.trainers.Trainer`."""

    learner: Learner
    accelerator: Accelerator
    rows_per_step: int
    group_size: int
    seed: int
    eval_rows: Sequence[Row] | None


class Warmup:
    """Learns from demonstrations, step by step. Every method is a collective call.

    Args:
        settings: None: there are no demonstrations.
        source: Of the demonstrations; None where there are none.
        trainer: Whose warm-up it is.

    Attributes:
        steps: How many steps it has.
        done: How many of them are taken.
    """

    def __init__(
        self, settings: WarmupSettings | None, source: Demonstrations | None, trainer: Trained
    ) -> None:
        self.steps = 0 if settings is None else settings.steps
        self.done = 0
        self._source, self._learner = source, trainer.learner
        self._rate = None if settings is None else settings.learning_rate
        own = None if settings is None else settings.rows_per_step
        self._a_step = trainer.rows_per_step * trainer.group_size if own is None else own
        self._beside = trainer.rows_per_step

    def begin(self, done: int, *, over: bool) -> None:
        """Begin, or go on.

        Args:
            done: How many steps were taken.
            over: Whether RL has begun.
        """
        self.done = self.steps if over else done
        if not (over or self.left) and self._learner.optimizer.steps:
            self._learner.begin_anew()  # the run goes on with fewer of these steps than it took

    @property
    def left(self) -> int:
        """How many steps are left."""
        return max(0, self.steps - self.done)

    def take_step(self) -> dict[str, float]:
        """Take the next step; returns its metrics, as they are named above.

        Raises:
            DataError: No step so far had any, and this was the last one, or all rows there
                are were among theirs.
        """
        assert self._source is not None
        started = time.perf_counter()
        learned = self._source.take(self.done * self._a_step, self._a_step)
        played = time.perf_counter()
        self._check_learns(learned)
        found = self._learned_nothing()
        if learned:
            found = self._learner.imitate(learned, self.done, learning_rate=self._rate)
        self.done += 1
        if not self.left:
            self._learner.begin_anew()
        ended = time.perf_counter()
        rewards = [each.reward for each in learned if not each.no_reward]
        return {
            "warmup/step": float(self.done),
            **{f"warmup/{name}": value for name, value in found.items()},
            "warmup/episodes": float(len(learned)),
            **({"warmup/reward": mean(rewards)} if rewards else {}),
            "time/rollout_s": played - started,
            "time/train_s": ended - played,
            "time/step_s": ended - started,
        }

    def _check_learns(self, learned: Sequence[Trajectory]) -> None:
        """Check, where a step has no demonstrations, that others do."""
        assert self._source is not None
        optimizer, after = self._learner.optimizer, self.done + 1
        if learned or optimizer.steps or optimizer.skipped:
            return
        if after == self.steps or self._source.all_before(after * self._a_step):
            left_out = self._source.left_out
            raise DataError(
                f"warmup.demonstrations: `solve` gave none for any of {left_out.counts.total()} "
                f"training rows: {left_out.describe()}; {left_out.ways_out()}; or name a file of "
                "demonstrations"
            )

    def _learned_nothing(self) -> dict[str, float]:
        """The metrics of a step without demonstrations."""
        counts = ("tokens/trained", "updates/taken", "updates/skipped")
        skipped = float(self._learner.optimizer.skipped)
        return dict.fromkeys(counts, 0.0) | {"updates/skipped_total": skipped}

    def place(self, step: int) -> dict[str, float]:
        """`warmup/step` of an evaluation that is after a warm-up and before RL's first step."""
        return {"warmup/step": float(self.done)} if self.done and not step else {}

    def beside(self, step: int) -> list[Trajectory]:
        """The demonstrations that a step of RL learns from too: one for each of its rows.

        They are few, so that there may be none for some step.

        Args:
            step: How many steps of RL came before.
        """
        if self._source is None or not self._learner.algorithm.demonstration_weight:
            return []
        return self._source.take(self.steps * self._a_step + step * self._beside, self._beside)


def make_warmup(
    given: Mapping[str, Any] | None,
    trainer: Trained,
    make_env: Callable[[], Any],
    rows: RowSource,
    stopping: Stopping,
    others: Iterable[tuple[Any, Sequence[Row]]] = (),
) -> Warmup:
    """The warm-up that a trainer's keyword asks for.

    Args:
        given: The settings of `WarmupSettings` by name; `demonstrations` may also be a list of
            trajectories with tokens. None: there are no demonstrations.
        trainer: Whose warm-up it is.
        make_env: Makes an environment.
        rows: The training rows.
        stopping: Whether the run is to stop.
        others: Further environments that are evaluated, each with its rows: no demonstration of a
            file or a list may be of these, nor of the trainer's own evaluation rows.

    Raises:
        ConfigError: A setting does not hold, or there is a weight and no demonstrations.
        DataError: There is nothing to learn from.
    """
    weight = trainer.learner.algorithm.demonstration_weight
    check_weight(weight, has_demonstrations=given is not None)
    if given is None:
        return Warmup(None, None, trainer)
    named, listed = given.get("demonstrations"), None
    if isinstance(named, Sequence) and not isinstance(named, str):
        listed, named = named, "a list"
    settings = WarmupSettings.named({**given, "demonstrations": named})
    if not (settings.steps or weight) and trainer.accelerator.is_main_process:
        logger.warning(
            "warmup.steps: is 0, and so is algorithm.demonstration_weight, so nothing learns from "
            "the demonstrations; set one of them, or leave warmup out"
        )
    source: Demonstrations
    if listed is None and settings.demonstrations == SOLVE:
        least = settings.min_reward
        source = SolvedRows(trainer.accelerator, make_env, rows, trainer.seed, least, stopping)
    else:
        held_out = [*(trainer.eval_rows or ()), *(row for _, theirs in others for row in theirs)]
        if listed is None:
            listed = read_for(settings, make_env, held_out)
        listed = without_held_out(checked(listed), held_out, "warmup.demonstrations")
        source = ListedDemonstrations(listed, seed=trainer.seed)
    return Warmup(settings, source, trainer)


def read_for(
    settings: WarmupSettings, make_env: Callable[[], Any], eval_rows: Sequence[Row]
) -> list[Trajectory]:
    """The demonstrations of the file that the settings name, as the environment renders them.

    Raises:
        DataError: There is nothing to learn from.
        ConfigError: The environment has no renderer.
    """
    made = make_env()
    try:
        env = check_environment(made)
        assert env.renderer is not None
        found = read_demonstrations(
            settings.demonstrations,
            env.renderer,
            min_reward=settings.min_reward,
            excluded=eval_rows,
        )
        return fitting(found, shown_path(settings.demonstrations), env.context_length)
    finally:
        made.close()


def checked(trajectories: Sequence[Any]) -> Sequence[Trajectory]:
    """Demonstrations that are given as a list.

    Raises:
        ConfigError: It is empty, or holds something else than trajectories with action tokens.
    """
    if not len(trajectories):
        raise ConfigError("warmup.demonstrations: is empty; give at least one trajectory")
    for number, each in enumerate(trajectories):
        if not isinstance(each, Trajectory) or not each.action_tokens:
            raise ConfigError(
                f"warmup.demonstrations: entry {number} must be a Trajectory with action tokens, "
                f"got {each!r:.100}; with_tokens and trajectory_of of "
                "gymnast.trainers.demonstrations.layout make them"
            )
    return trajectories
