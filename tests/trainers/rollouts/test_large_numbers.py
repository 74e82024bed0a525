"""Numbers of any size leave their episode out and are counted; they never end a collection."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest

from gymnast.agents import ScriptedAgent
from gymnast.envs import Environment, Renderer, Score
from gymnast.errors import UserCodeError
from gymnast.trainers import Reward, Rollouts, collect
from gymnast.trainers.rollouts.metrics import Counts, summarise
from gymnast.trainers.rollouts.one_episode import rollout
from gymnast.types import Sampling, Trajectory

ROWS = [{"name": "one"}, {"name": "two"}, {"name": "three"}]
LARGE = [10**400, -(10**5000), Fraction(10**400), np.longdouble("1e400"), math.nan]


class Own(Environment):
    """Its hooks return what the test says of the row."""

    values: Mapping[str, Any]
    hook: str

    def setup(self, row: Mapping[str, Any]) -> Any:
        return [{"role": "user", "content": str(row["name"])}]

    def value(self, hook: str, otherwise: Any) -> Any:
        return self.values.get(self.row["name"], otherwise) if hook == self.hook else otherwise

    def reward(self, episode: Any) -> Any:
        return self.value("reward", 1.0)

    def turn_reward(self, turn: Any) -> Any:
        return self.value("turn_reward", 0.0)

    def metrics(self, episode: Any) -> Any:
        return self.value("metrics", {})


@pytest.fixture
def gather(renderer: Renderer, say: Callable[..., list[int]]) -> Callable[..., Rollouts]:
    def gather(
        *rewards: Reward,
        hook: str = "",
        two: Any = None,
        wrap: Callable[[Any], Any] = lambda env: env,
        **settings: Any,
    ) -> Rollouts:
        made = type("Own", (Own,), {"hook": hook, "values": {"two": two}})
        return asyncio.run(
            collect(
                lambda: wrap(made(renderer=renderer)),
                ScriptedAgent([say("Yes.")]),
                ROWS,
                group_size=2,
                sampling=Sampling(),
                rewards=rewards,
                **settings,
            )
        )

    return gather


@pytest.mark.parametrize("number", LARGE, ids=lambda number: type(number).__name__)
@pytest.mark.parametrize("hook", ["reward", "turn_reward", "metrics"])
def test_a_hooks_number_leaves_its_episodes_out(
    hook: str, number: Any, gather: Callable[..., Rollouts], caplog: pytest.LogCaptureFixture
) -> None:
    given = {"a": number} if hook == "metrics" else number
    with caplog.at_level(logging.WARNING):
        rollouts = gather(hook=hook, two=given, max_failed_episodes=2)
    assert [len(group) for group in rollouts] == [2, 0, 2]
    assert rollouts.metrics["episodes/left_out/user_code"] == 2
    assert caplog.text.count(f"Own.{hook}: returned ") == 2 and "'two'" in caplog.text


@pytest.mark.parametrize("number", LARGE, ids=lambda number: type(number).__name__)
@pytest.mark.parametrize(
    "give",
    [
        lambda number: number,
        lambda number: {"a": number},
        lambda number: Score({"a": 1.0}, {"b": number}),
    ],
    ids=["number", "part", "metric"],
)
def test_a_functions_number_leaves_its_episodes_out(
    give: Callable[[Any], Any], number: Any, gather: Callable[..., Rollouts]
) -> None:
    def named(trajectory: Trajectory) -> Any:
        return give(number) if trajectory.row["name"] == "two" else 1.0

    rollouts = gather(Reward("named", named), max_failed_episodes=2)
    assert [len(group) for group in rollouts] == [2, 0, 2]
    assert rollouts.metrics["episodes/left_out/reward"] == 2
    with pytest.raises(UserCodeError) as caught:
        gather(Reward("named", named))
    assert caught.value.hook == "named" and caught.value.row == {"name": "two"}


@pytest.mark.parametrize(
    ("values", "weight", "hook"),
    [
        ((1e308, 1.0), 10.0, "first"),
        ((1e308, 1e308), 1.0, "second"),
        ((0.0, {"a": 1e308, "b": 1e308}), 1.0, "second"),
    ],
)
def test_weighted_sums_beyond_float_leave_episodes_out(
    values: Any, weight: float, hook: str, gather: Callable[..., Rollouts]
) -> None:
    first, second = values
    rewards = Reward("first", lambda _: first, weight), Reward("second", lambda _: second)
    rollouts = gather(*rewards, max_failed_episodes=6)
    assert rollouts.trajectories == [] and rollouts.metrics["episodes/left_out/reward"] == 6
    with pytest.raises(UserCodeError) as caught:
        gather(*rewards)
    assert caught.value.hook == hook


def test_an_own_reward_with_an_added_one_may_be_too_large(gather: Callable[..., Rollouts]) -> None:
    added = Reward("added", lambda _: 1e308)
    rollouts = gather(added, hook="reward", two=1e308, max_failed_episodes=2)
    assert [len(group) for group in rollouts] == [2, 0, 2]
    assert rollouts.metrics["episodes/left_out/reward"] == 2


class Changed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Changes what `step` returns for a row."""

    reward: Any = None
    info: Mapping[str, Any] = {}
    error: Exception | None = None

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self.env.unwrapped.row["name"] == "two":  # type: ignore[attr-defined]
            if self.error is not None:
                raise self.error
            reward = reward if self.reward is None else self.reward
            info = {**info, **self.info}
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": 10**400},
        {"reward": Fraction(-(10**400))},
        {"reward": "much"},
        {"info": {"reward_parts": {"a": 10**400}}},
        {"info": {"metrics": {"a": "much"}}},
        {"info": {"metrics": [1.0]}},
        {"error": OverflowError("int too large to convert to float")},
    ],
    ids=str,
)
def test_a_wrappers_number_leaves_its_episodes_out(
    changes: Mapping[str, Any], gather: Callable[..., Rollouts]
) -> None:
    wrapper = type("Changed", (Changed,), dict(changes))
    rollouts = gather(wrap=wrapper, max_failed_episodes=2)
    assert [len(group) for group in rollouts] == [2, 0, 2]
    assert rollouts.metrics["episodes/left_out"] == 2
    with pytest.raises(UserCodeError) as caught:
        gather(wrap=wrapper)
    assert caught.value.row == {"name": "two"}


def test_a_wrappers_large_metric_is_infinite(gather: Callable[..., Rollouts]) -> None:
    wrapper = type("Changed", (Changed,), {"info": {"metrics": {"a": 10**400}}})
    rollouts = gather(wrap=wrapper)
    assert rollouts.metrics["environment/a"] == math.inf and len(rollouts.trajectories) == 6


@pytest.mark.parametrize("number", [1e308, -1e308, 1e200])
def test_large_finite_rewards_have_finite_statistics(
    number: float, gather: Callable[..., Rollouts]
) -> None:
    rollouts = gather(hook="reward", two=number)
    metrics = rollouts.metrics
    assert metrics["reward/mean"] == pytest.approx(number / 3)
    assert metrics["reward/std"] == pytest.approx(abs(number) * (2 / 9) ** 0.5)
    assert "episodes=6" in repr(rollouts)


def test_the_mean_of_the_largest_numbers_is_finite(gather: Callable[..., Rollouts]) -> None:
    everywhere = Reward("large", lambda _: Score({"a": 1.7e308}, {"b": 1.7e308}))
    rollouts = gather(everywhere, hook="reward", two=1.0)
    metrics = summarise(rollouts.trajectories, Counts())
    for name in ("reward/mean", "reward_parts/large/a", "environment/b"):
        assert metrics[name] == pytest.approx(1.7e308), name
    assert metrics["reward/std"] < 1e300


def test_a_rollout_of_a_wrong_number_names_the_hook(
    renderer: Renderer, say: Callable[..., list[int]]
) -> None:
    env = type("Own", (Own,), {"hook": "reward", "values": {"two": 10**400}})(renderer=renderer)
    with pytest.raises(UserCodeError) as caught:
        asyncio.run(rollout(env, ScriptedAgent([say("Yes.")]), {"name": "two"}))
    assert caught.value.hook == "reward" and caught.value.row == {"name": "two"}
