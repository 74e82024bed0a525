"""The environments of a collection: a function that makes them, and a pool that reuses them."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium

from gymnast.envs import Environment, Mixture, Renderer, make
from gymnast.envs.environment.construction import has_reward
from gymnast.envs.mixture import members_of
from gymnast.envs.registry import find
from gymnast.errors import ConfigError
from gymnast.threads import in_background
from gymnast.trainers.rollouts.drivers import Driver, make_driver, max_boxes

MakeEnvironment = Callable[[], gymnasium.Env[Any, Any]]


def environment_factory(
    environment: str | type[gymnasium.Env[Any, Any]] | Mixture | MakeEnvironment,
    tokenizer: Any,
    context_length: int,
) -> MakeEnvironment:
    """A function that makes environments, all with one renderer.

    Args:
        environment: A registered id, "module:Class", a class, a `Mixture`, of which others are
            made, or such a function, which is returned as it is.
        tokenizer: For the renderer.
        context_length: The model's, in tokens.

    Raises:
        UnknownEnvironment: There is no such environment.
        TemplateError: The tokenizer's chat template cannot be followed.
        ConfigError: It is none of these.
    """
    if isinstance(environment, Mixture):
        renderer = environment.renderer or Renderer(tokenizer)
        return partial(environment.another, renderer, context_length=context_length)
    if not isinstance(environment, str | type):
        if not callable(environment):
            raise ConfigError(
                f"environment: must be an id, a class or a function that makes an environment, got "
                f"{environment!r:.200}; an environment runs one episode at a time, and many are "
                "needed"
            )
        return environment
    environment_class = find(environment)
    renderer = Renderer(tokenizer)
    return lambda: make(environment_class, renderer, context_length=context_length)


def unscored(make_env: MakeEnvironment) -> list[str]:
    """A sentence for each environment class of a run that gives no reward.

    A wrapper, or a `step` of the class's own, may pay what no hook pays: nothing is said of those.

    Args:
        make_env: Makes one of the run's environments; those of a mixture are looked at each.
    """
    env = make_env()
    try:
        members = members_of(env) if isinstance(env, Environment) else []
        classes = dict.fromkeys(type(each) for each in members)
    finally:
        env.close()
    return [
        f"{cls.__name__} has no reward, so every episode of it gets 0 and teaches nothing: write "
        "reward(self, episode) or turn_reward(self, turn), or name functions in `rewards`"
        for cls in classes
        if not has_reward(cls)
        and all(
            getattr(cls, name) is getattr(Environment, name) for name in ("step", "astep", "act")
        )
    ]


class Environments:
    """A pool of environments: a free one is taken; a new one is made when none is free.

    An environment whose episode was cancelled is not given back: one of its threads may still be
    at work.

    Args:
        make_env: Makes an environment.
        waiting_together: How many episodes wait for one another, each in a box if it has one.
    """

    def __init__(self, make_env: MakeEnvironment, waiting_together: int = 1) -> None:
        self._make_env = make_env
        self._waiting_together = waiting_together
        self._free: list[Driver] = []
        self._all: list[Driver] = []
        self._lent: dict[Driver, asyncio.Task[Any] | None] = {}  # to whom

    def take(self) -> Driver:
        """A free environment, or a new one, for the task that asks.

        Raises:
            ConfigError: It has fewer boxes than there are episodes that wait for one another.
        """
        if not self._free:
            driver = make_driver(self._make_env())
            self._all.append(driver)
            _check_boxes(driver.env, self._waiting_together)
        else:
            driver = self._free.pop()
        self._lent[driver] = asyncio.current_task()
        return driver

    def give_back(self, driver: Driver) -> None:
        """Put an environment back whose episode is over."""
        del self._lent[driver]
        self._free.append(driver)

    async def close_lost(self) -> None:
        """Close the environments that were not given back, and whose episodes have ended."""
        lost = [driver for driver, task in self._lent.items() if task is None or task.done()]
        for driver in lost:
            del self._lent[driver]
            self._all.remove(driver)
        if lost:
            await in_background(partial(_close, lost))

    def close(self) -> None:
        """Close all environments, and only then raise what one of them raised."""
        _close(self._all)


def _close(drivers: list[Driver]) -> None:
    with ExitStack() as stack:
        for driver in drivers:
            stack.callback(driver.close)


def _check_boxes(env: gymnasium.Env[Any, Any], waiting_together: int) -> None:
    """An episode with a box must not wait for one that waits for a box."""
    most = max_boxes(env)
    if most is not None and most < waiting_together:
        raise ConfigError(
            f"deterministic: a round waits for all {waiting_together} episodes, but the sandbox of "
            f"{type(env.unwrapped).__name__} has max_boxes: {most}: the others never get theirs. "
            f"Lower concurrency to {most}, or raise its max_boxes to {waiting_together}."
        )
