"""check_env: Gymnasium's and ours, on what keeps the contract and on what breaks it."""

from typing import Any

import gymnasium.utils.env_checker
import numpy as np
import pytest

from gymnast.envs import Environment, Renderer, check_env, make, tool
from gymnast.errors import ConfigError, DataError, UserCodeError


def test_check_env_passes_on_arithmetic(renderer: Renderer) -> None:
    check_env(make("gymnast/Arithmetic-v0", renderer))
    check_env(make("gymnast/Arithmetic-v0", renderer, context_length=1000, max_tokens=300))
    check_env(gymnasium.make("gymnast/Arithmetic-v0", renderer=renderer))


def test_gymnasiums_check_env_passes_on_arithmetic_without_a_warning(renderer: Renderer) -> None:
    gymnasium.utils.env_checker.check_env(make("gymnast/Arithmetic-v0", renderer))


class Sound(Environment):
    """Keeps the contract; each case below breaks it in one place."""

    def __init__(self, renderer: Any = None, **settings: Any) -> None:
        super().__init__(renderer, rows=[{"prompt": "Go."}, {"prompt": "Stay."}], **settings)


class Moody(Sound):
    calls = 0

    def setup(self, row: Any) -> Any:
        self.calls += 1
        return [{"role": "user", "content": f"Call {self.calls}."}]


class Typo(Sound):
    def reward(self, episode: Any) -> Any:
        return self.row["answre"]


class Sticky(Sound):
    async def areset(self, **arguments: Any) -> Any:
        ids, info = await super().areset(**arguments)
        del info["stop_ids"]
        return ids, info


class Chatty(Sound):
    async def astep(self, action: Any) -> Any:
        ids, *rest = await super().astep(action)
        return np.append(ids, 5), *rest


class Endless(Sound):
    async def astep(self, action: Any) -> Any:
        ids, reward, _, truncated, info = await super().astep(action)
        return ids, reward, False, truncated, info


class Opaque(Sound):
    def setup(self, row: Any) -> Any:
        return [{"role": "user", "content": "Go.", "extra": float("nan")}]


def test_check_env_passes_on_a_sound_environment(renderer: Renderer) -> None:
    check_env(Sound(renderer))


@pytest.mark.parametrize(
    ("broken", "error", "words"),
    [
        (Moody, AssertionError, "besides its row"),
        (Typo, UserCodeError, "KeyError: 'answre'"),
        (Sticky, AssertionError, "the info of reset lacks stop_ids"),
        (Chatty, AssertionError, "tokens"),
        (Endless, AssertionError, "terminated=False"),
        (Opaque, AssertionError, "messages cannot be written as JSON"),
    ],
)
def test_check_env_says_what_is_broken(
    broken: type[Sound], error: type[Exception], words: str, renderer: Renderer
) -> None:
    with pytest.raises(error, match=words):
        check_env(broken(renderer, max_tokens=500))


def test_check_env_needs_a_renderer_rows_and_an_environment(renderer: Renderer) -> None:
    with pytest.raises(ConfigError, match="renderer"):
        check_env(Sound())
    with pytest.raises(DataError, match="rows"):
        check_env(Environment(renderer))
    with pytest.raises(AssertionError, match="no subclass"):
        check_env(gymnasium.make("CartPole-v1"))


def test_check_env_passes_with_tools_and_async_hooks(renderer: Renderer) -> None:
    class Later(Sound):
        async def setup(self, row: Any) -> None:
            self.count = 0

        @tool
        async def count_up(self) -> int:
            """Count."""
            self.count += 1
            return self.count

        async def reward(self, episode: Any) -> float:
            return float(self.count)

    check_env(Later(renderer))
