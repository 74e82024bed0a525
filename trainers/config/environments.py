"""An environment that a config names: found, made within the model's context, and tried.

One episode is driven through it (its prompt, then an empty answer), so that a missing column, a
reward with a typo or a prompt that never fits comes to light before a model's weights are loaded.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gymnast.envs import Environment, Renderer, make
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.rows import offered_tools, prompt_of
from gymnast.envs.registry import check_constructor, check_names, find, setting_names
from gymnast.errors import (
    ConfigError,
    DataError,
    GymnastError,
    PromptTooLong,
    TemplateError,
    UnknownEnvironment,
    UserCodeError,
)
from gymnast.lookup import nearest
from gymnast.threads import run_blocking
from gymnast.trainers.base.key_hints import meant_elsewhere
from gymnast.trainers.config.sections import ModelSection, RunConfig, run_keys
from gymnast.trainers.config.task_sections import EnvironmentSection
from gymnast.trainers.data.input_paths import shown
from gymnast.trainers.data.row_formats import location_of
from gymnast.trainers.data.rows import Row

# How many rows are tried for one whose prompt fits.
ROWS_TRIED = 20

MakeEnvironment = Callable[[], Environment]


def find_environments(config: RunConfig) -> None:
    """Check, without a model, that a config's environments exist and take their settings.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: It takes no such setting.
        ToolDefinitionError: One of its tools cannot be described.
    """
    find_environment(config.environment)
    for name, section in config.evaluation.environments.items():
        find_environment(section, name)


def find_environment(section: EnvironmentSection, name: str | None = None) -> type[Environment]:
    """The class that a section names; raises as `find_environments`.

    Args:
        section: The environment's.
        name: That of a further environment to evaluate in; None for the run's own.
    """
    try:
        cls = find(section.id)
    except UnknownEnvironment as error:
        if name is None:
            raise
        raise UnknownEnvironment(f"{place_of(name)}: {error}") from error
    _check_settings(cls, section.settings, place_of(name))
    return cls


def place_of(name: str | None) -> str:
    """The dotted key of an environment's section: the run's own, or a further one by name."""
    return "environment" if name is None else f"evaluation.environments.{name}"


def _check_settings(cls: type[Environment], settings: Iterable[str], place: str) -> None:
    """Check that a constructor can be called, and takes settings of these names."""
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


def environment_maker(
    section: EnvironmentSection,
    name: str | None,
    model: ModelSection,
    renderer: Renderer,
    model_context_length: int,
) -> MakeEnvironment:
    """A function that makes a section's environment, with a context that the model has.

    Args:
        section: The environment's.
        name: That of a further environment to evaluate in; None for the run's own.
        model: The model's section.
        renderer: What all environments share.
        model_context_length: How many tokens the model was made for.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: It takes no such setting, or its context is longer than the model's.
    """
    cls, settings = find_environment(section, name), section.settings
    longest = settings.setdefault("context_length", model_context_length)
    if longest > model_context_length:
        raise ConfigError(
            f"{place_of(name)}.context_length: must be <= {model_context_length}, the context "
            f"that {model.name} was made for, got {longest}"
        )
    return partial(make, cls, renderer, **settings)


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


def has_rows(cls: type[Environment]) -> bool:
    """Whether an environment makes rows of its own."""
    return cls.sample_row is not Hooks.sample_row


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
        return row

    return sample


async def _awaited(row: Awaitable[Any]) -> Any:
    return await row


def _sample_row_error(env: Environment, problem: str) -> UserCodeError:
    return UserCodeError("sample_row", None, f"{type(env).__name__}.sample_row: {problem}")


def no_rows(env: Environment, key: str) -> ConfigError:
    """The error where an environment makes no rows and a config names none.

    Args:
        env: The environment.
        key: The dotted key that can name rows.
    """
    return ConfigError(
        f"{key}: is required: {type(env).__name__} makes no rows of its own (it has neither "
        "sample_row nor rows); name a file or a hub dataset"
    )


def check_rows(rows: Sequence[Row], env: Environment, source: str) -> None:
    """Check every row for what would end a run late: no prompt, tools that do not exist.

    With a `setup` of the environment's own, rows may lack prompts if the first one does.
    """
    own_tools = type(env).tools_for is not Hooks.tools_for  # which only an episode has
    own_start = type(env).setup is not Hooks.setup
    need_prompts = len(rows) > 0 and not (own_start and rows[0].get("prompt") is None)
    for row_index, row in enumerate(rows):
        try:
            if not own_tools:
                offered_tools(row, env.tool_definitions)
            if need_prompts and (not own_start or row.get("prompt") is None):
                prompt_of(row)  # a `setup` of the environment's own reads it as it likes
        except DataError as error:
            raise DataError(f"{location_of(rows, row_index, shown(source))}: {error}") from error


def try_an_episode(make_env: MakeEnvironment, rows: Iterator[Row], source: str) -> None:
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
