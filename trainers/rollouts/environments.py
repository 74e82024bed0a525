"""From what names an environment to a function that makes one, for `collect` to call."""

from collections.abc import Callable
from typing import Any

import gymnasium

from gymnast.envs import Renderer, make
from gymnast.envs.registry import find
from gymnast.errors import ConfigError
from gymnast.trainers.rollouts.many_episodes import MakeEnvironment


def environment_factory(
    environment: str | type[gymnasium.Env[Any, Any]] | MakeEnvironment,
    tokenizer: Any,
    context_length: int,
) -> Callable[[], gymnasium.Env[Any, Any]]:
    """A function that makes environments, all with one renderer.

    Args:
        environment: A registered id, "module:Class", a class, or such a function, which is
            returned as it is.
        tokenizer: For the renderer.
        context_length: The model's, in tokens.

    Raises:
        UnknownEnvironment: There is no such environment.
        TemplateError: The tokenizer's chat template cannot be followed.
        ConfigError: It is none of these.
    """
    if not isinstance(environment, str | type):
        if not callable(environment):
            raise ConfigError(
                f"environment: must be an id, a class or a function that makes an environment, got "
                f"{environment!r:.200}; an environment runs one episode at a time, and many are "
                "needed"
            )
        return environment
    named = find(environment)
    renderer = Renderer(tokenizer)
    return lambda: make(named, renderer, context_length=context_length)
