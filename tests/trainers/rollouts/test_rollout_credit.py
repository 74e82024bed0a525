"""What a rollout keeps of states and of rewards by token, through wrappers and reward functions."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents import ScriptedAgent
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import ConfigError
from gymnast.trainers import Reward, rollout
from gymnast.trainers.learner.credit import reward_batch, token_rewards
from gymnast.trainers.rollouts.rewards import add_rewards
from gymnast.types import Trajectory

END = "<|im_end|>"
Encode = Callable[[str], list[int]]
Write = Callable[..., str]


class Rooms(Environment):
    """A door to go through; a cited fact is worth something where it is written."""

    def setup(self, row: Any) -> None:
        self.room = "hall"

    @tool
    def go(self, room: str) -> str:
        """Go into a room."""
        self.room = room
        return f"You are in the {room}."

    def turn_state(self) -> Any:
        return self.room

    def text_rewards(self, turn: Any) -> Any:
        return [(cited.end(), 0.5) for cited in re.finditer(r"\[\d+\]", turn.raw)]

    def reward(self, episode: Any) -> float:
        return 2.0


class Given(gymnasium.Env[Any, Any]):
    """Any environment over token ids: its infos are given, the first is of reset."""

    def __init__(self, infos: list[dict[str, Any]], rewards: list[float]) -> None:
        self.infos, self.rewards = infos, rewards

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.turn = 0
        return np.array([1, 2]), self.infos[0]

    def step(self, action: Any) -> Any:
        self.turn += 1
        over, reward = self.turn == len(self.rewards), self.rewards[self.turn - 1]
        return np.array([3]), reward, over, False, self.infos[self.turn]


def play(env: gymnasium.Env[Any, Any], turns: list[list[int]]) -> Trajectory:
    try:
        return asyncio.run(rollout(env, ScriptedAgent(turns), {"prompt": "Go."}))
    finally:
        env.close()


def test_a_trajectory_has_the_states_and_the_rewards_of_its_tokens(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    first = encode("See [1]. " + write_call("go", room="cellar") + END)
    trajectory = play(Rooms(renderer), [first, encode("Done [2]." + END)])
    assert list(trajectory.states) == ["hall", "cellar"]
    assert trajectory.turn_rewards == [0.5, 2.5]
    rewards = trajectory.token_rewards
    assert len(rewards) == len(trajectory.ids)
    (a, b), (c, d) = trajectory.turns
    (cited,) = [place for place in range(a, b) if rewards[place]]
    assert cited < b - 1 and rewards[cited] == 0.5
    assert sum(rewards[c:d]) == 2.5 and rewards[d - 1] == 2.0
    assert not any(r for r, mask in zip(rewards, trajectory.action_mask, strict=True) if not mask)


def test_environments_without_the_hooks_have_neither() -> None:
    trajectory = play(Given([{}, {}], [1.0]), [[5, 6]])
    assert list(trajectory.states) == [] and list(trajectory.token_rewards) == []


def test_any_environment_may_say_both_in_its_info() -> None:
    first: dict[str, Any] = {"state": "a"}
    infos = [first, {"token_rewards": np.array([1.0, 2.0])}, {"state": "unused"}]
    trajectory = play(Given(infos, [4.0, 1.0]), [[5, 6], [7, 8]])
    assert list(trajectory.states) == ["a", None], "the second turn's state is not known"
    assert list(trajectory.token_rewards) == [0, 0, 1.0, 3.0, 0, 0.0, 1.0, 0]


def test_wrappers_count(renderer: Renderer, encode: Encode) -> None:
    class Renamed(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, **settings: Any) -> Any:
            ids, info = self.env.reset(**settings)
            return ids, info | {"state": "wrapped"}

    doubled = TransformReward(Renamed(Rooms(renderer)), lambda reward: 2.0 * float(reward))
    trajectory = play(doubled, [encode("Done [2]." + END)])
    assert list(trajectory.states) == ["wrapped"]
    assert trajectory.reward == sum(trajectory.token_rewards) == 5.0


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        ([{"state": ["a"]}, {}], r"info\['state'\] is \['a'\], which cannot be hashed"),
        ([{}, {"token_rewards": [1.0]}], r"each of the 2 tokens of the action, got \[1.0\]"),
        ([{}, {"token_rewards": [1.0, "x"]}], r"one finite number for each of the 2 tokens"),
        ([{}, {"token_rewards": [1.0, float("inf")]}], r"one finite number for each of the 2"),
        ([{}, {"token_rewards": 3.0}], r"one finite number for each of the 2 tokens"),
    ],
)
def test_what_cannot_be_compared_or_does_not_fit_is_refused(infos: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"environment: {message}|{message}"):
        play(Given(infos, [1.0]), [[5, 6]])


def test_what_reward_functions_add_is_the_last_tokens() -> None:
    trajectory = play(Given([{}, {"token_rewards": [1.0, 0.0]}], [1.0]), [[5, 6]])
    scored = asyncio.run(add_rewards(trajectory, [Reward("more", lambda t: 4.0, 0.5)]))
    assert scored is not None
    assert scored.turn_rewards == [3.0] and list(scored.token_rewards) == [0, 0, 1.0, 2.0, 0]
    assert token_rewards(scored).tolist() == [1.0, 2.0]


number = st.sampled_from([-1.0, 0.0, 0.25, 3.0])
turns = st.tuples(
    number, st.none() | st.lists(number, min_size=1, max_size=4)
)  # reward, and those of tokens


@given(st.lists(turns, min_size=1, max_size=4))
def test_rewards_of_the_tokens_of_a_turn_add_up_to_its_reward(turns: Any) -> None:
    infos = [{}, *({} if tokens is None else {"token_rewards": tokens} for _, tokens in turns)]
    actions = [[5] * (2 if tokens is None else len(tokens)) for _, tokens in turns]
    trajectory = play(Given(infos, [reward for reward, _ in turns]), actions)
    assert trajectory.turn_rewards == [reward for reward, _ in turns]
    for (start, end), (reward, tokens) in zip(trajectory.turns, turns, strict=True):
        if trajectory.token_rewards:
            assert sum(trajectory.token_rewards[start:end]) == reward
            if tokens is not None:
                assert list(trajectory.token_rewards[start : end - 1]) == tokens[:-1]
    batch = reward_batch([[trajectory]])
    assert len(batch.token_rewards[0]) == trajectory.action_tokens
