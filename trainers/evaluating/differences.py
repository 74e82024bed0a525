"""Settings in which the configs of two evaluations differ, where they are compared."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gymnast.envs.registry import built_in_default
from gymnast.trainers.config.sections import RunConfig

OF_TRAINING = ("algorithm", "sampling", "trackers", "trainer", "warmup")


class Default(NamedTuple):
    """What holds where a setting is left out."""

    value: Any

    def __str__(self) -> str:
        return f"{self.value} (default)"


class Difference(NamedTuple):
    """A setting that two configs have with different values.

    Attributes:
        key: Its name, with dots.
        first: Its value in the first one; None where it is not set, and `Default` where it is not
            and what holds then is known.
        second: Its value in the second one, likewise.
    """

    key: str
    first: Any
    second: Any


def differences(first: RunConfig, second: RunConfig, *, trained: bool) -> list[Difference]:
    """What differs, those settings first that say how episodes are played; not `output_dir`.

    Args:
        first: The config of the one.
        second: That of the other.
        trained: Whether both are of runs; that of an evaluation on its own does not say how its
            model was trained, and those settings are left out.
    """
    ours, theirs = _settings(first, trained), _settings(second, trained)
    found = (
        Difference(key, _value(ours, key, first), _value(theirs, key, second))
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    )
    return [each for each in found if _without_default(each.first) != _without_default(each.second)]


def _value(settings: Mapping[str, Any], key: str, config: RunConfig) -> Any:
    """A setting, or what holds where it is left out."""
    section, _, name = key.partition(".")
    if key in settings or section != "environment":
        return settings.get(key)
    default = built_in_default(config.environment.id, name)
    return None if default is None else Default(default)


def _without_default(value: Any) -> Any:
    return value.value if isinstance(value, Default) else value


def _settings(config: RunConfig, trained: bool) -> dict[str, Any]:
    """The settings by their dotted names; evaluation has what it takes over from `sampling`."""
    sampled = config.evaluation.sampling(config.sampling.model_dump())
    played = {f"environment.{name}": v for name, v in config.environment.settings.items()}
    played |= {f"evaluation.{name}": value for name, value in sampled.items()}
    left_out = {"output_dir", *(() if trained else OF_TRAINING)}
    sections = {k: v for k, v in config.model_dump().items() if k not in left_out}
    flat = played | {k: v for k, v in _flat(sections, "").items() if k not in played}
    return {key: value for key, value in flat.items() if value is not None}


def _flat(settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
