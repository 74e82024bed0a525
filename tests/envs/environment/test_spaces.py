"""The space of token ids, alone and inside Gymnasium's vector environments."""

import copy
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from gymnast.envs import Renderer, make
from gymnast.envs.environment.tokens.context import UNLIMITED
from gymnast.envs.environment.tokens.spaces import TokenSpace


def test_samples_are_members_that_end_with_the_stop_id() -> None:
    space = TokenSpace(50, stop_id=7, seed=0)
    samples = [space.sample() for _ in range(50)]
    assert all(sample in space and sample[-1] == 7 for sample in samples)
    assert len({len(sample) for sample in samples}) > 5
    space.seed(0)
    assert np.array_equal(space.sample(), samples[0])


@pytest.mark.parametrize(
    ("value", "member"),
    [
        (np.array([], dtype=np.int64), True),
        ([], True),
        ([0, 49], True),
        (np.array([1, 2], dtype=np.int32), True),
        ([50], False),
        ([-1], False),
        ([1.0], False),
        ([[1]], False),
        ("text", False),
        (None, False),
        ([1, [2]], False),
    ],
)
def test_members_are_flat_and_of_the_vocabulary(value: Any, member: bool) -> None:
    assert (value in TokenSpace(50)) is member


def test_spaces_are_compared_copied_pickled_and_written_as_json() -> None:
    space = TokenSpace(50, 7)
    assert space == TokenSpace(50, 7) != TokenSpace(51, 7)
    assert copy.deepcopy(space) == pickle.loads(pickle.dumps(space)) == space
    samples = [space.sample(), np.array([], dtype=np.int64)]
    back = space.from_jsonable(space.to_jsonable(samples))
    assert all(np.array_equal(a, b) for a, b in zip(samples, back, strict=True))
    with pytest.raises(ValueError, match="mask"):
        space.sample(mask=np.ones(50))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_vector_environments_work(kind: str, renderer: Renderer) -> None:
    def build() -> gymnasium.Env[Any, Any]:
        return make("gymnast/Arithmetic-v0", renderer, worked_turns=0)

    vector: Any
    if kind == "sync":
        vector = SyncVectorEnv([build] * 2)
    else:
        vector = AsyncVectorEnv([build] * 2, shared_memory=False, context="spawn")
    observations, info = vector.reset(seed=[1, 2])
    assert len(observations) == 2 and all(len(ids) > 0 for ids in observations)
    assert info["tokens_left"].tolist() == [UNLIMITED - len(ids) for ids in observations]
    vector.action_space.seed(0)
    _, rewards, terminated, truncated, info = vector.step(vector.action_space.sample())
    assert rewards.tolist() == [0.0, 0.0] and terminated.all() and not truncated.any()
    again, _, terminated, _, _ = vector.step(vector.action_space.sample())  # autoreset
    assert not terminated.any() and all(len(ids) > 0 for ids in again)
    vector.close()
