"""A run's YAML file: read with overrides from the command line, written to the run's folder.

`trainers/config/sections.py` says what the keys mean, `trainers/config/yaml_reader.py` reads the
text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gymnast.errors import ConfigError, NewerFormat
from gymnast.trainers.base.config_errors import sentences
from gymnast.trainers.base.formats import CONFIG, KEY, unreadable_format
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.yaml_reader import read_yaml, with_overrides
from gymnast.trainers.data.input_paths import Misplaced, absolute, located, shown_path
from gymnast.trainers.saving.durable import write_text


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read and check a run's YAML.

    Args:
        path: The file. Inputs that it names are looked for in its folder.
        overrides: `dotted.key=value`, such as `trainer.steps=3`; values are read as YAML. Inputs
            that they name are looked for in the working folder.

    Returns:
        The run, its inputs as absolute paths; `output_dir` is relative to the working folder.

    Raises:
        ConfigError: A key or a value does not hold; one line each.
        NewerFormat: A later version of Gymnast has written it.
    """
    file = absolute(path, Path.cwd())
    misplaced: Misplaced = {}
    read = read_yaml(path)
    if problem := unreadable_format(str(path), read.pop(KEY, None), CONFIG):
        raise NewerFormat(problem)
    written = located(read, RunConfig, file.parent, misplaced)
    settings = with_overrides(written, overrides, read=_from_command_line)
    if settings.get("output_dir") is None:
        settings["output_dir"] = f"runs/{file.stem}"
    _check_misplaced(misplaced, written, settings, shown_path(file))
    return parse_config(settings)


def _from_command_line(names: Sequence[str], value: Any) -> Any:
    """The value of an override; inputs that it names are located in the working folder."""
    for name in reversed(names):
        value = {name: value}
    value = located(value, RunConfig, Path.cwd())
    for name in names:
        value = value[name]
    return value


def _check_misplaced(misplaced: Misplaced, written: Any, settings: Any, yaml: str) -> None:
    """Refuse inputs that exist in the working folder but not beside the YAML, unless overridden."""
    lines = [
        f"{place}: {given} is looked for beside {yaml}, but is only in the working folder; "
        f"write {there} in the YAML, or {place}={given} on the command line"
        for place, (given, there) in misplaced.items()
        if _at(settings, place) == _at(written, place)
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def _at(settings: Any, place: str) -> Any:
    for name in place.split("."):
        if not isinstance(settings, dict) or name not in settings:
            break
        settings = settings[name]
    return settings


def parse_config(settings: dict[str, Any]) -> RunConfig:
    """Check settings that are plain dicts; an empty section (None) counts as left out.

    Inputs that they name are looked for in the working folder.

    Raises:
        ConfigError: A key or a value does not hold; one line each.
    """
    settings = located(settings, RunConfig, Path.cwd())
    try:
        given = {key: value for key, value in settings.items() if value is not None}
        return RunConfig.model_validate(given)
    except ValidationError as error:
        raise ConfigError("\n".join(sentences(error, RunConfig))) from error


def save_config(config: RunConfig, path: str | Path) -> None:
    """Write a config as YAML that `load_config` reads back as the same from any folder."""
    dumped = config.model_dump(mode="json", exclude_none=True)
    # To a backend, null is not what it does without a setting: `api_key_env: null`.
    dumped["agent"] = config.agent.model_dump(mode="json")
    settings = located(dumped, RunConfig, Path.cwd())
    if config.output_dir is not None:
        settings["output_dir"] = str(absolute(config.output_dir, Path.cwd()))
    text = yaml.safe_dump({KEY: CONFIG, **settings}, sort_keys=False, allow_unicode=True, width=100)
    write_text(Path(path), text)
