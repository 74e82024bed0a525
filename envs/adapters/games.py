"""Making Gymnasium's games by their ids, and closing them."""

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator, registry

from gymnast.envs.environment.environment import Environment
from gymnast.errors import ConfigError, UnknownEnvironment, first_line
from gymnast.lookup import did_you_mean, import_source
from gymnast.visible import visible_logger

logger = visible_logger(__name__)


def spec_of(id: str) -> EnvSpec:
    """What Gymnasium's registry says of an id, which may have a module or a file in front.

    Raises:
        UnknownEnvironment: Gymnasium knows no such id.
    """
    module, _, name = id.rpartition(":")
    if module:
        import_source(module)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        problem = first_line(error)
        problem += "" if problem.endswith((".", "?")) else "."
        meant = "" if "Did you mean" in problem else did_you_mean(name, registry)
        raise UnknownEnvironment(
            f"gymnasium:{id}: {problem}{meant} The module that registers an id stands before it: "
            "'gymnasium:ale_py:ALE/Pong-v5'."
        ) from error


def made(id: str, keywords: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """A game, with its text for terminals where it has one.

    Args:
        id: As for `spec_of`.
        keywords: Of `gymnasium.make`.

    Raises:
        UnknownEnvironment: Gymnasium knows no such id.
        ConfigError: It cannot be made, or is an environment of Gymnast's.
    """
    spec = spec_of(id)
    try:
        point = spec.entry_point
        creator = load_env_creator(point) if isinstance(point, str) else point
        modes = getattr(creator, "metadata", {}).get("render_modes") or ()
        own = {"render_mode": "ansi"} if "ansi" in modes else {}
        game: gymnasium.Env[Any, Any] = gymnasium.make(
            spec, **{"disable_env_checker": True, **own, **keywords}
        )
    except Exception as error:
        given = f" with {dict(keywords)!r:.300}" if keywords else ""
        raise ConfigError(
            f"gymnasium:{id} cannot be made{given}: {type(error).__name__}: {first_line(error)}"
        ) from error
    if isinstance(game.unwrapped, Environment):
        closed(game)
        raise ConfigError(f"gymnasium:{id} is one of Gymnast's own; write {id!r}.")
    return game


def closed(game: gymnasium.Env[Any, Any]) -> None:
    """Close a game, which may fail at it."""
    try:
        game.close()
    except Exception:
        logger.warning("%s cannot be closed", game, exc_info=True)
