"""Actions of any space as calls, and observations of any space as texts."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from game_fixtures import play
from gymnast.envs import make
from gymnast.errors import ConfigError

Calls = Callable[..., dict[str, Any]]

ACTIONS = {
    "discrete": spaces.Discrete(3, start=-1),
    "multi-discrete": spaces.MultiDiscrete([3, 5], start=[0, 2]),
    "a table of multi-discrete": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi-binary": spaces.MultiBinary([2, 3]),
    "box": spaces.Box(np.array([-0.4, 0], np.float32), np.array([0.4, np.inf], np.float32)),
    "a number": spaces.Box(-1.0, 1.0, (), dtype=np.float64),
    "box of bytes": spaces.Box(0, 255, (2, 2), dtype=np.uint8),
    "text": spaces.Text(4, min_length=1, charset="ab]^-\\"),
    "dict": spaces.Dict({"go": spaces.Discrete(4), "say": spaces.Text(3, min_length=0)}),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Dict({"x": spaces.Box(0, 1, (1,))})]),
}


def written(action: Any) -> Any:
    """An action as a policy writes it, in JSON."""
    if isinstance(action, dict):
        return {key: written(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return [written(part) for part in action]
    return action if isinstance(action, str) else action.tolist()


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_of_any_space_is_a_call(name: str, calls: Calls, outside: Any) -> None:
    space = ACTIONS[name]
    space.seed(0)
    env = outside(actions=space)
    for _ in range(10):
        action = space.sample()
        arguments = written(action)
        arguments = arguments if isinstance(space, spaces.Dict) else {"action": arguments}
        arguments = json.loads(json.dumps(arguments))
        (outcome,) = play(env, calls(("act", arguments)))
        assert outcome.info["errors"] == [] and outcome.reward == 1.0
        (taken,) = env.game.unwrapped.taken
        assert space.contains(taken)
        np.testing.assert_equal(taken, action)
        parts = zip(taken, action, strict=True) if isinstance(action, tuple) else [(taken, action)]
        assert all(type(one) is type(other) for one, other in parts)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("discrete", 2, "2 is greater than the maximum of 1"),
        ("discrete", "left", "'left' is not of type 'integer'"),
        ("multi-discrete", [0, 7], r"7 is greater than the maximum of 6"),
        ("multi-discrete", [0], r"\[0\] is too short"),
        ("multi-binary", [[0, 1, 2], [0, 0, 0]], "2 is greater than the maximum of 1"),
        ("box", [0.5, 0], "0.5 is greater than the maximum of 0.4"),
        ("box", [0.1, -1], "-1 is less than the minimum of 0"),
        ("a number", [0.5], "is not of type 'number'"),
        ("text", "abc", "'abc' does not match"),
        ("text", "aaaaa", "'aaaaa' is too long"),
        ("tuple", [1, {}], "'x' is a required property"),
    ],
)
def test_an_action_outside_of_its_space_is_told_and_not_taken(
    name: str, wrong: Any, message: str, calls: Calls, outside: Any
) -> None:
    env = outside(actions=ACTIONS[name])
    (outcome,) = play(env, calls(("act", {"action": wrong})))
    (error,) = outcome.info["errors"]
    assert error.kind == "bad_arguments"
    assert env.game.unwrapped.taken == [] and outcome.reward == 0.0
    assert re.search(message, error.message), error.message


OBSERVED = [
    ({"room": "hall", "keys": np.array([1, 0])}, "room: hall\nkeys: [1, 0]"),
    ((np.int64(3), np.float32(0.123456)), "[3, 0.1235]"),
    (np.array([[np.inf, 2.0]]), '[["inf", 2.0]]'),
    ("a dark room", "a dark room"),
]


@pytest.mark.parametrize(("observation", "text"), OBSERVED)
def test_any_observation_has_a_text(observation: Any, text: str, outside: Any) -> None:
    assert outside().describe(observation) == text


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"actions": spaces.Sequence(spaces.Discrete(2))},
            "gymnasium:Outside-v0 has the action space Sequence(Discrete(2), stack=False); a call",
        ),
        (
            {"observations": spaces.Box(0, 255, (210, 160, 3), np.uint8)},
            "an observation is 100800 numbers",
        ),
    ],
)
def test_spaces_that_no_text_can_hold_are_refused(keywords: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make("gymnasium:Outside-v0", make=keywords)
    assert message in str(refused.value)
