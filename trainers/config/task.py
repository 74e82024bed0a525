"""What a run plays: its environment, its training rows, and what its evaluations play.

Everything is made and tried here before any weights are loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gymnast.envs import Environment
from gymnast.errors import ConfigError, DataError
from gymnast.trainers.config.environments import (
    ROWS_TRIED,
    MakeEnvironment,
    check_rows,
    environment_maker,
    has_rows,
    make_renderer,
    no_rows,
    place_of,
    row_sampler,
    try_an_episode,
)
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task_sections import (
    DataSection,
    EvaluationEnvironmentSection,
    EvaluationSection,
)
from gymnast.trainers.data.row_files import load_rows
from gymnast.trainers.data.rows import (
    DatasetRows,
    Row,
    RowSource,
    Split,
    choose,
    sample_distinct,
    split_dataset,
    split_sampled,
)
from gymnast.trainers.evaluation.evaluation import EvaluationEnvironment
from gymnast.trainers.evaluation.tags import check_tags, tag_expressions


@dataclass(frozen=True)
class RunTask:
    """What a run plays.

    Attributes:
        make_env: Makes an environment; all share one renderer.
        training_rows: What is trained on; no evaluation row is among them.
        evaluation_rows: What evaluations play in the same environment.
        evaluation_environments: Further environments to evaluate in, by name, with their rows.
    """

    make_env: MakeEnvironment
    training_rows: RowSource
    evaluation_rows: list[Row]
    evaluation_environments: Mapping[str, EvaluationEnvironment]


def prepare_task(config: RunConfig, tokenizer: Any, model_context_length: int) -> RunTask:
    """Make the environments and the rows of a run, and try them.

    Args:
        config: The run.
        tokenizer: The model's.
        model_context_length: How many tokens the model was made for.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: A setting does not hold.
        DataError: The rows cannot be read, or lack what the environment needs.
        TemplateError: The chat template cannot be followed.
        UserCodeError: The environment's own code raised.
    """
    maker = partial(
        environment_maker,
        model=config.model,
        renderer=make_renderer(config.model, tokenizer),
        model_context_length=model_context_length,
    )
    others: dict[str, EvaluationEnvironment] = {}
    for name, section in config.evaluation.environments.items():
        make_other = maker(section, name)
        others[name] = _evaluation_environment(name, section, config.evaluation, make_other)
    make_env = maker(config.environment, None)
    rows = _split(config, make_env, [row for other in others.values() for row in other.rows])
    row_sets = [rows.evaluation, *(other.rows for other in others.values())]
    check_tags(row_sets, tag_expressions(config.evaluation.by))
    return RunTask(make_env, rows.training, rows.evaluation, others)


def _split(config: RunConfig, make_env: MakeEnvironment, excluded: Sequence[Row]) -> Split:
    """The rows of the run's own environment, tried.

    Args:
        config: The run.
        make_env: Makes the environment.
        excluded: The rows of further environments, which are not trained on either.
    """
    data = config.data
    if data is None:
        rows = _split_own(make_env(), config.evaluation, config.seed, excluded)
    else:
        training, evaluation = _load(data, make_env())
        rows = _split_data(training, evaluation, config.evaluation, config.seed, excluded)
    source = config.environment.id if data is None else data.train
    try_an_episode(make_env, (rows.training.row(i) for i in range(ROWS_TRIED)), source)
    if data is not None and data.evaluation is not None and rows.evaluation:
        try_an_episode(make_env, iter(rows.evaluation), data.evaluation)
    return rows


def _load(data: DataSection, env: Environment) -> tuple[Sequence[Row], Sequence[Row] | None]:
    """The rows to train on, and those to evaluate with where a config names them."""
    load = partial(
        load_rows, columns=data.columns, keep_columns=data.keep_columns, subset=data.subset
    )
    training = load(data.train, split=data.split)
    evaluation = None
    if data.evaluation is not None:
        evaluation = load(data.evaluation, split=data.evaluation_split)
    check_rows(training, env, data.train)
    check_rows(evaluation or (), env, str(data.evaluation))
    return training, evaluation


def _split_data(
    training: Sequence[Row],
    evaluation: Sequence[Row] | None,
    section: EvaluationSection,
    seed: int,
    excluded: Sequence[Row],
) -> Split:
    if evaluation is None:
        return split_dataset(
            training,
            section.rows or 0,
            seed=seed,
            evaluation_seed=section.seed,
            excluded=excluded,
        )
    count = len(evaluation) if section.rows is None else section.rows
    chosen = choose(evaluation, count, seed=section.seed)
    return Split(DatasetRows(training, seed=seed, excluded=[*chosen, *excluded]), chosen)


def _split_own(
    env: Environment, section: EvaluationSection, seed: int, excluded: Sequence[Row]
) -> Split:
    """Split the environment's own rows: made by its `sample_row`, or the list it has."""
    count, own_seed = section.rows or 0, section.seed
    if has_rows(type(env)):
        return split_sampled(
            row_sampler(env), count, seed=seed, evaluation_seed=own_seed, excluded=excluded
        )
    if env.rows is None:
        raise no_rows(env, "data.train")
    return split_dataset(env.rows, count, seed=seed, evaluation_seed=own_seed, excluded=excluded)


def _evaluation_environment(
    name: str,
    section: EvaluationEnvironmentSection,
    evaluation: EvaluationSection,
    make_env: MakeEnvironment,
) -> EvaluationEnvironment:
    """A further environment with its rows in a seeded order, one of which is tried."""
    place, env = place_of(name), make_env()
    if section.data is None and has_rows(type(env)):
        count = section.rows or evaluation.rows
        if count is None:
            raise ConfigError(
                f"{place}.rows: is required where evaluation.rows is not set; say how many rows "
                "the environment is to make, such as 128"
            )
        sample_row = row_sampler(env)
        rows = sample_distinct(sample_row, count, seed=evaluation.seed, key=f"{place}.rows")
    else:
        own, source = _rows_of(section, place, env)
        count = section.rows or len(own)
        rows = choose(own, count, seed=evaluation.seed, key=f"{place}.rows", source=source)
    try_an_episode(make_env, iter(rows), place)
    return EvaluationEnvironment(make_env, rows)


def _rows_of(
    section: EvaluationEnvironmentSection, place: str, env: Environment
) -> tuple[Sequence[Row], str]:
    """All rows of a further environment that does not make them, and where they come from."""
    if section.data is None:
        if env.rows is None:
            raise no_rows(env, f"{place}.data")
        return env.rows, section.id
    try:
        rows = load_rows(section.data, columns=section.columns, keep_columns=section.keep_columns)
        check_rows(rows, env, section.data)
    except DataError as error:
        raise DataError(f"{place}.data: {error}") from error
    return rows, f"{place}.data"
