"""Environments by name: an id, "scheme:name", "module:Class", "path/to/file.py:Class", or a class.

Ids live in Gymnasium's own registry, so `gymnasium.make` knows them as well; the short names of
installed packages (`gymnast/lookup.py`) are known here alone. `make` returns the environment
without wrappers, which would hide `astep` and `act`.
"""

import inspect
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, registry

from gymnast.envs.environment.construction import CONSTRUCTOR, require_construction
from gymnast.envs.environment.environment import Environment
from gymnast.envs.rendering.renderer import Renderer, renderer_of
from gymnast.errors import (
    ConfigError,
    GymnastError,
    UnknownEnvironment,
    UsageError,
    UserCodeError,
)
from gymnast.lookup import Names, did_you_mean

# Schemes of names ("gymnasium:FrozenLake-v1"), and the functions that make classes of them.
SCHEMES: dict[str, str] = {
    "gymnasium": "gymnast.envs.adapters.gymnasium:game",
    "mcp": "gymnast.envs.adapters.mcp.environment:server",
    "openenv": "gymnast.envs.adapters.openenv.environment:server",
    "reasoning_gym": "gymnast.envs.adapters.reasoning_gym:dataset",
    "trl": "gymnast.envs.adapters.trl.environment:environment",
}
_ids: dict[str, str | type[Environment]] = {}  # given to `register`
ENVIRONMENTS: Names[type[Environment]] = Names(
    "environment",
    "gymnast.environments",
    _ids,
    base=Environment,
    wanted="subclass of gymnast.envs.Environment (plain functions become one with "
    "Environment.from_tools([...]))",
    schemes=SCHEMES,
    error=UnknownEnvironment,
)


def register(id: str, entry_point: type[Environment] | str) -> None:
    """Give an environment an id, in Gymnasium's registry as well.

    Args:
        id: "namespace/Name-v0".
        entry_point: The class, or "module:Class". An id registered before is replaced.

    Raises:
        UnknownEnvironment: The id is malformed, or the class is not an `Environment`.
    """
    if not isinstance(entry_point, str):
        ENVIRONMENTS.find(entry_point)
    registry.pop(id, None)
    try:
        point: Any = entry_point  # a class is an EnvCreator too
        gymnasium.register(id=id, entry_point=point, disable_env_checker=True)
    except gymnasium.error.Error as error:
        raise UnknownEnvironment(f"{id!r} cannot be an id: {error}") from error
    _ids[id] = entry_point


def registered() -> list[str]:
    """The ids given to `register`, in order, then the names that installed packages register."""
    return ENVIRONMENTS.known()


def make(
    environment: str | type[Environment], renderer_or_tokenizer: Any = None, **settings: Any
) -> Environment:
    """Construct an environment.

    Args:
        environment: An id, a name that an installed package registers, one that begins with a
            scheme ("gymnasium:FrozenLake-v1"), "module:Class", "path/to/file.py:Class", or a class.
        renderer_or_tokenizer: A `Renderer`, or a tokenizer to make one of, or the name of one (a
            hub id or a folder); None for an environment that is driven by messages.
        **settings: What the class takes.

    Raises:
        UnknownEnvironment: There is no such environment.
        ConfigError: The class takes no such setting.
        TemplateError: The tokenizer's chat template cannot be followed.
        UserCodeError: The class's constructor raised.
        UsageError: The constructor takes no `renderer`, or does not call `super().__init__`.
    """
    cls = find(environment)
    known = registry.get(environment) if isinstance(environment, str) else None
    if known is not None:
        settings = {**known.kwargs, **settings}
    check_constructor(cls)
    check_names(cls, settings)
    renderer = _renderer(renderer_or_tokenizer)
    try:
        made = cls(renderer=renderer, **settings)
    except GymnastError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error} (its settings: {settings!r:.500})"
        raise UserCodeError("__init__", None, f"{cls.__name__}.__init__: {problem}") from error
    require_construction(made)
    if known is not None:  # so that Gymnasium can make it again
        made.spec = EnvSpec(known.id, known.entry_point, disable_env_checker=True)
        named = isinstance(renderer_or_tokenizer, str)
        kept = renderer_or_tokenizer if named else made.renderer
        made.spec.kwargs = {"renderer": kept, **settings}
    return made


def find(environment: str | type[Environment]) -> type[Environment]:
    """The class that `make` would construct.

    Raises:
        UnknownEnvironment: There is none, or it is not an `Environment`.
        UserCodeError: Importing its module raised.
        GymnastError: Its module raised one itself, because it defines a tool wrongly, say.
    """
    if isinstance(environment, str) and environment in registry:
        point: Any = registry[environment].entry_point
        return ENVIRONMENTS.find(point, environment)
    return ENVIRONMENTS.find(environment)


def check_names(cls: type[Environment], settings: Iterable[str]) -> None:
    """Check that a class takes settings of these names.

    Raises:
        ConfigError: It does not.
    """
    known = setting_names(cls)
    if known is None:
        return
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"{cls.__name__} has no setting {name!r}.{did_you_mean(name, known)} "
                f"It takes: {', '.join(known)}."
            )


def setting_names(cls: type) -> list[str] | None:
    """The keywords of a class's constructor and of those it passes keywords on to; None: any."""
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        if base is object:
            return None
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        names |= {
            p.name: None for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return [name for name in names if name != "renderer"]


def built_in_default(id: str | None, name: str) -> Any:
    """The default of a setting of an environment that comes with Gymnast; None where it has none.

    Code of other environments is not run to look: theirs are unknown, and None.
    """
    if id is None or not id.startswith("gymnast/"):
        return None
    with suppress(GymnastError):
        for base in find(id).__mro__:
            own = vars(base).get("__init__")
            parameter = None if own is None else inspect.signature(own).parameters.get(name)
            if parameter is not None:
                return None if parameter.default is parameter.empty else parameter.default
    return None


def check_constructor(cls: type[Environment]) -> None:
    """Check that a class's own `__init__` takes the renderer.

    Raises:
        UsageError: It does not.
    """
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        own = inspect.signature(vars(base)["__init__"]).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in own):
            continue  # which it passes on
        if not any(p.name == "renderer" for p in own):
            raise UsageError(f"{base.__name__}.__init__ takes no `renderer`. {CONSTRUCTOR}")
        return


def _renderer(given: Any) -> Renderer | None:
    if isinstance(given, str):
        return renderer_of(given)
    if given is None or all(hasattr(given, name) for name in ("prompt", "parse", "observe")):
        return given
    return Renderer(given)
