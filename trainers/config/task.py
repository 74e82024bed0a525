"""What a run plays: its environment, its training rows, and what its evaluations play.

Everything is made and tried here before any weights are loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gymnast.trainers.config.environments import (
    MakeEnvironment,
    environment_maker,
    find_wrappers,
    make_renderer,
    place_of,
    wrapped,
)
from gymnast.trainers.config.mixtures import prepare_mixture
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task_rows import (
    evaluation_environment,
    row_sampler,
    rows_to_try,
    split_rows,
    try_rows,
    try_wrapped,
)
from gymnast.trainers.config.worked_rows import has_rows, with_worked_rows
from gymnast.trainers.data.rows import Row, RowSource, Split
from gymnast.trainers.data.step_rows import step_rows
from gymnast.trainers.evaluation.evaluation import EvaluationEnvironment
from gymnast.trainers.evaluation.tags import check_tags, tag_expressions

ChooseRows = Callable[[RunConfig, MakeEnvironment, Sequence[Row]], Split]


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


def prepare_task(
    config: RunConfig,
    tokenizer: Any,
    model_context_length: int | None,
    choose_rows: ChooseRows = split_rows,
) -> RunTask:
    """Make the environments and the rows of a run, and try them.

    Args:
        config: The run.
        tokenizer: The model's.
        model_context_length: How many tokens the model was made for; None: any number.
        choose_rows: `evaluated_rows` where nothing is trained; a mixture always has both.

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
        others[name] = evaluation_environment(config, name, maker(section, place_of(name)))
    excluded = [row for other in others.values() for row in other.rows]
    if config.environment.mixture:
        make_env, rows = prepare_mixture(config, maker, excluded)
    else:
        make_env = maker(config.environment, "environment")
        make_env, rows = _prepare_alone(
            config, make_env, choose_rows(config, make_env, excluded), excluded
        )
    if wrappers := find_wrappers(config.environment):
        make_env = wrapped(make_env, wrappers)
        try_wrapped(make_env, rows_to_try(rows.training), "environment.wrappers")
    settings = config.trainer
    step_rows(rows.training, settings, settings.rows_per_step, config.seed, "trainer.")  # checks
    row_sets = [rows.evaluation, *(other.rows for other in others.values())]
    check_tags(row_sets, tag_expressions(config.evaluation.by))
    return RunTask(make_env, rows.training, rows.evaluation, others)


def _prepare_alone(
    config: RunConfig, make_env: MakeEnvironment, rows: Split, excluded: Sequence[Row]
) -> tuple[MakeEnvironment, Split]:
    """The one environment of a run and its rows, of which one is tried."""
    env = make_env()
    own_kind = config.data is not None and has_rows(type(env))  # which its `solve` surely knows
    make_env = with_worked_rows(
        make_env,
        row_sampler(env) if own_kind else rows.training,
        [*rows.evaluation, *excluded],
        place="environment",
    )
    try_rows(config, make_env, rows)
    return make_env, rows
