"""From what names an environment to a function that makes one, for `collect` to call."""

from collections.abc import Callable
from typing import Any

import gymnasium

from gymnast.envs import Renderer, make
from gymnast.trainers.collect import MakeEnvironment


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
    """
    if not isinstance(environment, str | type):
        return environment
    named = environment
    renderer = Renderer(tokenizer)
    return lambda: make(named, renderer, context_length=context_length)
