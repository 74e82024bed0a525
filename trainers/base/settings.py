"""Settings: each is declared once, in the class of its room, for Python and for YAML alike.

`LearnerSettings` (`trainers/learner/settings.py`) is such a class. It declares a setting's name,
type, range and default in one line, and what it means in the docstring below that line. `Trainer`
collects its keywords into these classes, the sections of a run's YAML inherit from them
(`trainers/config/sections.py`), and the docstring of `Trainer` and docs/reference/keys.md
are made of them. They are pydantic models, frozen like dataclasses, because then a section needs
nothing but to inherit.

To add a setting, declare it in the class of its room and add the keyword to `Trainer`, under the
same name after the class's `prefix`: `every_steps` of `EvaluationSettings` is `eval_every_steps`.
tests/trainers/test_settings.py compares the two, and
`python docs/generate.py` writes the page, with the example in docs/key_examples.txt.
"""

import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Annotated, Any, ClassVar, Self, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from gymnast.errors import ConfigError
from gymnast.trainers.base.config_errors import sentences
from gymnast.types import Sampling

T = TypeVar("T")


def _whole(value: Any) -> Any:
    """1e3 is a float in YAML, and a whole number all the same."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _auto_as_none(value: Any) -> Any:
    """Return None for "auto": the run chooses the number itself."""
    return None if value == "auto" else value


def _path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


Integer = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Integer, Field(ge=0)]
Positive = Annotated[Integer, Field(ge=1)]
AutoPositive = Annotated[Positive | None, BeforeValidator(_auto_as_none)]
Number = Annotated[float, Field(allow_inf_nan=False)]
PositiveNumber = Annotated[Number, Field(gt=0)]
AutoPositiveNumber = Annotated[PositiveNumber | None, BeforeValidator(_auto_as_none)]
Limit = Annotated[float, Field(gt=0)]  # infinity is none
Text = Annotated[str, Field(min_length=1)]
Folder = Annotated[Text, BeforeValidator(_path_text)]


class Settings(BaseModel):
    """Settings that belong together: no unknown names, no value taken for another type."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )

    prefix: ClassVar[str] = ""
    """What precedes these names among the keywords of `Trainer`."""

    @field_validator("*", mode="before")
    @classmethod
    def _numpy_as_python(cls, value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else value

    @classmethod
    def collect(cls, keywords: Mapping[str, Any]) -> Self:
        """The settings of this class among keywords of `Trainer`.

        Raises:
            ConfigError: A value does not hold; one line each.
        """
        names = {name: cls.prefix + name for name in cls.model_fields}
        given = {name: keywords[flat] for name, flat in names.items() if flat in keywords}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            lines = [cls.prefix + line for line in sentences(error, cls)]
            raise ConfigError("\n".join(lines)) from error

    @classmethod
    def keywords(cls, section: "Settings") -> dict[str, Any]:
        """Keywords of `Trainer` from a YAML's section: the reverse of `collect`."""
        return {cls.prefix + name: getattr(section, name) for name in cls.model_fields}


def documented(settings: Iterable[type[Settings]]) -> Callable[[type[T]], type[T]]:
    """A class decorator: the class's docstring gets the meanings of settings, before `Raises:`."""
    lines = [
        textwrap.fill(
            f"{cls.prefix}{name}: {' '.join(str(field.description).split())}",
            width=100,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
        )
        for cls in settings
        for name, field in cls.model_fields.items()
    ]

    def add(owner: type[T]) -> type[T]:
        arguments, raises, errors = (owner.__doc__ or "").partition("\n\n    Raises:")
        owner.__doc__ = "\n".join([arguments, *lines]) + raises + errors
        return owner

    return add


class StepSettings(Settings):
    """How far a run goes, and in what steps."""

    steps: Positive = 100
    """How many optimisation steps the run takes."""
    rows_per_step: Positive = 8
    """Rows per step, over all processes."""


class GroupSettings(Settings):
    """The group: the episodes of one row."""

    group_size: Positive = 8
    """Episodes per row; at least 2 where the estimator compares them with one another."""


class RunSettings(Settings):
    """What holds for the whole run."""

    seed: Integer = 0
    """Seeds everything drawn at random. `train` seeds the global generators of Python, NumPy and
    torch too, from which environments, rewards and losses may draw."""
    deterministic: bool = False
    """Sample in rounds (`trainers/rollouts/rounds.py`), so that a seeded run repeats bit for bit,
    unless `rollout_deadline_s` cuts it. Slower where tools are slow."""
    output_dir: Folder | None = None
    """The run's folder, for metrics, rollouts, checkpoints and the model. Without one nothing is
    written; a YAML without one, NAME.yaml, gets runs/NAME."""


# Above this, a few of AdamW's steps are longer than most weights.
HIGHEST_LEARNING_RATE = 0.01
# Below this, adapters do not learn in a run of usual length.
LOWEST_ADAPTER_LEARNING_RATE = 5e-6


def check_numbers(**settings: float) -> None:
    """Each setting must be a number, NumPy's included."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigError(f"{name}: must be a number, got {value!r:.100}")


def unusual(
    learning_rate: float,
    rows_per_step: int,
    rows: int | None,
    adapter_learning_rate: float | None = None,
) -> list[str]:
    """Sentences about settings that are valid but hardly intended.

    Args:
        learning_rate: Of the optimizer.
        rows_per_step: Over all processes.
        rows: How many there are to train on; None where they are made without end.
        adapter_learning_rate: That of adapters; None where there are none.
    """
    found = []
    if adapter_learning_rate is not None and adapter_learning_rate < LOWEST_ADAPTER_LEARNING_RATE:
        found.append(
            f"learning_rate: {adapter_learning_rate:g} is far below what adapters learn with (1e-5 "
            "to 1e-3); raise it, or set adapter_learning_rate"
        )
    if learning_rate > HIGHEST_LEARNING_RATE:
        found.append(
            f"learning_rate: {learning_rate:g} is far above what language models learn with (1e-6 "
            "to 1e-5 for all weights, 1e-5 to 1e-3 for adapters); lower it, or the first steps "
            "destroy the model"
        )
    if rows is not None and rows_per_step > rows:
        found.append(
            f"rows_per_step: {rows_per_step} is more than the {rows} training rows, so a step has "
            f"each row up to {-(-rows_per_step // rows)} times; lower it, or give more rows"
        )
    return found


def check_at_least(least: int, **settings: float) -> None:
    """Each setting must reach this."""
    check_numbers(**settings)
    for name, value in settings.items():
        if value < least:
            raise ConfigError(f"{name}: must be >= {least}, got {value}")


def check_positive(**settings: float) -> None:
    """Each setting must be above zero."""
    check_numbers(**settings)
    for name, value in settings.items():
        if not value > 0:
            raise ConfigError(f"{name}: must be > 0, got {value}")


def check_one_of(known: Sequence[str], **settings: str) -> None:
    """Each setting must be one of these."""
    for name, value in settings.items():
        if value not in known:
            raise ConfigError(f"{name}: must be one of {', '.join(known)}, got {value!r}")


def check_sampling(sampling: Sampling) -> None:
    """The loss needs the probability of each token under the distribution it was drawn from."""
    if sampling.temperature == 0:
        raise ConfigError(
            "sampling.temperature: must be > 0 while training, got 0: greedy episodes of one row "
            "are all alike. For greedy evaluation set evaluation.temperature."
        )
    for name in ("top_p", "top_k", "min_p", "repetition_penalty"):
        given, neutral = getattr(sampling, name), getattr(Sampling(), name)
        if given != neutral:
            raise ConfigError(
                f"sampling.{name}: must be {neutral} while training, got {given}: the loss would "
                "compare probabilities of the filtered distribution with those of the whole one. "
                f"For evaluation alone set evaluation.{name}."
            )
