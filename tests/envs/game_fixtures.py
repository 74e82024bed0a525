"""A game whose spaces, rewards and accidents are given, and what plays it."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from gymnast.envs import Environment, Outcome, make


class Outside(gymnasium.Env[Any, Any]):
    """A game whose spaces, rewards and accidents are given."""

    def __init__(self, actions: Any = None, observations: Any = None, reward: Any = 1.0) -> None:
        self.action_space = spaces.Discrete(2) if actions is None else actions
        self.observation_space = spaces.Text(9) if observations is None else observations
        self.reward = reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.taken: list[Any] = []
        return "begun", {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        self.taken.append(action)
        reward = self.reward() if callable(self.reward) else self.reward
        return "on", reward, False, False, {}

    def close(self) -> None:
        CLOSED.append(self)


CLOSED: list[Outside] = []
OUTSIDE: Any = Outside  # whose parameters are not those of Gymnasium's protocol
gymnasium.register(id="Outside-v0", entry_point=OUTSIDE, disable_env_checker=True)


@pytest.fixture
def outside() -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def outside(*, step_timeout_s: float | None = None, **keywords: Any) -> Any:
        env = make("gymnasium:Outside-v0", make=keywords, step_timeout_s=step_timeout_s)
        made.append(env)
        return env

    CLOSED.clear()
    yield outside
    for env in made:
        env.close()
        assert env.game.unwrapped in CLOSED


def play(env: Environment, *messages: Any) -> list[Outcome]:
    """Begin an episode and act with each message; the environment stays open."""

    async def run() -> list[Outcome]:
        await env.areset(options={"row": {"seed": 0}})
        return [await env.act(message) for message in messages]

    return asyncio.run(run())
