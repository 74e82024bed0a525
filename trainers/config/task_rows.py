"""The rows of a run's environments: loaded or made, checked, split, and one of them tried.

One episode is driven with each environment (a prompt, then an empty answer), so that a missing
column, a reward with a typo or a prompt that never fits comes to light before a model's weights are
loaded.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from gymnast.envs import Environment, Mixture
from gymnast.envs.composed import has_own
from gymnast.errors import (
    ConfigError,
    DataError,
    GymnastError,
    PromptTooLong,
    UserCodeError,
    shown,
)
from gymnast.numbers import is_finite
from gymnast.threads import run_blocking
from gymnast.trainers.config.environments import MakeEnvironment, place_of
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task_sections import (
    DataSection,
    EvaluationEnvironmentSection,
    EvaluationSection,
    MixtureEntry,
)
from gymnast.trainers.config.worked_rows import has_rows, with_worked_rows
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.data.row_checks import check_rows
from gymnast.trainers.data.row_files import load_rows
from gymnast.trainers.data.rows import (
    DatasetRows,
    Row,
    RowSource,
    SampledRows,
    SampleRow,
    Split,
    choose,
    sample_distinct,
    split_dataset,
    split_sampled,
)
from gymnast.trainers.evaluation.evaluation import EvaluationEnvironment

# How many rows are tried for one whose prompt fits.
ROWS_TRIED = 20
# How many rows of an environment are evaluated where nothing says, if it has so many.
ROWS_EVALUATED = 64


def split_rows(config: RunConfig, make_env: MakeEnvironment, excluded: Sequence[Row]) -> Split:
    """The training and evaluation rows of the run's own environment.

    Args:
        config: The run.
        make_env: Makes the environment.
        excluded: The rows of further environments, which are not trained on either.

    Raises:
        ConfigError: There are no rows.
        DataError: The rows cannot be read, or lack what the environment needs.
        UserCodeError: The environment's own code raised.
    """
    data = config.data
    if data is None:
        return split_own(
            make_env(),
            None,
            config.evaluation.rows or 0,
            seed=config.seed,
            evaluation_seed=config.evaluation.seed,
            excluded=excluded,
        )
    training, evaluation = _load(data, make_env())
    return _split_data(training, evaluation, config.evaluation, config.seed, excluded)


def evaluated_rows(config: RunConfig, make_env: MakeEnvironment, excluded: Sequence[Row]) -> Split:
    """What `split_rows` gives where nothing is trained: all there is may be evaluated.

    The evaluation rows are those that a run with this config holds out. Where it has none left to
    train on, its training rows are those that are evaluated.

    Args:
        config: The run. Without `evaluation.rows`, all rows of its data are evaluated, or
            `ROWS_EVALUATED` of the environment's own.
        make_env: Makes the environment.
        excluded: The rows of further environments.

    Raises:
        ConfigError: There are no rows.
        DataError: The rows cannot be read, lack what the environment needs, or are too few.
        UserCodeError: The environment's own code raised.
    """
    env, data, wanted = make_env(), config.data, config.evaluation.rows
    own: SampleRow | Sequence[Row]
    if data is not None:
        own, evaluation = _load(data, env)
        rows, source = (own, data.train) if evaluation is None else (evaluation, data.evaluation)
        count = len(rows) if wanted is None else wanted
    elif has_rows(type(env)):
        own = row_sampler(env)
        chosen = sample_distinct(own, wanted or ROWS_EVALUATED, seed=config.evaluation.seed)
        return Split(_not_evaluated(own, config.seed, [*chosen, *excluded]), chosen)
    elif env.rows is not None:
        own, rows, source = env.rows, env.rows, config.environment.named
        count = wanted or min(ROWS_EVALUATED, len(rows))
    else:
        raise _no_rows(env, "data.train")
    chosen = choose(rows, count, seed=config.evaluation.seed, source=shown_path(str(source)))
    return Split(_not_evaluated(own, config.seed, [*chosen, *excluded]), chosen)


def _not_evaluated(
    own: SampleRow | Sequence[Row], seed: int, evaluated: Sequence[Row]
) -> RowSource:
    """The rows that are not evaluated, or all where none is left."""
    try:
        if not callable(own):
            return DatasetRows(own, seed=seed, excluded=evaluated)
        source = SampledRows(own, seed=seed, excluded=evaluated)
        source.row(0)
        return source
    except DataError:
        return SampledRows(own, seed=seed) if callable(own) else DatasetRows(own, seed=seed)


def try_rows(config: RunConfig, make_env: MakeEnvironment, rows: Split) -> None:
    """Drive an episode on a row of the run's own environment.

    Raises:
        DataError: It lacks what the environment needs, or no prompt fits.
        UserCodeError: The environment's own code raised.
    """
    data = config.data
    source = config.environment.named if data is None else data.train
    try_an_episode(make_env, rows_to_try(rows.training), source)
    if data is not None and data.evaluation is not None and rows.evaluation:
        try_an_episode(make_env, iter(rows.evaluation), data.evaluation)


def rows_to_try(rows: RowSource) -> Iterator[Row]:
    """The first rows of a source, each looked up when it is asked for."""
    return (rows.row(position) for position in range(ROWS_TRIED))


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


def split_own(
    env: Environment,
    rows: Sequence[Row] | None,
    count: int,
    *,
    seed: int,
    evaluation_seed: int,
    excluded: Sequence[Row],
) -> Split:
    """Split the rows of an environment: those given, those it makes, or the list that it has.

    Args:
        env: The environment.
        rows: Its rows; None: its own.
        count: How many evaluation rows.
        seed: Of the training rows.
        evaluation_seed: Of the evaluation rows.
        excluded: More rows that are not trained on.

    Raises:
        ConfigError: It has no rows.
        DataError: It does not have more rows than that.
    """
    seeds = {"seed": seed, "evaluation_seed": evaluation_seed}
    if rows is None and has_rows(type(env)):
        return split_sampled(row_sampler(env), count, excluded=excluded, **seeds)
    rows = env.rows if rows is None else rows
    if rows is None:
        raise _no_rows(env, "data.train")
    return split_dataset(rows, count, excluded=excluded, **seeds)


def evaluation_environment(
    config: RunConfig, name: str, make_env: MakeEnvironment
) -> EvaluationEnvironment:
    """A further environment to evaluate in, with its rows in a seeded order; one is tried.

    Args:
        config: The run.
        name: The environment's.
        make_env: Makes it.

    Raises:
        ConfigError: It has no rows.
        DataError: The rows cannot be read, or lack what the environment needs.
        UserCodeError: The environment's own code raised.
    """
    evaluation = config.evaluation
    section = evaluation.environments[name]
    place, env = place_of(name), make_env()
    if section.data is None and has_rows(type(env)):
        count = section.rows or evaluation.rows
        if count is None:
            raise ConfigError(
                f"{place}.rows: is required where evaluation.rows is not set; say how many rows "
                "the environment is to make, such as 128"
            )
        own: Any = row_sampler(env)
        rows = sample_distinct(own, count, seed=evaluation.seed, key=f"{place}.rows")
    else:
        own, source = rows_of(section, place, env)
        count = section.rows or len(own)
        rows = choose(own, count, seed=evaluation.seed, key=f"{place}.rows", source=source)
        if has_rows(type(env)):
            own = row_sampler(env)
    make_env = with_worked_rows(make_env, own, rows, place=place, otherwise=rows)
    try_an_episode(make_env, iter(rows), place)
    return EvaluationEnvironment(make_env, rows)


def rows_of(
    section: EvaluationEnvironmentSection | MixtureEntry, place: str, env: Environment
) -> tuple[Sequence[Row], str]:
    """All rows of an environment that does not make them, and where they come from.

    Args:
        section: The environment's.
        place: Its dotted key.
        env: The environment.

    Raises:
        ConfigError: It has none.
        DataError: They cannot be read, or lack what the environment needs.
    """
    if section.data is None:
        if env.rows is None:
            raise _no_rows(env, f"{place}.data")
        return env.rows, section.named
    try:
        rows = load_rows(section.data, columns=section.columns, keep_columns=section.keep_columns)
        check_rows(rows, env, section.data)
    except DataError as error:
        raise DataError(f"{place}.data: {error}") from error
    return rows, f"{place}.data"


def row_sampler(env: Environment) -> Callable[[np.random.Generator], Row]:
    """An environment's `sample_row`, sync or async; its mistakes become a `UserCodeError`."""

    def sample(rng: np.random.Generator) -> Row:
        try:
            row = env.sample_row(rng)
            if inspect.isawaitable(row):
                row = run_blocking(_awaited(row))
        except GymnastError:
            raise
        except Exception as error:
            raise _sample_row_error(env, f"raised {type(error).__name__}: {error}") from error
        if not isinstance(row, Mapping):
            raise _sample_row_error(env, f"gave {row!r:.200}; a row must be a dict")
        if row.get("prompt") is None and needs_prompt:
            raise _sample_row_error(
                env,
                f"gave {dict(row)!r:.200}, which has no 'prompt'; give the row one, or return "
                "messages from setup(row)",
            )
        return row

    cls = type(env)
    begins_otherwise = has_own(cls, "setup") or has_own(cls, "next_request")
    needs_prompt = not begins_otherwise and not isinstance(env, Mixture)
    return sample


async def _awaited(row: Awaitable[Any]) -> Any:
    return await row


def _sample_row_error(env: Environment, problem: str) -> UserCodeError:
    return UserCodeError("sample_row", None, f"{type(env).__name__}.sample_row: {problem}")


def _no_rows(env: Environment, key: str) -> ConfigError:
    """The error where an environment makes no rows and a config names none.

    Args:
        env: The environment.
        key: The dotted key that can name rows.
    """
    return ConfigError(
        f"{key}: is required: {type(env).__name__} makes no rows of its own (it has neither "
        "sample_row nor rows); name a file or a hub dataset"
    )


def try_an_episode(make_env: MakeEnvironment, rows: Iterator[Row], source: str) -> None:
    """Drive one episode with an empty answer, so that every hook has run once.

    Args:
        make_env: Makes the environment.
        rows: Of these, the first one whose prompt fits.
        source: Where they are from, for messages.

    Raises:
        DataError: A row lacks what the environment needs, or no prompt fits.
        UserCodeError: The environment's own code raised.
    """
    env, too_long = make_env(), None
    try:
        for row in islice(rows, ROWS_TRIED):
            try:
                prompt, info = env.reset(seed=0, options={"row": row})
            except PromptTooLong as error:
                too_long = error
                continue
            observed, reward, *_ = env.step(np.array(info["stop_ids"][:1]))
            _check_kept(env, [prompt, observed], reward)
            return
        raise DataError(f"no prompt fits: {too_long}") from too_long
    except DataError as error:
        raise DataError(f"{shown_path(source)}: {error}") from error
    finally:
        env.close()


def try_wrapped(make_env: MakeEnvironment, rows: Iterator[Row], place: str) -> None:
    """Drive one episode through wrappers, as `try_an_episode` does.

    Args:
        make_env: Makes the environment, and wraps it.
        rows: Of these, the first one whose prompt fits.
        place: The wrappers' dotted key.

    Raises:
        ConfigError: What they make of an episode cannot be trained on.
        UserCodeError: One of them raised.
    """
    try:
        try_an_episode(make_env, rows, place)
    except GymnastError:
        raise
    except Exception as error:
        problem = f"{place}: in an episode, {type(error).__name__}: {error}"
        raise UserCodeError("wrappers", None, problem) from error


def _check_kept(env: Environment, observations: Sequence[Any], reward: Any) -> None:
    """Check that an episode, with wrappers or without, is one of token ids and rewards."""
    space = env.unwrapped.observation_space
    for ids in observations:
        if not space.contains(ids):
            raise ConfigError(
                f"environment.wrappers: an observation is {' '.join(repr(ids).split()):.100} after "
                "them; they must leave token ids as they are, a flat array of whole numbers"
            )
    if not isinstance(reward, int | float | np.number) or not is_finite(reward):
        raise ConfigError(
            f"environment.wrappers: a reward is {shown(reward, 100)} after them; it must be a "
            "finite number"
        )
