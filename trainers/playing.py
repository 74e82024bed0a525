"""Which way a run's steps come to their episodes, by its settings."""

from functools import partial
from typing import Protocol

from gymnast.trainers.ahead.ahead import Ahead
from gymnast.trainers.ahead.in_turn import InTurn, Playing
from gymnast.trainers.data.rows import RowSource
from gymnast.trainers.data.step_rows import step_rows
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.trainers.rollouts.shared import SharedRollouts
from gymnast.trainers.settings import TrainerSettings


class Steps(Protocol):
    """What is known of `gymnast.trainers.Trainer`."""

    step: int
    steps: int


def make_playing(
    trainer: Steps,
    settings: TrainerSettings,
    played: RolloutSettings,
    shared: SharedRollouts,
    source: RowSource,
) -> Playing:
    """What plays the episodes of a run's steps.

    Args:
        trainer: Whose steps they are.
        settings: All of them.
        played: How the episodes of all steps are played.
        shared: Plays rows in all processes.
        source: Of the training rows.

    Raises:
        ConfigError: Settings do not go together, or not with the rows.
    """
    staleness, rows_per_step = settings.staleness, settings.steps.rows_per_step
    rows = step_rows(source, settings.rows, rows_per_step, settings.run.seed)
    of_step = partial(settings.of_step, played)
    staleness.check(
        shared.agent,
        deterministic=settings.run.deterministic,
        curriculum=settings.rows.curriculum is not None,
    )
    if not staleness.max_staleness:
        return InTurn(shared, rows, rows_per_step, of_step)
    return Ahead(
        *(shared, source, rows_per_step, rows.most, of_step, staleness),
        steps_left=lambda: trainer.steps - trainer.step,
        seed=settings.run.seed,
    )
