"""An environment that a config names: found, its settings checked, and made with its renderer."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from gymnast.envs import Environment, Mixture, Program, Renderer, compose, make
from gymnast.envs.registry import check_constructor, check_names, find, setting_names
from gymnast.errors import (
    ConfigError,
    TemplateError,
    ToolDefinitionError,
    UnknownEnvironment,
)
from gymnast.lookup import Names, nearest
from gymnast.trainers.base.key_hints import meant_elsewhere
from gymnast.trainers.config.sections import ModelSection, RunConfig, run_keys
from gymnast.trainers.config.task_sections import EnvironmentSection, OneEnvironment
from gymnast.trainers.data.input_paths import shown_path

MakeEnvironment = Callable[[], Environment]

# Those of Gymnasium's that leave token ids alone, and learn nothing in one environment of many.
_OF_GYMNASIUM = (
    *("ClipReward", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics"),
    *("TimeLimit", "TransformReward"),
)
WRAPPERS: Names[type[gymnasium.Wrapper[Any, Any, Any, Any]]] = Names(
    "wrapper",
    "gymnast.wrappers",
    {name: f"gymnasium.wrappers:{name}" for name in _OF_GYMNASIUM},
    base=gymnasium.Wrapper,
    wanted="subclass of gymnasium.Wrapper",
)
_FUNCTIONS: Names[Callable[..., Any]] = Names("function", "")  # which no package registers


def find_environments(config: RunConfig) -> None:
    """Check, without a model, that a config's environments exist and take their settings.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: It takes no such setting, or says no states to an algorithm that needs them.
        ToolDefinitionError: One of its tools cannot be described.
    """
    for cls in own_environments(config):
        if config.algorithm.make().compares_states and not _says_states(cls):
            raise ConfigError(
                f"algorithm: {config.algorithm.estimator or config.algorithm.name} compares turns "
                f"that acted in equal states, and {cls.__name__} does not say what its turns act "
                "in; override its hook turn_state, or choose turn_level, which needs no states"
            )
    find_wrappers(config.environment)
    for name, section in config.evaluation.environments.items():
        find_environment(section, place_of(name))


def own_environments(config: RunConfig) -> list[type[Environment]]:
    """The classes of a run's own environment: several where it is a mixture.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: It takes no such setting.
    """
    return [find_environment(each, place) for place, each in parts_of(config.environment).items()]


def parts_of(section: EnvironmentSection) -> dict[str, OneEnvironment]:
    """The environments that a section names, by their dotted keys.

    The settings beside `mixture` are those of all of its environments that have not their own; a
    `sandbox`, of those that use boxes.
    """
    if not section.mixture:
        return {"environment": section}
    places = {f"environment.mixture.{n}": entry for n, entry in enumerate(section.mixture)}
    shared = section.settings
    boxed = list(places)
    if "sandbox" in shared:
        boxed = [place for place in places if _class_of(places[place], place).sandbox_spec]
    parts: dict[str, OneEnvironment] = {}
    for place, entry in places.items():
        left_out = {*entry.settings, *(["sandbox"] if boxed and place not in boxed else [])}
        settings = {name: value for name, value in shared.items() if name not in left_out}
        parts[place] = entry.model_copy(update=settings)
    return parts


def find_environment(section: OneEnvironment, place: str = "environment") -> type[Environment]:
    """The class that a section names; raises as `find_environments`.

    Args:
        section: The environment's.
        place: Its dotted key.
    """
    cls = _class_of(section, place)
    _check_settings(cls, section, place)
    return cls


def _class_of(section: OneEnvironment, place: str) -> type[Environment]:
    try:
        cls = find(section.id) if section.id is not None else _composed(section, place)
    except UnknownEnvironment as error:
        key = "id" if section.id is not None else "compose"
        raise UnknownEnvironment(f"{place}.{key}: {error}") from error
    if issubclass(cls, Mixture):
        raise ConfigError(
            f"{place}.id: is {section.named}, which plays other environments; list them in "
            "environment.mixture"
        )
    return cls


def _composed(section: OneEnvironment, place: str) -> type[Environment]:
    try:
        return compose(*section.compose)
    except (ConfigError, ToolDefinitionError) as error:
        says = str(error).removeprefix("compose: ")
        raise type(error)(f"{place}.compose: {says}") from error


def find_wrappers(section: EnvironmentSection) -> list[Callable[[Any], Any]]:
    """The wrappers that a section names, each with its settings.

    Raises:
        ConfigError: There is no such wrapper.
    """
    found: list[Callable[[Any], Any]] = []
    for number, wrapper in enumerate(section.wrappers):
        place = f"environment.wrappers.{number}"
        name = wrapper.id.removeprefix("gymnasium.wrappers:")
        if name in gymnasium.wrappers.__all__ and name not in _OF_GYMNASIUM:
            raise ConfigError(
                f"{place}.id: {name} of gymnasium.wrappers cannot wrap a run's environment: it "
                "changes observations or actions, which are token ids, or keeps what one "
                f"environment of many has seen. Of them there are: {', '.join(_OF_GYMNASIUM)}."
            )
        settings = dict(wrapper.model_extra or {})
        if wrapper.func is not None:
            settings["func"] = _FUNCTIONS.find(wrapper.func, f"{place}.func")
        found.append(partial(_wrapped, place, WRAPPERS.find(wrapper.id, f"{place}.id"), settings))
    return found


def _wrapped(place: str, wrapper: type, settings: dict[str, Any], env: Any) -> Any:
    try:
        return wrapper(env, **settings)
    except Exception as error:
        takes = ", ".join([*inspect.signature(wrapper).parameters][1:]) or "nothing"
        raise ConfigError(
            f"{place}: {wrapper.__name__} cannot be made with {settings!r:.200}: "
            f"{type(error).__name__}: {error}. It takes: {takes}."
        ) from error


def wrapped(make_env: MakeEnvironment, wrappers: Sequence[Callable[[Any], Any]]) -> Any:
    """A function that makes an environment and wraps it, the first wrapper innermost."""
    return partial(_make_wrapped, make_env, tuple(wrappers))


def _make_wrapped(make_env: MakeEnvironment, wrappers: Sequence[Callable[[Any], Any]]) -> Any:
    env: Any = make_env()
    for wrap in wrappers:
        env = wrap(env)
    return env


def _says_states(environment: type[Environment]) -> bool:
    """Whether a class may say what its turns act in: by the hook, or in infos of its own."""
    names = ("turn_state", "reset", "areset", "step", "astep")
    return any(getattr(environment, name) is not getattr(Environment, name) for name in names)


def place_of(name: str) -> str:
    """The dotted key of a further environment to evaluate in."""
    return f"evaluation.environments.{name}"


def _check_settings(cls: type[Environment], section: OneEnvironment, place: str) -> None:
    """Check that a constructor can be called, and takes the settings of a section."""
    check_constructor(cls)
    settings = section.settings
    known = setting_names(cls) or [*settings]
    for name in settings:
        if name in known or nearest(name, known):
            continue
        own = nearest(name, type(section).model_fields)
        meant = f"did you mean {own}?" if own else meant_elsewhere(name, run_keys())
        if meant:
            raise ConfigError(f"{place}: {cls.__name__} has no setting {name!r}; {meant}")
    try:
        check_names(cls, settings)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def environment_maker(
    section: OneEnvironment,
    place: str,
    model: ModelSection,
    renderer: Renderer,
    model_context_length: int | None,
) -> MakeEnvironment:
    """A function that makes a section's environment, with a context that the model has.

    Args:
        section: The environment's.
        place: Its dotted key.
        model: The model's section.
        renderer: What all environments share.
        model_context_length: How many tokens the model was made for; None: any number.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: It takes no such setting, or its context is longer than the model's, or
            neither has one.
    """
    cls, settings = find_environment(section, place), section.settings
    if settings.get("context_length") is None:
        settings["context_length"] = model_context_length
    longest = settings["context_length"]
    if longest is None:
        raise ConfigError(
            f"{place}.context_length: must be set, since {model.name} has no longest "
            "context of its own: how many tokens an episode has at most"
        )
    if model_context_length is not None and longest > model_context_length:
        raise ConfigError(
            f"{place}.context_length: must be <= {model_context_length}, the context "
            f"that {model.name} was made for, got {longest}"
        )
    return partial(make, cls, renderer, **_with_functions(cls, settings, place))


def _with_functions(cls: type[Environment], settings: dict[str, Any], place: str) -> dict[str, Any]:
    """Settings with a program's functions in place of their names.

    Where episodes are played on other machines, a function is sent there; its file is not.
    """
    if not issubclass(cls, Program):
        return settings
    named = {name: settings[name] for name in ("function", "reward") if name in settings}
    found: dict[str, Any] = {
        name: _FUNCTIONS.find(value, f"{place}.{name}")
        for name, value in named.items()
        if isinstance(value, str)
    }
    return {**settings, **found}


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
