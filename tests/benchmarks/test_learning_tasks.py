"""The tasks of the learning benchmark: their solutions earn everything, and nothing else does."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gymnast.envs import Environment, call, make
from gymnast.trainers import play_solution
from learning_jobs import ROOT, TASKS

NAMES = {
    "shop": f"{ROOT / 'examples' / 'shop.py'}:Shop",
    "hinted shop": f"{TASKS / 'hinted_shop.py'}:HintedShop",
    "warehouse": f"{TASKS / 'warehouse.py'}:Warehouse",
    "trail": f"{TASKS / 'trail.py'}:Trail",
}
LAKE_ACTIONS = ["left", "down", "right", "up"]
LAMP = {
    "prompt": "Move the lamp to shelf 42.",
    "thing": "lamp",
    "target": 42,
    "shelf_of": {"lamp": 7, "drum": 8},
}
TRAIL = {"prompt": "?", "trail": ["well", "mill", "pond", "barn"], "answer": 345}


def task(name: str, **settings: Any) -> Environment:
    found: Environment = make(NAMES[name], **settings)
    return found


def played(env: Environment, row: Any, said: Sequence[Any]) -> tuple[float, list[str]]:
    """The reward of an episode in which this is said, and what the tools answered."""

    async def play() -> float:
        await env.areset(options={"row": row})
        messages = [{"role": "assistant", "content": s} if isinstance(s, str) else s for s in said]
        return sum([(await env.act(message)).reward for message in messages])

    reward = asyncio.run(play())
    return reward, [m["content"] for m in env.messages if m["role"] == "tool"]


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_earns_everything_and_needs_its_tools(name: str) -> None:
    env = task(name)
    rows = [env.sample_row(np.random.default_rng(seed)) for seed in range(20)]
    trajectories = [asyncio.run(play_solution(env, row)) for row in rows]
    assert {trajectory.reward for trajectory in trajectories} == {1.0}
    assert {played(env, row, ["It is done: 10."])[0] for row in rows} == {0.0}


def test_prices_differ_from_row_to_row_and_are_not_in_the_prompt() -> None:
    env = task("shop")
    rows = [env.sample_row(np.random.default_rng(seed)) for seed in range(20)]
    assert len({tuple(row["prices"].values()) for row in rows}) == 20
    assert not any(str(row["answer"]) in row["prompt"] for row in rows)


@pytest.mark.parametrize("name", ["hinted shop", "warehouse"])
def test_a_hint_shows_four_solved_rows(name: str) -> None:
    env = task(name)
    row = env.sample_row(np.random.default_rng(0))
    hint: Any = env.hint(row)
    messages = asyncio.run(hint)
    assert [m["role"] for m in messages].count("user") == 4
    assert messages[-1]["role"] in ("assistant", "tool")


FIND, TAKE, PUT = call("find", thing="lamp"), call("take", shelf=7), call("put", shelf=42)


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ([TAKE, PUT, call("done")], 1.0),
        ([TAKE, PUT, "Done."], 1.0),
        ([FIND, TAKE, "Done."], 0.3),
        ([TAKE, call("put", shelf=43), "Done."], 0.3),
        ([TAKE, call("put", shelf=7), "Done."], 0.0),
        ([call("take", shelf=8), PUT, "Done."], 0.0),  # the drum
        ([call("take", shelf=8), call("put", shelf=9), TAKE, PUT, "Done."], 0.0),
        ([call("take", shelf=8), call("put", shelf=8), TAKE, PUT, "Done."], 1.0),
        ([TAKE, call("put", shelf=8), PUT, "Done."], 1.0),  # shelf 8 is not empty
        ([PUT, TAKE, TAKE, call("take", shelf=6), PUT, "Done."], 1.0),  # errors change nothing
    ],
)
def test_a_warehouse_is_judged_by_what_is_left_on_its_shelves(
    said: Sequence[Any], reward: float
) -> None:
    assert played(task("warehouse"), LAMP, said)[0] == reward


def test_every_call_of_a_trail_needs_the_result_of_the_one_before() -> None:
    looks = [call("look", place=place) for place in TRAIL["trail"]]  # type: ignore[attr-defined]
    reward, found = played(task("trail"), TRAIL, [*looks, "345."])
    assert found == ["To the mill.", "To the pond.", "To the barn.", "Number 345."]
    assert reward == 1.0
    reward, found = played(task("trail"), TRAIL, [looks[0], looks[2], looks[3], "I give up."])
    assert found == ["To the mill.", "Nothing is here.", "Nothing is here."]
    assert reward == 0.0


def test_states_of_a_trail_are_how_far_it_is_known() -> None:
    env = task("trail")
    looks = [call("look", place=place) for place in ("well", "pond", "well", "mill")]

    async def states() -> list[Any]:
        await env.areset(options={"row": TRAIL})
        found = [env.turn_state()]
        for look in looks:
            await env.act(look)
            found.append(env.turn_state())
        return found

    assert asyncio.run(states()) == [0, 1, 1, 1, 2]


def test_the_demonstrations_of_the_lake_go_different_ways() -> None:
    env = make(f"{TASKS / 'lake.py'}:Lake", make={"is_slippery": False}, actions=LAKE_ACTIONS)
    played_ways = set()
    for seed in range(3):
        trajectory = asyncio.run(play_solution(env, {"seed": seed}))
        assert trajectory.reward == 1.0 and trajectory.terminated
        played_ways.add(str(trajectory.messages))
    env.close()
    assert len(played_ways) == 3


@pytest.mark.adapters
def test_the_clock_rewards_the_right_call_and_the_right_time() -> None:
    env = make(f"{TASKS / 'clock.py'}:Clock", session="shared", offer=["convert_time"])
    rows = [env.sample_row(np.random.default_rng(seed)) for seed in range(20)]
    assert {asyncio.run(play_solution(env, row)).reward for row in rows} == {1.0}
    asked = call("convert_time", **rows[0]["arguments"])
    other = call("convert_time", **{**rows[0]["arguments"], "time": "00:07"})
    rewards = [played(env, rows[0], [said, "I do not know."])[0] for said in (asked, other)]
    assert rewards == [0.3, 0.0]
    env.close()
