"""What a config passes to an environment's constructor: names it takes, a context that fits."""

from collections.abc import Iterable
from typing import Any

from gymnast.envs import Environment
from gymnast.envs.registry import check_constructor, check_names, setting_names
from gymnast.errors import ConfigError
from gymnast.hints import nearest
from gymnast.trainers.base.key_hints import meant_elsewhere
from gymnast.trainers.config.sections import run_keys
from gymnast.trainers.config.task_sections import EnvironmentSection


def check_settings(cls: type[Environment], settings: Iterable[str], place: str) -> None:
    """Check that an environment's constructor can be called, and takes settings of these names.

    Args:
        cls: The environment.
        settings: Their names.
        place: Its section in the config, for the message.

    Raises:
        UsageError: It cannot be called.
        ConfigError: It takes no such setting.
    """
    check_constructor(cls)
    known = setting_names(cls) or [*settings]
    for name in settings:
        meant = "" if name in known or nearest(name, known) else meant_elsewhere(name, run_keys())
        if meant:
            raise ConfigError(f"{place}: {cls.__name__} has no setting {name!r}; {meant}")
    try:
        check_names(cls, settings)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def limited_settings(
    section: EnvironmentSection, place: str, model: str, model_context_length: int
) -> dict[str, Any]:
    """What an environment's constructor gets, with a context that the model has.

    Args:
        section: The environment's.
        place: Where it is in the config, for the message.
        model: The model's name, for the message.
        model_context_length: How many tokens the model was made for.

    Raises:
        ConfigError: The context is longer than the model's.
    """
    settings = section.settings
    longest = settings.setdefault("context_length", model_context_length)
    if longest > model_context_length:
        raise ConfigError(
            f"{place}.context_length: must be <= {model_context_length}, the context "
            f"that {model} was made for, got {longest}"
        )
    return settings
