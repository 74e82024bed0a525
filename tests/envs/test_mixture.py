"""Mixture: several environments as one, and the order in which they come."""

import asyncio
import copy
from collections import Counter
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.envs import Environment, Mixture, MixtureOrder, Renderer, can_solve, check_env, tool
from gymnast.errors import ConfigError, DataError
from gymnast.sandboxes import SandboxSpec
from gymnast.trainers.conversations.play import play_solution
from gymnast.trainers.rollouts.environments import environment_factory

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.01, 100.0), min_size=1, max_size=6)


@given(WEIGHTS, st.integers(0, 2**62), st.integers(0, 3000))
@settings(max_examples=60, deadline=None)
def test_the_order_is_seeded_and_has_any_place_at_hand(
    weights: dict[str, float], seed: int, start: int
) -> None:
    order = MixtureOrder(weights, seed=seed)
    whole = [order[position] for position in range(start + 100)]
    resumed = MixtureOrder(weights, seed=seed)
    assert [resumed[position] for position in range(start, start + 100)] == whole[start:]
    seen: Counter[str] = Counter()
    for name, before in whole:  # each environment's rows come in their order, none is left out
        assert before == seen[name]
        seen[name] += 1


@given(WEIGHTS, st.integers(0, 2**62), st.integers(1, 4000))
@settings(max_examples=60, deadline=None)
def test_shares_are_close_to_the_weights(weights: dict[str, float], seed: int, length: int) -> None:
    order = MixtureOrder(weights, seed=seed)
    counts = Counter(order[position][0] for position in range(length))
    total = sum(weights.values())
    for name, weight in weights.items():
        blocks = length // 64  # which each have a share within 2 of the weight's
        rest = length - 64 * blocks
        assert abs(counts[name] - length * weight / total) <= 2 * blocks**0.5 * 3 + 2 + rest


def test_orders_of_two_seeds_differ_and_weights_need_not_add_up_to_1() -> None:
    first, second = (MixtureOrder({"a": 1, "b": 1}, seed=seed) for seed in (0, 1))
    assert [first[n] for n in range(64)] != [second[n] for n in range(64)]
    order = MixtureOrder({"a": 30, "b": 10}, seed=0)
    counts = Counter(order[position][0] for position in range(6400))
    assert counts["a"] == pytest.approx(4800, abs=30)


class Sum(Environment):
    """A sum."""

    def setup(self, row: Any) -> Any:
        self.noted = "sum"
        return [{"role": "user", "content": f"{row['a']} + {row['b']}?"}]

    @tool
    def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b

    def sample_row(self, rng: np.random.Generator) -> Any:
        return {"a": int(rng.integers(100)), "b": int(rng.integers(100))}

    def reward(self, episode: Any) -> float:
        return 1.0

    def solve(self, row: Any) -> Any:
        return [str(row["a"] + row["b"])]


class Echo(Environment):
    """Say it again."""

    cleaned = 0

    def cleanup(self) -> None:
        self.cleaned += 1

    def reward(self, episode: Any) -> float:
        return -1.0


ECHO = [{"prompt": f"Say {n}."} for n in range(3)]


class EchoOfRows(Echo):
    def sample_row(self, rng: np.random.Generator) -> Any:
        return ECHO[int(rng.integers(3))]


def test_a_row_says_which_environment_plays_it(renderer: Renderer) -> None:
    env = Mixture({Sum: 3, Echo: 1}, renderer, max_turns=2)
    assert env.weights == {"Sum": 3.0, "Echo": 1.0}
    ids, info = env.reset(seed=0, options={"row": {"environment": "Sum", "a": 3, "b": 4}})
    assert env.messages[-1]["content"] == "3 + 4?" and env.playing == "Sum"
    assert [each["function"]["name"] for each in env.tools] == ["add"]
    assert renderer.tokenizer.decode(ids).count("3 + 4?") == 1
    *_, reward, terminated, _, info = env.step(info["stop_ids"][:1])
    assert (reward, terminated) == (1.0, True)
    assert info["metrics"]["environments/Sum/episodes"] == 1.0
    env.reset(options={"row": {"environment": "Echo", "prompt": "Say 1."}})
    assert env.tools == [] and env.row["prompt"] == "Say 1."
    env.reset(options={"row": {"environment": "Sum", "a": 1, "b": 1}})
    assert env.members["Echo"].cleaned == 1  # type: ignore[attr-defined]
    env.close()


def test_without_a_row_one_is_drawn_by_the_weights() -> None:
    env = Mixture({Sum: 3, EchoOfRows: 1})

    async def names() -> list[str]:
        await env.areset(seed=5)
        found = [env.playing]
        for _ in range(199):
            await env.areset()
            found.append(env.playing)
        return found

    first, second = asyncio.run(names()), asyncio.run(names())
    assert first == second
    assert 120 < Counter(first)["Sum"] < 180
    assert env.row["environment"] == env.playing


def test_a_row_that_names_none_says_which_there_are() -> None:
    env = Mixture({Sum: 3, Echo: 1})
    with pytest.raises(DataError, match=r"'environment' is 'Sun'.*Did you mean 'Sum'.*Sum, Echo"):
        env.reset(options={"row": {"environment": "Sun"}})
    with pytest.raises(DataError, match=r"no 'environment'.*its columns: prompt"):
        env.reset(options={"row": {"prompt": "x"}})


def test_environments_of_one_class_have_names_of_their_own() -> None:
    env = Mixture({Sum: 1}, names=["sums"])
    assert list(env.members) == ["sums"]
    with pytest.raises(ConfigError, match="names must be one for each of 2"):
        Mixture({Sum: 1, Echo: 1}, names=["sums"])
    with pytest.raises(ConfigError, match=r"weight of Echo must be a number > 0, got 0"):
        Mixture({Sum: 1, Echo: 0})
    for one, other in ((1, 10**400), (1e308, 1e308)):
        with pytest.raises(ConfigError, match="Mixture: the weight"):
            Mixture({Sum: one, Echo: other})
    with pytest.raises(ConfigError, match="letters"):
        Mixture({Sum: 1}, names=["a/b"])
    with pytest.raises(ConfigError, match="empty"):
        Mixture({})
    with pytest.raises(ConfigError, match=r"must be weights by environment, .* got \["):
        Mixture([Sum, Echo])  # type: ignore[arg-type]


def test_a_mixture_has_no_mixtures() -> None:
    with pytest.raises(ConfigError, match="one of its environments is a Mixture"):
        Mixture({Sum: 1, Mixture: 1})


def test_check_env_checks_each_environment(renderer: Renderer) -> None:
    class Broken(EchoOfRows):
        @tool
        def shout(self) -> str:
            """Shout."""
            return self.nothing  # type: ignore[attr-defined, no-any-return]

    report = check_env(Mixture({Sum: 3, EchoOfRows: 1}, renderer))
    assert [tool.call for tool in report.tools] == ["add(a=1, b=1)"]
    assert set(report.rewards) == {1.0, -1.0} and report.solved
    with pytest.raises(AssertionError, match=r"shout\(\) failed because of a bug"):
        check_env(Mixture({Sum: 3, Broken: 1}, renderer))


def test_episodes_without_a_seed_follow_from_that_of_the_first(renderer: Renderer) -> None:
    class Dice(EchoOfRows):
        def setup(self, row: Any) -> None:
            self.rolled = int(self.np_random.integers(10**9))

    class Other(Dice): ...

    def rolls() -> list[int]:
        env: Any = Mixture({Dice: 1, Other: 1})
        env.reset(seed=5)
        found = [env.members[env.playing].rolled]
        for _ in range(8):
            env.reset()
            found.append(env.members[env.playing].rolled)
        return found

    first = rolls()
    assert rolls() == first and len(set(first)) == 9


def test_a_sandbox_is_for_environments_that_use_boxes() -> None:
    class Boxed(Echo):
        sandbox_spec = SandboxSpec()

    env = Mixture({Boxed: 1, Echo: 1}, sandbox="local")
    assert env.members["Boxed"].box_settings.backend == "local"
    assert env.members["Echo"].max_boxes is None
    with pytest.raises(ConfigError, match="sandbox is 'local', but Sum uses no box"):
        Mixture({Sum: 1, Echo: 1}, sandbox="local")


def test_solutions_are_those_of_the_environment_that_plays() -> None:
    env = Mixture({Sum: 3, Echo: 1})
    assert can_solve(env)
    row = {"environment": "Sum", "a": 1, "b": 2}
    assert asyncio.run(play_solution(env, row, seed=0)).messages[-1]["content"] == "3"


def test_no_prompt_shows_its_own_row_solved(renderer: Renderer) -> None:
    class TwoSums(Sum):
        def sample_row(self, rng: np.random.Generator) -> Any:
            return {"a": int(rng.integers(2)), "b": 5}

    env = Mixture({TwoSums: 1}, renderer, worked_turns=1)
    for a in range(2):
        env.reset(seed=0, options={"row": {"environment": "TwoSums", "a": a, "b": 5}})
        asked = [each["content"] for each in env.messages if each["role"] == "user"]
        assert asked == [f"{1 - a} + 5?", f"{a} + 5?"]
    env.close()


def test_a_trainer_makes_others_like_a_mixture(renderer: Renderer) -> None:
    env = Mixture({Sum: 3, Echo: 1}, names=["sums", "echoes"], max_turns=2)
    made: Any = environment_factory(env, renderer.tokenizer, 512)()
    assert made is not env and made.weights == {"sums": 3.0, "echoes": 1.0}
    assert {(each.max_turns, each.context_length) for each in made.members.values()} == {(2, 512)}
    assert all(each.renderer is made.renderer for each in made.members.values())


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda e: cloudpickle.loads(cloudpickle.dumps(e))]
)
def test_a_copy_goes_on_by_itself(copied: Any) -> None:
    env = Mixture({Sum: 3, Echo: 1})
    env.reset(options={"row": {"environment": "Sum", "a": 1, "b": 2}})
    other = copied(env)
    env.reset(options={"row": {"environment": "Echo", "prompt": "x"}})
    outcome = asyncio.run(other.act({"role": "assistant", "content": "3"}))
    assert outcome.reward == 1.0 and other.playing == "Sum"


def test_gymnasiums_wrappers_and_vectors_take_one(renderer: Renderer) -> None:
    vector = SyncVectorEnv([lambda: Mixture({Sum: 3, EchoOfRows: 1}, renderer)] * 2)
    prompts, _ = vector.reset(seed=1)
    assert len(prompts) == 2
    stop_id = renderer.stop_ids[0]
    _, rewards, terminated, _, _ = vector.step([np.array([stop_id])] * 2)
    assert set(rewards) <= {1.0, -1.0} and all(terminated)
    vector.close()
    env = RecordEpisodeStatistics(Mixture({Sum: 1}, renderer))
    env.reset(seed=0)
    assert env.step(np.array([stop_id]))[4]["episode"]["r"] == 1.0
