"""What a config's `environment` and `data` sections stand for, tried before any training.

An environment is constructed and one episode is driven through it (its prompt, then an empty
answer), so that a missing column, a reward with a typo or a prompt that never fits is found
before a model's weights are loaded.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gymnast.blocking import run_blocking
from gymnast.envs import Environment, Renderer, make
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.rows import offered_tools, prompt_of
from gymnast.envs.registry import find
from gymnast.errors import (
    ConfigError,
    DataError,
    GymnastError,
    PromptTooLong,
    TemplateError,
    UserCodeError,
)
from gymnast.trainers.config.environment_settings import check_settings, limited_settings
from gymnast.trainers.config.sections import ModelSection, RunConfig
from gymnast.trainers.config.task_sections import DataSection, EvaluationSection
from gymnast.trainers.data.input_paths import shown
from gymnast.trainers.data.row_files import load_rows
from gymnast.trainers.data.row_formats import place_of
from gymnast.trainers.data.rows import DatasetRows, Row, Split, choose, split_dataset, split_sampled

# How many rows are tried for one whose prompt fits.
ROWS_TRIED = 20


@dataclass(frozen=True)
class Task:
    """What a policy is trained on.

    Attributes:
        make_env: Makes an environment; all share one renderer.
        rows: Training rows and held-out rows.
    """

    make_env: Callable[[], Environment]
    rows: Split


def check_environment(config: RunConfig) -> type[Environment]:
    """Find the environment's class and check the names of its settings, which needs no model.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: It takes no such setting.
        ToolDefinitionError: One of its tools cannot be described.
    """
    cls = find(config.environment.id)
    check_settings(cls, config.environment.settings, "environment")
    return cls


def prepare_task(
    config: RunConfig,
    tokenizer: Any,
    model_context_length: int,
    kept_out: Sequence[Row] = (),
) -> Task:
    """Make the environment and the rows of a run, and try them.

    Args:
        config: The run.
        tokenizer: The model's.
        model_context_length: How many tokens the model was made for.
        kept_out: Rows that are not trained on besides those held out here.

    Raises:
        ConfigError: A setting does not hold.
        DataError: The rows cannot be read, or lack what the environment needs.
        TemplateError: The chat template cannot be followed.
        UserCodeError: The environment's own code raised.
    """
    cls = check_environment(config)
    loaded = load_data(config.data) if config.data is not None else None
    section, named = config.environment, config.model.name
    settings = limited_settings(section, "environment", named, model_context_length)
    renderer = make_renderer(config.model, tokenizer)

    def make_env() -> Environment:
        return make(cls, renderer, **settings)

    if config.data is not None and loaded is not None:
        check_rows(loaded[0], make_env(), config.data.train)
        check_rows(loaded[1] or (), make_env(), str(config.data.evaluation))
        rows = _split_data(*loaded, config.evaluation, config.seed, kept_out)
    else:
        rows = _split_own(make_env(), config.evaluation, config.seed, kept_out)
    source = config.data.train if config.data is not None else config.environment.id
    try_an_episode(make_env, (rows.training.row(i) for i in range(ROWS_TRIED)), source)
    if config.data is not None and config.data.evaluation is not None and rows.held_out:
        try_an_episode(make_env, iter(rows.held_out), config.data.evaluation)
    return Task(make_env, rows)


def make_renderer(model: ModelSection, tokenizer: Any) -> Renderer:
    """The renderer of a config's `model` section; the tokenizer has the template already.

    Raises:
        TemplateError: The chat template cannot be followed.
        ConfigError: The parser cannot be imported.
    """
    kwargs = model.chat_template_kwargs
    try:
        return Renderer(tokenizer, chat_template_kwargs=kwargs or None, parser=model.parser)
    except TemplateError as error:
        given = [f"model.chat_template_kwargs {kwargs!r:.100}"] if kwargs else []
        if model.chat_template is not None:
            named = shown(" ".join(model.chat_template.split()))
            given.append(f"model.chat_template {named!r:.100}")
        place = " and ".join(given) or f"model {model.name!r}"
        line = getattr(error.__cause__, "lineno", None)  # Jinja's syntax errors know theirs
        where = f" (line {line})" if line and f"(line {line})" not in str(error) else ""
        raise TemplateError(f"{place}: {error}{where}") from error


def chat_template_text(model: ModelSection) -> str | None:
    """The text of `model.chat_template`, which is Jinja or a file of it.

    Raises:
        ConfigError: It is neither.
    """
    given = model.chat_template
    if given is None or "{{" in given or "{%" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError(
            f"model.chat_template: must be Jinja text or a Jinja file, got {shown(given)!r}, which "
            f"cannot be read: {reason}"
        ) from error


def load_data(data: DataSection) -> tuple[Sequence[Row], Sequence[Row] | None]:
    """The rows to train on, and those to evaluate with where a config names them.

    Raises:
        DataError: They cannot be read, or a column finds nothing.
    """
    load = partial(
        load_rows, columns=data.columns, keep_columns=data.keep_columns, subset=data.subset
    )
    train = load(data.train, split=data.split)
    if data.evaluation is None:
        return train, None
    return train, load(data.evaluation, split=data.evaluation_split)


def _split_data(
    train: Sequence[Row],
    evaluation: Sequence[Row] | None,
    section: EvaluationSection,
    seed: int,
    kept_out: Sequence[Row],
) -> Split:
    if evaluation is None:
        count, held_out_seed = section.rows or 0, section.seed
        return split_dataset(
            train, count, seed=seed, held_out_seed=held_out_seed, kept_out=kept_out
        )
    count = len(evaluation) if section.rows is None else section.rows
    held_out = choose(evaluation, count, seed=section.seed)
    return Split(DatasetRows(train, seed=seed, held_out=[*held_out, *kept_out]), held_out)


def has_rows(cls: type[Environment]) -> bool:
    """Whether an environment makes rows of its own."""
    return cls.sample_row is not Hooks.sample_row


def _split_own(
    env: Environment, section: EvaluationSection, seed: int, kept_out: Sequence[Row]
) -> Split:
    """Split what an environment has: a generator (`sample_row`), or rows."""
    count, held_out_seed = section.rows or 0, section.seed
    if has_rows(type(env)):
        return split_sampled(
            row_sampler(env), count, seed=seed, held_out_seed=held_out_seed, kept_out=kept_out
        )
    if env.rows is None:
        raise ConfigError(
            f"data.train: is required: {type(env).__name__} makes no rows of its own (it has "
            "neither sample_row nor rows); name a file or a hub dataset"
        )
    return split_dataset(env.rows, count, seed=seed, held_out_seed=held_out_seed, kept_out=kept_out)


def row_sampler(env: Environment) -> Callable[[np.random.Generator], Row]:
    """An environment's `sample_row`, whether async or not, whose mistakes are named."""

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
        return row

    return sample


async def _awaited(row: Awaitable[Any]) -> Any:
    return await row


def _sample_row_error(env: Environment, problem: str) -> UserCodeError:
    return UserCodeError("sample_row", None, f"{type(env).__name__}.sample_row: {problem}")


def check_rows(rows: Sequence[Row], env: Environment, source: str) -> None:
    """Check every row for what would end a run late: no prompt, tools that there are not.

    Where `setup` is the environment's own, rows may do without prompts if the first one does.
    """
    own_tools = type(env).tools_for is not Hooks.tools_for  # which only an episode has
    own_start = type(env).setup is not Hooks.setup
    need_prompts = len(rows) > 0 and not (own_start and rows[0].get("prompt") is None)
    for number, row in enumerate(rows):
        try:
            if not own_tools:
                offered_tools(row, env.tool_definitions)
            if need_prompts and (not own_start or row.get("prompt") is None):
                prompt_of(row)  # what a `setup` of the environment's makes of one is its own affair
        except DataError as error:
            raise DataError(f"{place_of(rows, number, shown(source))}: {error}") from error


def try_an_episode(make_env: Callable[[], Environment], rows: Iterator[Row], source: str) -> None:
    """Drive one episode with an empty answer, so that every hook has run once."""
    env, too_long = make_env(), None
    try:
        for row in islice(rows, ROWS_TRIED):
            try:
                _, info = env.reset(seed=0, options={"row": row})
            except PromptTooLong as error:
                too_long = error
                continue
            env.step(info["stop_ids"][:1])
            return
        raise DataError(f"no prompt fits: {too_long}") from too_long
    except DataError as error:
        raise DataError(f"{shown(source)}: {error}") from error
    finally:
        env.close()
