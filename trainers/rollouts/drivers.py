"""Two ways to drive an environment from an event loop: awaited, or on a thread.

An `Environment` is awaited. Any other `gymnasium.Env` (one inside wrappers, say) blocks, so its
`reset` and `step` run on a thread of their own, one after another.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np

from gymnast.envs import Environment
from gymnast.envs.environment.user_code import Blame
from gymnast.threads import EpisodeThread
from gymnast.visible import visible_logger

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]
logger = visible_logger(__name__)


class Driver(Protocol):
    """Drives one environment, one call at a time.

        class Blocking:
            def __init__(self, env):
                self.env = env

            async def reset(self, seed, options):
                return self.env.reset(seed=seed, options=options)

            async def step(self, action):
                return self.env.step(action)

            def release(self):
                pass

            def close(self):
                self.env.close()

    Attributes:
        env: The environment.
    """

    env: gymnasium.Env[Any, Any]

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the environment; returns ids and info."""
        ...

    async def step(self, action: np.ndarray) -> Step:
        """Step the environment."""
        ...

    def release(self) -> None:
        """End the driver's threads; the environment stays as it is."""
        ...

    def close(self) -> None:
        """Close the environment; if it is in an abandoned call, when that call ends."""
        ...


def make_driver(env: gymnasium.Env[Any, Any]) -> Driver:
    """The driver that suits this environment."""
    return Awaited(env) if isinstance(env, Environment) else Threaded(env)


def max_boxes(env: gymnasium.Env[Any, Any]) -> int | None:
    """How many of these environments may have a box at once; None: they have none."""
    inner = env.unwrapped
    return inner.max_boxes if isinstance(inner, Environment) else None


class Awaited:
    """Drives an `Environment` on the caller's event loop."""

    def __init__(self, env: Environment) -> None:
        self._environment = env
        self.env: gymnasium.Env[Any, Any] = env

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the environment on the caller's loop."""
        return await self._environment.areset(seed=seed, options=options)

    async def step(self, action: np.ndarray) -> Step:
        """Step the environment on the caller's loop."""
        return await self._environment.astep(action)

    def release(self) -> None:
        """Do nothing: the thread is the environment's own."""

    def close(self) -> None:
        """Close the environment, which has cleaned up after a cancelled call by itself."""
        self._environment.close()


class Threaded:
    """Drives any `gymnasium.Env` on one thread.

    A call that is cancelled goes on in its thread, since Python cannot stop it. Nothing else
    touches the environment until it ends: then that thread closes it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self._thread = EpisodeThread("gymnast-rollout")
        self._call: _Call | None = None
        self._row: Any = None

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the environment on the thread.

        Raises:
            UserCodeError: It raised an exception.
        """
        self._row = None if options is None else options.get("row")
        return await self._run("reset", lambda: self.env.reset(seed=seed, options=options))

    async def step(self, action: np.ndarray) -> Step:
        """Step the environment on the thread.

        Raises:
            UserCodeError: It raised an exception.
        """
        result: Step = await self._run("step", lambda: self.env.step(action))
        return result

    def release(self) -> None:
        """Let the thread end."""
        self._thread.stop()

    def close(self) -> None:
        """Close the environment; if a cancelled call is still running, when that ends."""
        self._thread.stop()
        if self._call is None:
            self.env.close()
        else:
            self._call.then(self.env.close)

    async def _run(self, name: str, function: Callable[[], Any]) -> Any:
        call = self._call = _Call(function)
        with Blame(type(self.env).__name__, name, self._row).of_what_raises():
            result = await self._thread.run(call)
        self._call = None
        return result


class _Call:
    """A function that runs on a thread, and what to call after it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._running = self._over = False
        self._after: Callable[[], None] | None = None

    def __call__(self) -> Any:
        with self._lock:
            if self._over:  # given up before it began
                return None
            self._running = True
        try:
            return self._function()
        finally:
            with self._lock:
                self._running, self._over = False, True
                after = self._after
            if after is not None:
                _call_and_log(after)

    def then(self, after: Callable[[], None]) -> None:
        """Call `after` now; if the function is running, on its thread when it ends."""
        with self._lock:
            if self._running:
                self._after = after
                return
            self._over = True
        after()


def _call_and_log(function: Callable[[], None]) -> None:
    try:
        function()
    except Exception:  # no caller waits for it
        logger.warning("an environment could not be closed after its step", exc_info=True)
