"""check_env: whether an environment keeps Gymnasium's contract and Gymnast's.

It is run before training, takes well under a second, and drives real episodes with real tokens.
What a reward means, or whether a policy can learn it, it cannot say.
"""

import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from gymnast.envs.base import Environment

_SEED = 0
_STEPS = 3  # of an episode of random tokens, at most


def check_env(env: gymnasium.Env[Any, Any]) -> None:
    """Check an environment by driving a few episodes.

    Args:
        env: An `Environment` with a renderer, and rows or a `sample_row` of its own.

    Raises:
        AssertionError: It breaks the contract; the message says where.
        GymnastError: A hook raised, or the environment lacks rows or a renderer.
    """
    environment = env.unwrapped
    assert isinstance(environment, Environment), (
        f"{type(environment).__name__} is no subclass of gymnast.envs.Environment"
    )
    environment._require_renderer()
    _check_reset(environment)
    _check_tools(environment)
    _check_garbage(environment)
    _check_answer(environment)
    gymnasium_check_env(environment, skip_render_check=True)


def _check_reset(env: Environment) -> None:
    """The same seed begins the same episode, in the same environment."""
    first, info = env.reset(seed=_SEED)
    _check_observation(env, first, "reset")
    _check_info(info, "reset", ("stop_ids", "tokens_left", "timings"))
    assert len(first) > 0, "reset returned an empty prompt"
    assert info["stop_ids"], "info['stop_ids'] is empty: no action could end"
    again, _ = env.reset(seed=_SEED)
    assert np.array_equal(first, again), (
        f"reset(seed={_SEED}) gave {len(first)} prompt tokens, then others: setup or sample_row "
        "draws on something besides its row and the rng it is given"
    )
    row = {"row": dict(env.row)}
    first, _ = env.reset(seed=_SEED, options=row)
    again, _ = env.reset(seed=_SEED, options=row)
    assert np.array_equal(first, again), (
        "reset with the same row and seed gave two prompts: the members of a group would differ "
        "in their start"
    )


def _check_tools(env: Environment) -> None:
    """Tools are described by plain JSON, and so is the conversation."""
    names = [schema["function"]["name"] for schema in env.tools]
    assert len(set(names)) == len(names), f"two tools share a name: {names}"
    _check_json(env.tools, "the tools' schemas")
    _check_json(env.messages, "messages")


def _check_garbage(env: Environment) -> None:
    """Random tokens never raise, and what is appended stays within the limits."""
    env.action_space.seed(_SEED)
    prompt, info = env.reset(seed=_SEED)
    length, before = len(prompt), info["tokens_left"]
    for _ in range(_STEPS):
        action = env.action_space.sample()[: info["tokens_left"]]
        observation, reward, terminated, truncated, info = env.step(action)
        _check_observation(env, observation, "step")
        _check_step(reward, terminated, truncated, info)
        length += len(action) + len(observation)
        left = info["tokens_left"]
        assert env.context_length is None or length <= env.context_length, (
            f"{length} tokens exceed context_length={env.context_length}"
        )
        assert left == max(0, before - len(action) - len(observation)), (
            f"tokens_left went from {before} to {left} with {len(action)} sampled and "
            f"{len(observation)} appended tokens"
        )
        before = left
        if terminated or truncated:
            break
    _check_json(env.messages, "messages")


def _check_answer(env: Environment) -> None:
    """An answer without a call ends the episode, and nothing can be done after it."""
    _, info = env.reset(seed=_SEED)
    action = np.array(info["stop_ids"][:1], dtype=np.int64)
    observation, reward, terminated, truncated, info = env.step(action)
    _check_step(reward, terminated, truncated, info)
    assert terminated, f"an empty answer ended with {info['stop_reason']}, not as answered"
    assert len(observation) == 0, f"{len(observation)} tokens were appended after the answer"
    _check_json(info.get("metrics"), "info['metrics']")
    try:
        env.step(action)
    except ResetNeeded:
        return
    raise AssertionError("step after the end did not raise gymnasium's ResetNeeded")


def _check_observation(env: Environment, ids: Any, what: str) -> None:
    assert isinstance(ids, np.ndarray) and ids.dtype == np.int64 and ids.ndim == 1, (
        f"{what} returned {type(ids).__name__} {ids!r:.100}, not a flat numpy.int64 array"
    )
    assert ids in env.observation_space, f"{what} returned ids outside of the vocabulary"


def _check_step(reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
    assert isinstance(reward, float) and np.isfinite(reward), f"step returned reward {reward!r}"
    assert not (terminated and truncated), "step returned both terminated and truncated"
    keys = ("stop_ids", "tokens_left", "timings", "tool_calls", "errors", "stop_reason")
    _check_info(info, "step", keys)
    ended = info["stop_reason"] is not None
    assert ended == (terminated or truncated), (
        f"terminated={terminated}, truncated={truncated}, but stop_reason={info['stop_reason']}"
    )


def _check_info(info: Any, what: str, keys: tuple[str, ...]) -> None:
    missing = [key for key in keys if key not in info]
    assert not missing, f"the info of {what} lacks {', '.join(missing)}"


def _check_json(value: Any, what: str) -> None:
    try:
        json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{what} cannot be written as JSON: {error}") from error
