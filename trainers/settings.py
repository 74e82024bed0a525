"""All settings of a trainer, as its keywords give them; each class is declared in its room."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from gymnast.errors import ConfigError
from gymnast.trainers.base.settings import GroupSettings, RunSettings, StepSettings
from gymnast.trainers.data.settings import RowSettings
from gymnast.trainers.evaluation.settings import EvaluationSettings
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.trainers.rollouts.limits import RolloutLimits
from gymnast.trainers.saving.settings import RolloutKeeping, SavingSettings


class TrainerSettings(NamedTuple):
    """The settings of `gymnast.trainers.Trainer`."""

    steps: StepSettings
    group: GroupSettings
    rows: RowSettings
    learning: LearnerSettings
    rollouts: RolloutLimits
    evaluation: EvaluationSettings
    saving: SavingSettings
    kept: RolloutKeeping
    run: RunSettings

    @classmethod
    def collect(cls, keywords: Mapping[str, Any]) -> Self:
        """The settings among keywords of `Trainer`; others are ignored.

        Raises:
            ConfigError: Values do not hold; one line each.
        """
        settings, errors = [], []
        for kind in cls.__annotations__.values():
            try:
                settings.append(kind.collect(keywords))
            except ConfigError as error:
                errors.append(str(error))
        if errors:
            raise ConfigError("\n".join(errors))
        return cls(*settings)
