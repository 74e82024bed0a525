"""What is said of environments without a reward."""

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

from gymnast.envs import Environment, Mixture, compose, tool
from gymnast.trainers.rollouts.environments import unscored

SAID = (
    "Desk has no reward, so every episode of it gets 0 and teaches nothing: write reward(self, "
    "episode) or turn_reward(self, turn), or name functions in `rewards`"
)


class Desk(Environment):
    """Gives no reward."""


class Paid(Environment):
    """Gives one."""

    def reward(self, episode: Any) -> float:
        return 1.0

    @tool
    def pay(self) -> str:
        """Pay."""
        return "paid"


class ByTurn(Environment):
    def turn_reward(self, turn: Any) -> float:
        return 1.0


class ByText(Environment):
    def text_rewards(self, turn: Any) -> Any:
        return [(1, 1.0)]


class Steps(Environment):
    async def astep(self, action: Any) -> Any:
        observation, _, *rest = await super().astep(action)
        return observation, 1.0, *rest


class Pays(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, 1.0, *rest


@pytest.mark.parametrize(
    ("make_env", "said"),
    [
        (Desk, [SAID]),
        (lambda: Mixture({Paid: 1, Desk: 2}), [SAID]),
        (Paid, []),
        (ByTurn, []),
        (ByText, []),
        (Steps, []),
        (lambda: Pays(Desk()), []),
        (lambda: compose(Desk, Paid)(), []),
    ],
)
def test_an_environment_that_gives_no_reward_is_named(
    make_env: Callable[[], Any], said: list[str]
) -> None:
    assert unscored(make_env) == said
