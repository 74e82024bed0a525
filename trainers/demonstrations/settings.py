"""The settings of a warm-up, and of the demonstrations that it learns from."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ValidationError

from gymnast.errors import ConfigError
from gymnast.trainers.base.config_errors import sentences
from gymnast.trainers.base.settings import Count, Number, Positive, PositiveNumber, Settings, Text
from gymnast.trainers.data.input_paths import DEMONSTRATIONS

SOLVE = "solve"


class WarmupSettings(Settings):
    """Demonstrations, and the steps that learn from them alone, before the first rollout."""

    @classmethod
    def named(cls, given: Mapping[str, Any]) -> Self:
        """These settings by name, as `Trainer(warmup=...)` takes them.

        Raises:
            ConfigError: A value does not hold; one line each.
        """
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            lines = [f"warmup.{line}" for line in sentences(error, cls)]
            raise ConfigError("\n".join(lines)) from error

    demonstrations: Annotated[Text, DEMONSTRATIONS]
    """`solve`: the environment's `solve` plays training rows. Or a file: of `gymnast demos`, or
    .jsonl with `{"messages": [...], "tools": [...]}` in each line."""
    steps: Count = 20
    """How many optimisation steps, each on other demonstrations; 0 learns from them only beside RL
    (`algorithm.demonstration_weight`)."""
    rows_per_step: Positive | None = None
    """Demonstrations a step, over all processes; as many as a step has episodes when left out."""
    learning_rate: PositiveNumber | None = None
    """The learning rate of all weights in these steps; that of `trainer` when left out. It is not
    scheduled."""
    min_reward: Number = 1.0
    """Demonstrations with a lower reward are left out. It does not apply to a .jsonl, which has no
    rewards."""


def check_min_reward(value: float, name: str) -> None:
    """Check a lowest reward as `warmup.min_reward` is checked.

    Args:
        value: The lowest reward.
        name: Of the option that gives it.

    Raises:
        ConfigError: It is NaN or infinite.
    """
    if not math.isfinite(value):
        raise ConfigError(f"{name}: must be a finite number, got {value}")


def check_weight(weight: float, *, has_demonstrations: bool) -> None:
    """Check that there is something for `algorithm.demonstration_weight` to weigh.

    Raises:
        ConfigError: There is not.
    """
    if weight and not has_demonstrations:
        raise ConfigError(
            f"algorithm.demonstration_weight: is {weight:g}, and there are no demonstrations; set "
            "warmup.demonstrations to a file or to solve (with warmup.steps: 0 they are learned "
            "from beside RL alone)"
        )
