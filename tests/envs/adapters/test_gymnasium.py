"""Gymnasium's games: the return of plain Gymnasium, what a policy reads, and their names."""

import asyncio
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium.utils.env_checker
import pytest

from game_fixtures import play
from gymnast.agents import ScriptedAgent
from gymnast.envs import Renderer, check_env, make
from gymnast.envs.adapters.gymnasium import GymnasiumEnvironment
from gymnast.errors import ConfigError, UnknownEnvironment
from gymnast.trainers import rollout
from gymnast.types import StopReason

Calls = Callable[..., dict[str, Any]]
# Toy text, and Box actions; the last two would go on for long.
GAMES: dict[str, dict[str, Any]] = {
    "FrozenLake-v1": {},
    "FrozenLake8x8-v1": {"is_slippery": False},
    "Taxi-v4": {},
    "Blackjack-v1": {"natural": True},
    "Pendulum-v1": {"g": 9.81},
    "CartPole-v1": {},
    "CliffWalking-v1": {"max_episode_steps": 30},
    "MountainCarContinuous-v0": {"max_episode_steps": 60},
}


# --- The same game


@pytest.mark.parametrize("id", GAMES)
def test_a_scripted_policy_earns_the_same_as_in_plain_gymnasium(id: str, calls: Calls) -> None:
    plain = gymnasium.make(id, **GAMES[id])
    env = make(f"gymnasium:{id}", make=GAMES[id], max_turns=10_000)
    try:
        for seed in range(3):
            plain.reset(seed=seed)
            plain.action_space.seed(seed)
            env.reset(options={"row": {"seed": seed}})
            over = False
            while not over:
                action = plain.action_space.sample()
                _, reward, terminated, truncated, _ = plain.step(action)
                said = calls(("act", {"action": action.tolist()}))
                outcome = asyncio.run(env.act(said))
                assert outcome[1:4] == (float(reward), terminated, truncated and not terminated)
                assert outcome.info["errors"] == []
                over = terminated or truncated
            reason = StopReason.environment if terminated else StopReason.max_turns
            assert outcome.info["stop_reason"] is reason
    finally:
        env.close()
        plain.close()


def test_a_game_is_played_in_tokens(renderer: Renderer, calls: Calls) -> None:
    env = make("gymnasium:FrozenLake-v1", renderer, make={"is_slippery": False})
    assert env.max_turns == 100  # as many as the game has steps
    env.reset(seed=0)
    moves = [1, 1, 2, 1, 2, 2]
    turns = [renderer.encode(calls(("act", {"action": a})), tools=env.tools) for a in moves]
    played = asyncio.run(rollout(env, ScriptedAgent(turns), {"seed": 5}))
    env.close()
    assert played.turn_rewards == [0.0] * 5 + [1.0]
    assert played.stop_reason is StopReason.environment and played.terminated
    assert played.states == [repr(n) for n in (0, 4, 8, 9, 13, 14)]
    assert played.messages[-1]["content"].endswith("HFF<red>G</red>")
    assert played.row == {"seed": 5}


def test_several_calls_of_a_message_are_steps_until_the_end(calls: Calls) -> None:
    env = make("gymnasium:FrozenLake-v1", make={"is_slippery": False})
    moves = [("act", {"action": a}) for a in (1, 1, 2, 1, 2, 2, 2)]
    (outcome,) = play(env, calls(*moves))
    assert outcome.reward == 1.0 and outcome.info["stop_reason"] is StopReason.environment
    assert outcome.messages[-1]["content"] == "The game is over; this action was not taken."
    env.close()


def test_rows_carry_the_seed_of_the_game() -> None:
    env = make("gymnasium:Taxi-v4")
    prompts = {}
    for seed in range(4):
        env.reset(seed=seed)
        assert list(env.row) == ["seed"]
        prompts[env.row["seed"]] = env.messages
        again, row = env.messages, dict(env.row)
        env.reset(seed=99, options={"row": row})
        assert env.messages == again  # whatever the environment's seed
    assert len({json.dumps(prompt) for prompt in prompts.values()}) == 4
    env.reset(seed=3, options={"row": {}})  # without one, the environment's decides
    first = env.messages
    env.reset(seed=3, options={"row": {}})
    assert env.messages == first
    env.reset(seed=4, options={"row": {}})
    assert env.messages != first
    env.close()


def test_the_options_of_a_row_are_those_of_the_games_reset() -> None:
    env = make("gymnasium:Pendulum-v1")
    still = {"x_init": 0.0, "y_init": 0.0}
    env.reset(options={"row": {"seed": 1, "options": still}})
    assert env.messages[0]["content"].split("\n\n")[-2] == "[1.0, 0.0, 0.0]"
    env.close()


def test_a_thousand_episodes_leave_nothing_behind(calls: Calls) -> None:
    env = make("gymnasium:Blackjack-v1")

    async def run() -> list[float]:
        earned = []
        for seed in range(1000):
            await env.areset(options={"row": {"seed": seed}})
            earned.append((await env.act(calls(("act", {"action": 0})))).reward)
        return earned

    earned = asyncio.run(run())
    env.close()
    assert set(earned) == {-1.0, 0.0, 1.0}
    for thread in threading.enumerate():
        if "Blackjack" in thread.name:
            thread.join(10)
            assert not thread.is_alive()
    plain = gymnasium.make("Blackjack-v1")
    assert sum(earned) == sum(
        [(plain.reset(seed=seed), float(plain.step(0)[1]))[1] for seed in range(1000)]
    )


# --- What a policy reads


def test_the_prompt_is_of_the_games_docstring_and_its_text(renderer: Renderer) -> None:
    env = make("gymnasium:Taxi-v4", renderer)
    env.reset(options={"row": {"seed": 1}})
    (prompt,) = env.messages
    assert prompt["content"].startswith("The Taxi Problem involves navigating to passengers")
    assert "- +20 delivering passenger." in prompt["content"]
    assert "The passenger waits at the blue letter" in prompt["content"]
    assert "|<magenta>R</magenta>: | : :G|" in prompt["content"]
    assert "\x1b" not in prompt["content"] and "500 discrete states" not in prompt["content"]
    (action,) = env.tools[0]["function"]["parameters"]["properties"].values()
    assert "- 4: Pickup passenger" in action.pop("description")
    assert action == {"type": "integer", "minimum": 0, "maximum": 5}
    env.close()


def test_without_a_text_of_its_own_a_game_is_described_by_its_numbers() -> None:
    env = make("gymnasium:MountainCarContinuous-v0")
    env.reset(options={"row": {"seed": 0}})
    said = env.messages[0]["content"]
    assert "| 0   | position of the car along the x-axis |" in said
    numbers = json.loads(said.split("\n\n")[-2])
    plain = gymnasium.make("MountainCarContinuous-v0")
    assert numbers == pytest.approx(plain.reset(seed=0)[0], rel=1e-3)
    assert "```" not in said and "![" not in said
    env.close()


class Pole(GymnasiumEnvironment):
    """A game in words of its own."""

    id = "CartPole-v1"

    def describe(self, observation: Any) -> str:
        return "It leans right." if observation[2] > 0 else "It leans left."


def test_a_subclass_describes_in_its_own_words_and_a_yaml_names_actions(calls: Calls) -> None:
    env = make(Pole, actions=["left", "right"], instructions="Balance the pole.")
    right = calls(("act", {"action": "right"}))
    outcomes = play(env, right, right, calls(("act", {"action": "up"})))
    assert env.messages[0]["content"].split("\n\n")[::2] == [
        "Balance the pole.",
        "Act by calling the tool act.",
    ]
    said = [outcome.messages[0]["content"] for outcome in outcomes]
    assert set(said[:2]) <= {"It leans right.", "It leans left."}
    assert "Error: act(action: 'left' | 'right')" in said[2] or "'up' is not one of" in said[2]
    assert outcomes[2].reward == 0.0  # no step
    plain = gymnasium.make("CartPole-v1")
    plain.reset(seed=0)
    for _ in range(2):
        observation = plain.step(1)[0]
    assert said[1] == ("It leans right." if observation[2] > 0 else "It leans left.")
    env.close()


# --- Checks, pickles, names


@pytest.mark.parametrize("id", [id for id in GAMES if "Lake8x8" not in id])
def test_both_checks_are_clean(id: str, renderer: Renderer) -> None:
    env = make(f"gymnasium:{id}", renderer)
    (tried,) = check_env(env).tools
    assert tried.answer is not None and not tried.answer.startswith("Error")
    gymnasium.utils.env_checker.check_env(env, skip_render_check=True)
    env.close()


def test_environments_and_their_classes_are_pickled_by_name(renderer: Renderer) -> None:
    for made in (make("gymnasium:FrozenLake-v1", renderer), make(Pole, renderer)):
        copy = pickle.loads(pickle.dumps(made))
        assert type(copy) is type(made)
        for env in (made, copy):
            env.reset(seed=3)
        assert copy.messages == made.messages
        made.close()
        copy.close()


def test_a_file_registers_a_game(tmp_path: Path) -> None:
    (tmp_path / "lakes.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Lake-v0', 'gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv')\n"
    )
    env: Any = make(f"gymnasium:{tmp_path}/lakes.py:Lake-v0")
    assert env.game.spec.id == "Lake-v0"
    env.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gymnasium:FrozenLak-v1", "FrozenLak` doesn't exist. Did you mean: `FrozenLake`?"),
        ("gymnasium:FrozenLake", "Did you mean 'FrozenLake-v1'?"),
        ("gymnasium:FrozenLake-v9", "It provides versioned environments: [ `v1` ]."),
        ("gymnasium:nowhere:Pong-v5", "there is no module 'nowhere' to import"),
        ("gymnasium:nowhere.py:Pong-v5", "nowhere.py"),
        ("gymnasium:Pong v5", "Malformed environment ID: Pong v5."),
        ("gymnasium:", "'gymnasium:' names nothing."),
    ],
)
def test_a_game_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(UnknownEnvironment) as refused:
        make(name)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("id", "settings", "message"),
    [
        ("FrozenLake-v1", {"make": {"slippery": 1}}, "cannot be made with {'slippery': 1}: TypeE"),
        ("FrozenLake-v1", {"slippery": 1}, "FrozenLake-v1 has no setting 'slippery'."),
        ("FrozenLake-v1", {"actions": ["left"]}, "actions names 1 actions, and the action space"),
        ("Pendulum-v1", {"actions": ["left"]}, "name each action of a Discrete space"),
        ("gymnast/Arithmetic-v0", {}, "is one of Gymnast's own; write 'gymnast/Arithmetic-v0'"),
    ],
)
def test_a_game_that_cannot_be_played_says_why(id: str, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make(f"gymnasium:{id}", **settings)
    assert message in str(refused.value)
