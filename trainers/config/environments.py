"""An environment that a config names: found, its settings checked, and made with its renderer."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from gymnast.envs import Environment, Renderer, make
from gymnast.envs.registry import check_constructor, check_names, find, setting_names
from gymnast.errors import (
    ConfigError,
    TemplateError,
    UnknownEnvironment,
)
from gymnast.lookup import nearest
from gymnast.trainers.base.key_hints import meant_elsewhere
from gymnast.trainers.config.sections import ModelSection, RunConfig, run_keys
from gymnast.trainers.config.task_sections import EnvironmentSection
from gymnast.trainers.data.input_paths import shown_path

MakeEnvironment = Callable[[], Environment]


def find_environments(config: RunConfig) -> None:
    """Check, without a model, that a config's environments exist and take their settings.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: It takes no such setting, or says no states to an algorithm that needs them.
        ToolDefinitionError: One of its tools cannot be described.
    """
    environment = find_environment(config.environment)
    if config.algorithm.make().compares_states and not _says_states(environment):
        raise ConfigError(
            f"algorithm: {config.algorithm.estimator or config.algorithm.name} compares turns that "
            f"acted in equal states, and {environment.__name__} does not say what its turns act "
            "in; override its hook turn_state, or choose turn_level, which needs no states"
        )
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


def _says_states(environment: type[Environment]) -> bool:
    """Whether a class may say what its turns act in: by the hook, or in infos of its own."""
    names = ("turn_state", "reset", "areset", "step", "astep")
    return any(getattr(environment, name) is not getattr(Environment, name) for name in names)


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
    model_context_length: int | None,
) -> MakeEnvironment:
    """A function that makes a section's environment, with a context that the model has.

    Args:
        section: The environment's.
        name: That of a further environment to evaluate in; None for the run's own.
        model: The model's section.
        renderer: What all environments share.
        model_context_length: How many tokens the model was made for; None: any number.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: It takes no such setting, or its context is longer than the model's, or
            neither has one.
    """
    cls, settings = find_environment(section, name), section.settings
    if settings.get("context_length") is None:
        settings["context_length"] = model_context_length
    longest = settings["context_length"]
    if longest is None:
        raise ConfigError(
            f"{place_of(name)}.context_length: must be set, since {model.name} has no longest "
            "context of its own: how many tokens an episode has at most"
        )
    if model_context_length is not None and longest > model_context_length:
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
            named = shown_path(" ".join(model.chat_template.split()))
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
            f"model.chat_template: must be Jinja text or a Jinja file, got {shown_path(given)!r}, "
            f"which cannot be read: {reason}"
        ) from error
