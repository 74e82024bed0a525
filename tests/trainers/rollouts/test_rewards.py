"""Reward functions beside the environment's own: what they add, and what they leave out."""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from gymnast.agents import ScriptedAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer
from gymnast.errors import ConfigError, InfrastructureError, TooManyFailures, UserCodeError
from gymnast.trainers import Reward, Rollouts, Trainer, collect
from gymnast.trainers.rollouts.rewards import add_rewards, load_rewards, overlong
from gymnast.types import Sampling, Span, StopReason, Trajectory


def trajectory(*turn_rewards: float, **more: Any) -> Trajectory:
    settings: dict[str, Any] = {
        "ids": [1, 2, 3],
        "action_mask": [0, 1, 1],
        "logprobs": [0.0, -1.0, -1.0],
        "prompt_length": 1,
        "turns": [Span(1, 2), Span(2, 3)][: len(turn_rewards)],
        "turn_rewards": list(turn_rewards),
        "stop_reason": StopReason.answered,
        "terminated": True,
        "truncated": False,
        "row": {"name": "seven"},
    }
    return Trajectory(**(settings | more))


def scored(given: Trajectory, *rewards: Reward) -> Trajectory | None:
    return asyncio.run(add_rewards(given, rewards))


async def two(given: Trajectory) -> float:
    await asyncio.sleep(0)
    return 2.0


def length(given: Trajectory) -> int:
    return len(given.ids)


def test_weighted_functions_add_to_the_last_turn_and_are_kept_as_parts() -> None:
    found = scored(trajectory(0.5, 1.0), Reward("two", two, 0.25), Reward("length", length, -1.0))
    assert found is not None
    assert found.turn_rewards == [0.5, 1.0 + 0.25 * 2 - 3]
    assert found.reward_parts == {"environment": 1.5, "two": 2.0, "length": 3.0}
    assert found.metrics == {}


def test_parts_that_the_environment_named_stay() -> None:
    found = scored(trajectory(1.0, reward_parts={"format": 1.0}), Reward("two", two))
    assert found is not None
    assert found.reward_parts == {"format": 1.0, "two": 2.0}


def test_nothing_is_added_where_the_policy_broke_its_box() -> None:
    given = trajectory(0.5, -0.5, metrics={"sandbox/broken": 1.0})
    assert scored(given, Reward("two", two)) == given
    well = trajectory(0.5, -0.5, metrics={"sandbox/broken": 0.0})
    assert (scored(well, Reward("two", two)) or well).reward == 2.0


def test_no_part_of_the_reward_takes_the_place_of_another_of_its_name() -> None:
    """The environment's own would be missing in what trains by parts, and one counted twice."""
    named = trajectory(1.0, reward_parts={"length": 1.0})
    for given, rewards in [
        (named, [Reward("length", length)]),
        (trajectory(1.0), [Reward("two", two), Reward("two", length)]),
        (trajectory(1.0), [Reward("environment", two)]),
    ]:
        with pytest.raises(ConfigError, match="another part of the reward is called"):
            scored(given, *rewards)


def test_without_functions_an_episode_stays_as_it_is() -> None:
    given = trajectory(1.0)
    assert scored(given) is given


def test_none_leaves_the_episode_out() -> None:
    assert scored(trajectory(1.0), Reward("none", lambda _: None), Reward("two", two)) is None


def raising(given: Trajectory) -> float:
    raise KeyError("anwser")


async def raising_later(given: Trajectory) -> float:
    await asyncio.sleep(0)
    raise KeyError("anwser")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (raising, "KeyError: 'anwser'"),
        (raising_later, "KeyError: 'anwser'"),
        (lambda _: math.nan, "returned nan; it must return a finite number"),
        (lambda _: -math.inf, "returned -inf"),
        (lambda _: "7", "returned the text '7'"),
        (lambda _: [1.0], r"returned \[1.0\]"),
    ],
)
def test_what_is_no_reward_is_an_error_that_names_the_function_and_the_row(
    function: Callable[[Trajectory], Any], problem: str
) -> None:
    with pytest.raises(UserCodeError, match=rf"rewards.bad: {problem}.*'seven'") as caught:
        scored(trajectory(1.0), Reward("two", two), Reward("bad", function))
    assert (caught.value.hook, caught.value.row) == ("bad", {"name": "seven"})


def test_functions_run_at_the_same_time_without_blocking_the_loop() -> None:
    """Each waits for the other two, one of which is on the event loop."""
    together = threading.Barrier(2, timeout=30)
    arrived = asyncio.Event()

    def on_a_thread(given: Trajectory) -> float:
        together.wait()
        return 1.0

    async def on_the_loop(given: Trajectory) -> float:
        arrived.set()
        return 1.0

    async def waits_for_it(given: Trajectory) -> float:
        await arrived.wait()
        return 1.0

    functions = (waits_for_it, on_a_thread, on_the_loop, on_a_thread)
    found = scored(
        trajectory(0.0), *(Reward(str(i), function) for i, function in enumerate(functions))
    )
    assert found is not None and found.reward == 4.0


# --- In a collection


class Echo(Environment):
    """Rewards nothing itself."""

    def setup(self, row: Mapping[str, Any]) -> Any:
        return [{"role": "user", "content": str(row["name"])}]


ROWS = [{"name": "one"}, {"name": "two"}, {"name": "three"}]


@pytest.fixture
def gather(renderer: Renderer, say: Callable[..., list[int]]) -> Callable[..., Rollouts]:
    def gather(*rewards: Reward, make: Any = None, **settings: Any) -> Rollouts:
        agent = ScriptedAgent([say("Yes.")])
        return asyncio.run(
            collect(
                make or (lambda: Echo(renderer=renderer)),
                agent,
                ROWS,
                group_size=2,
                sampling=Sampling(),
                rewards=rewards,
                **settings,
            )
        )

    return gather


def by_row(values: Mapping[str, Any]) -> Callable[[Trajectory], Any]:
    def reward(given: Trajectory) -> Any:
        value = values[str(given.row["name"])]
        if isinstance(value, Exception):
            raise value
        return value

    return reward


def test_every_episode_is_rewarded_as_it_ends(gather: Callable[..., Rollouts]) -> None:
    function = by_row({"one": 1.0, "two": 2.0, "three": 3.0})
    rollouts = gather(Reward("named", function, 0.5))
    assert [[t.reward for t in group] for group in rollouts] == [[0.5] * 2, [1.0] * 2, [1.5] * 2]
    assert rollouts.metrics["reward_parts/named"] == 2.0
    assert rollouts.metrics["reward/mean"] == 1.0


def test_what_has_no_reward_is_left_out_counted_by_reason_and_reported_with_its_row(
    gather: Callable[..., Rollouts], caplog: pytest.LogCaptureFixture
) -> None:
    function = by_row({"one": None, "two": math.nan, "three": 3.0})
    with caplog.at_level(logging.WARNING):
        rollouts = gather(Reward("named", function), max_failed_episodes=2)
    assert [len(group) for group in rollouts] == [0, 0, 2]
    metrics = rollouts.metrics
    assert metrics["episodes/left_out"] == 4
    assert metrics["episodes/left_out/reward"] == metrics["episodes/left_out/no_reward"] == 2
    assert metrics["episodes/left_out/user_code"] == 0
    assert caplog.text.count("rewards.named: returned nan") == 2
    assert "'two'" in caplog.text


def test_more_errors_than_allowed_stop_everything_with_the_first(
    gather: Callable[..., Rollouts],
) -> None:
    function = by_row({"one": 1.0, "two": KeyError("anwser"), "three": 3.0})
    with pytest.raises(UserCodeError, match=r"rewards.named: KeyError: 'anwser' .*'two'"):
        gather(Reward("named", function), max_failed_episodes=1)


def test_what_broke_under_a_reward_function_is_no_error_of_the_users(
    gather: Callable[..., Rollouts],
) -> None:
    function = by_row({"one": 1.0, "two": InfrastructureError("the judge is gone"), "three": 3.0})
    rollouts = gather(Reward("named", function))
    assert [len(group) for group in rollouts] == [2, 0, 2]
    assert rollouts.metrics["episodes/left_out/infrastructure"] == 2


class Broken(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Its reward is no number."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, np.nan, terminated, truncated, info


def test_an_environment_whose_reward_is_no_number_never_trains(
    gather: Callable[..., Rollouts], renderer: Renderer
) -> None:
    rollouts = gather(make=lambda: Broken(Echo(renderer=renderer)), max_failed_episodes=6)
    assert rollouts.trajectories == []
    assert rollouts.metrics["episodes/left_out/reward"] == 6


class Own(Echo):
    """Its reward is what the test says of the row."""

    values: Mapping[str, Any]

    def reward(self, episode: Any) -> Any:
        return self.values[self.row["name"]]


def own(values: Mapping[str, Any]) -> type[Own]:
    return type("Own", (Own,), {"values": values})


def test_an_environment_that_gives_none_leaves_the_episode_out(
    gather: Callable[..., Rollouts], renderer: Renderer
) -> None:
    make = own({"one": 1.0, "two": None, "three": {"good": 3.0}})
    called: list[str] = []

    def function(given: Trajectory) -> float:
        called.append(given.row["name"])
        return 1.0

    for rewards, plus in (((), 0.0), ((Reward("function", function),), 1.0)):
        rollouts = gather(*rewards, make=lambda: make(renderer=renderer))
        assert [[t.reward for t in group] for group in rollouts] == [
            [1.0 + plus] * 2,
            [],
            [3.0 + plus] * 2,
        ]
        assert rollouts.metrics["episodes/left_out/no_reward"] == 2
        assert rollouts.metrics["episodes/left_out"] == 2
        assert not any(t.no_reward for t in rollouts.trajectories)
    assert "two" not in called


def test_an_environment_that_gives_no_number_never_trains_and_its_row_is_reported(
    gather: Callable[..., Rollouts], renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    make = own({"one": 1.0, "two": np.nan, "three": 3.0})
    rollouts = gather(make=lambda: make(renderer=renderer), max_failed_episodes=2)
    assert [len(group) for group in rollouts] == [2, 0, 2]
    assert rollouts.metrics["episodes/left_out/user_code"] == 2
    assert caplog.text.count("Own.reward: returned nan; it must return a finite number") == 2
    assert "{'name': 'two'}" in caplog.text
    with pytest.raises(UserCodeError, match=r"Own\.reward: returned nan.*'two'"):
        gather(make=lambda: make(renderer=renderer))


def test_a_reward_that_forgets_to_return_ends_the_run_with_a_hint(tokenizer: Any) -> None:
    make = own(dict.fromkeys(["one", "two", "three"]))
    trainer = Trainer(tiny_model(), tokenizer, make, ROWS, steps=1, rows_per_step=1, group_size=2)
    with pytest.raises(TooManyFailures, match=r"2 have no reward.*None \(does it lack a `return`"):
        trainer.train()


# --- By name, and in the trainer


def test_functions_are_imported_by_name(tmp_path: Path) -> None:
    file = tmp_path / "named.py"
    file.write_text("def brief(trajectory):\n    return -len(trajectory.ids)\n")
    (reward,) = load_rewards([(f"{file}:brief", 0.5, {})])
    assert (reward.name, reward.weight) == ("brief", 0.5)
    assert reward.function(trajectory(1.0)) == -3


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["math:nothing"], "rewards.0.function: 'math' has no 'nothing'."),
        (["math:pi"], "rewards.0.function: 'math:pi' is 3.14.*, which is no function"),
        (["no_module_at_all:f"], "rewards.0.function: there is no module 'no_module_at_all'"),
        (["sqrt"], "rewards.0.function: there is no reward 'sqrt'. There are: overlong, exact, "),
        (["math:sqrt", "cmath:sqrt"], "rewards.1.function: another part .* 'sqrt' already"),
    ],
)
def test_what_cannot_be_a_reward_is_refused(named: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_rewards([(path, 1.0, {}) for path in named])


def test_keyword_only_arguments_are_options(tmp_path: Path) -> None:
    file = tmp_path / "scaled.py"
    file.write_text(
        "async def length(trajectory, *, scale: float, offset: int = 1):\n"
        "    return scale * len(trajectory.ids) + offset\n"
    )
    (reward,) = load_rewards([(f"{file}:length", 2.0, {"scale": 0.5})])
    assert reward.name == "length"
    found = scored(trajectory(0.0), reward)
    assert found is not None and found.reward_parts["length"] == 2.5
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "rewards.0.scale: is required"),
        ({"scale": "much"}, "rewards.0.scale: must be a number, got 'much'"),
        ({"scael": 1.0}, r"rewards.0.scael: unknown key; did you mean scale\? .got 1.0"),
        ({"scale": 1.0, "weigth": 2.0}, r"rewards.0.weigth: unknown key; did you mean weight\?"),
    ]
    for options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            load_rewards([(f"{file}:length", 1.0, options)])


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0.0), (6, 0.0), (7, -0.25), (9, -0.75), (10, -1.0), (30, -1.0)]
)
def test_overlong_punishes_the_last_tokens_before_the_limit(tokens: int, expected: float) -> None:
    (reward,) = load_rewards([("overlong", 1.0, {"limit": 10, "buffer": 4})])
    episode = trajectory(
        1.0,
        ids=[1] * (2 + tokens),
        action_mask=[0, *[1] * tokens, 0],
        logprobs=[0.0] * (2 + tokens),
    )
    assert reward.function(episode) == expected


def test_overlong_needs_a_limit_and_a_buffer_within_it() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"limit": 10}, "rewards.0.buffer: is required"),
        ({"limit": 10, "buffer": 0}, "rewards.0.buffer: must be >= 1, got 0"),
        ({"limit": 10, "buffer": 11}, "rewards.0.buffer: must be <= 10, the limit, got 11: "),
    ]
    for options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            load_rewards([("overlong", 1.0, options)])
    with pytest.raises(ConfigError, match=r"^overlong.buffer: must be <= 10, the limit, got 11: "):
        overlong(trajectory(1.0), limit=10, buffer=11)


def test_a_trainer_learns_from_reward_functions_alone(tokenizer: Any) -> None:
    from gymnast.agents.loading.tiny import tiny_model

    def small_letters(given: Trajectory) -> float:
        text = str(given.messages[-1]["content"])
        return sum(map("abcdefghijklmnopqrstuvwxyz".count, text)) / max(1, len(text))

    trainer = Trainer(
        tiny_model(),
        tokenizer,
        Echo,
        [{"name": word} for word in ("Go.", "Say.", "Now.")],
        rewards=[Reward("small_letters", small_letters)],
        sampling=Sampling(max_new_tokens=8),
        group_size=16,
        rows_per_step=2,
        steps=10,
        learning_rate=1e-2,
        eval_rows=[{"name": word} for word in ("Go.", "Say.", "Now.")] * 8,
    )
    summary = trainer.train()
    assert summary["before"] < 0.4 and summary["after"] > 0.6
