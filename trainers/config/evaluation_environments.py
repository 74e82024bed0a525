"""What a config's `evaluation.environments` stands for, tried before any training.

Each has a section like the run's `environment`, and rows of its own: made by it, or from `data`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from gymnast.envs import Environment, make
from gymnast.envs.registry import find
from gymnast.errors import ConfigError, DataError, UnknownEnvironment
from gymnast.trainers.config.environment_settings import check_settings, limited_settings
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task import (
    check_rows,
    has_rows,
    make_renderer,
    row_sampler,
    try_an_episode,
)
from gymnast.trainers.config.task_sections import (
    EvaluationEnvironmentSection,
    EvaluationSection,
)
from gymnast.trainers.data.row_files import load_rows
from gymnast.trainers.data.rows import Row, choose, sample_distinct
from gymnast.trainers.evaluation.evaluation import HeldOut


def check_evaluation_environments(config: RunConfig) -> None:
    """Find each environment's class and check the names of its settings, which needs no model.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: It takes no such setting, or has no rows.
        ToolDefinitionError: One of its tools cannot be described.
    """
    for name, section in config.evaluation.environments.items():
        _find(name, section)


def prepare_evaluation_environments(
    config: RunConfig, tokenizer: Any, model_context_length: int
) -> dict[str, HeldOut]:
    """Make the environments and their rows, and try one row of each.

    Args:
        config: The run.
        tokenizer: The model's.
        model_context_length: How many tokens the model was made for.

    Raises:
        ConfigError: A setting does not hold.
        DataError: The rows cannot be read, or lack what the environment needs.
        UserCodeError: The environment's own code raised.
    """
    found: dict[str, HeldOut] = {}
    sections = config.evaluation.environments
    renderer = make_renderer(config.model, tokenizer) if sections else None
    for name, section in sections.items():
        place = _place(name)
        cls = _find(name, section)
        settings = limited_settings(section, place, config.model.name, model_context_length)

        def make_env(
            cls: type[Environment] = cls, settings: dict[str, Any] = settings
        ) -> Environment:
            return make(cls, renderer, **settings)

        rows = _rows(place, section, config.evaluation, make_env)
        try_an_episode(make_env, iter(rows), place)
        found[name] = HeldOut(make_env, rows)
    return found


def _place(name: str) -> str:
    return f"evaluation.environments.{name}"


def _find(name: str, section: EvaluationEnvironmentSection) -> type[Environment]:
    try:
        cls = find(section.id)
    except UnknownEnvironment as error:
        raise UnknownEnvironment(f"{_place(name)}: {error}") from error
    check_settings(cls, section.settings, _place(name))
    return cls


def _rows(
    place: str,
    section: EvaluationEnvironmentSection,
    evaluation: EvaluationSection,
    make_env: Callable[[], Environment],
) -> list[Row]:
    """Its held-out rows, in a seeded order."""
    env = make_env()
    if section.data is None and has_rows(type(env)):
        count = section.rows or evaluation.rows
        if count is None:
            raise ConfigError(
                f"{place}.rows: is required where evaluation.rows is not set; say how many rows "
                "the environment is to make, such as 128"
            )
        sample = row_sampler(env)
        return sample_distinct(sample, count, seed=evaluation.seed, place=f"{place}.rows")
    own, source = _loaded(place, section, env)
    count = section.rows or len(own)
    return choose(own, count, seed=evaluation.seed, place=f"{place}.rows", source=source)


def _loaded(
    place: str, section: EvaluationEnvironmentSection, env: Environment
) -> tuple[Sequence[Row], str]:
    """All rows that there are, and what they are of."""
    if section.data is None:
        if env.rows is None:
            raise ConfigError(
                f"{place}.data: is required: {type(env).__name__} makes no rows of its own (it has "
                "neither sample_row nor rows); name a file or a hub dataset"
            )
        return env.rows, section.id
    try:
        rows = load_rows(section.data, columns=section.columns, keep_columns=section.keep_columns)
        check_rows(rows, env, section.data)
    except DataError as error:
        raise DataError(f"{place}.data: {error}") from error
    return rows, f"{place}.data"
