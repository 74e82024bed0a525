"""A reward that falls at once is named with its numbers and a way back; chance is not."""

import json
import random
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pytest

from gymnast.agents import load_model
from gymnast.envs import Environment
from gymnast.trainers import Trainer
from gymnast.trainers.base.observer import Advice, EvaluatedPolicy
from gymnast.trainers.config.files import load_config
from gymnast.trainers.reporting.advice.cases import Facts, advise
from gymnast.trainers.reporting.advice.history import History, SeenEvaluation
from gymnast.trainers.reporting.advice.seen import SeenStep
from gymnast.trainers.reporting.advice.sudden_falls import Remedy
from gymnast.types import Sampling

REMEDY = Remedy("trainer.learning_rate", 1e-4, 0, "runs/my chest")
FACTS = Facts(lambda: "", 1.0, 40, remedy=REMEDY)
# Of a run of SmolLM2 whose first update after a warm-up was too large: four rows, eight episodes.
BEFORE, AFTER = [1.0, 1.0, 1.0, 0.875], [1.0, 0.0, 0.875, 0.0]

Groups = list[list[float]]


def seen(number: int, groups: Groups) -> SeenStep:
    rewards = [reward for group in groups for reward in group]
    found = [variance(group) / len(group) for group in groups if len(group) > 1]
    return SeenStep(
        number,
        {"reward/mean": fmean(rewards)},
        tools=[],
        best=max(rewards),
        group_rewards=[fmean(group) for group in groups],
        group_noise=fmean(found) if found else 0.0,
    )


def heard(steps: list[Groups]) -> dict[str, str]:
    """What is said after each of these steps, by cause."""
    history, said = History(), dict[str, str]()
    for number, groups in enumerate(steps, 1):
        history.add(seen(number, groups))
        said |= {advice.cause: advice.text for advice in advise(history, FACTS)}
    return said


def of_rows(means: list[float]) -> Groups:
    return [[float(place < round(8 * mean)) for place in range(8)] for mean in means]


def evaluated(reward: float, step: int, warmup_steps: int = 12, rows: int = 48) -> SeenEvaluation:
    std = (reward * (1 - reward)) ** 0.5
    policy = EvaluatedPolicy(reward, step, warmup_steps)
    return SeenEvaluation(policy.reward, step, warmup_steps, std / rows**0.5, std, rows)


def test_a_fall_in_one_step_is_named_with_its_numbers() -> None:
    good, bad = of_rows([1, 1, 1, 0.75, 1, 1, 1, 1]), of_rows([0.5, 0.4, 0.6, 0.5, 0.25, 0.5, 1, 0])
    said = heard([good, good, good, bad])["sudden fall"]
    assert "fell from 0.97 to 0.47 in one step (step 4)" in said
    assert "trainer.learning_rate (1e-05" in said and "trainer.warmup_steps" in said


def test_a_fall_of_few_rows_is_named_once_an_evaluation_proves_it() -> None:
    history = History()
    history.add_evaluation(evaluated(0.875, 0))
    for number, means in enumerate((BEFORE, AFTER), 1):
        history.add(seen(number, of_rows(means)))
    assert [each.cause for each in advise(history, FACTS) if "fall" in each.cause] == []
    history.add_evaluation(evaluated(0.208, 2))
    (text,) = (each.text for each in advise(history, FACTS) if each.cause == "falling evaluation")
    assert "fell from 0.875 after the warm-up to 0.208 after step 2" in text
    assert "fell from 0.97 to 0.47 in one step (step 2)" in text
    command = shlex.split(text.partition("gymnast train ")[2])
    assert command[0] == "runs/my chest/config.yaml", "the command can be pasted"
    assert "model.name=runs/my chest/best/model" in command and "warmup=null" in command
    assert "trainer.learning_rate=1e-05" in command


@pytest.mark.parametrize(
    "last",
    [evaluated(0.80, 2), evaluated(0.875, 2), evaluated(0.2, 2, rows=4), evaluated(0.95, 2)],
    ids=["within chance", "equal", "too few rows", "better"],
)
def test_an_evaluation_within_chance_is_no_fall(last: SeenEvaluation) -> None:
    history = History()
    history.add_evaluation(replace(evaluated(0.875, 0), rows=last.rows))
    history.add_evaluation(last)
    assert advise(history, FACTS) == []


def test_a_warm_up_that_made_it_worse_is_named_by_its_settings() -> None:
    history = History()
    history.add_evaluation(evaluated(0.9, 0, 0))
    history.add_evaluation(evaluated(0.1, 0))
    (advice,) = advise(history, FACTS)
    assert "warmup.learning_rate" in advice.text and "model.name" not in advice.text


def test_what_was_seen_survives_a_checkpoint() -> None:
    history = History()
    history.add_evaluation(evaluated(0.875, 0))
    history.add(seen(1, of_rows(BEFORE)))
    assert History.from_dict(json.loads(json.dumps(history.to_dict()))) == history


def coins(draw: random.Random, share: float) -> list[float]:
    return [float(draw.random() < share) for _ in range(8)]


NOISE: dict[str, Callable[[random.Random], list[float]]] = {
    "coin flips": lambda draw: coins(draw, 0.5),
    "nearly solved": lambda draw: coins(draw, 0.97),
    "rows of every difficulty": lambda draw: coins(draw, draw.random()),
    "hard and easy rows": lambda draw: coins(draw, 1.0 if draw.random() < 0.7 else 0.3),
    "all or nothing": lambda draw: [float(draw.random() < 0.9)] * 8,
    "any number": lambda draw: [draw.gauss(0, 1) for _ in range(8)],
    "rare": lambda draw: [draw.random()] * 8 if draw.random() < 0.05 else [0.0] * 8,
}


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_chance_is_hardly_ever_called_a_fall(rows: int) -> None:
    """Of runs of 20 steps of a policy that stays as it is, fewer than 1 of 100 are warned."""
    draw, warned, runs = random.Random(0), 0, 0
    for noise in NOISE.values():
        for _ in range(60):
            runs += 1
            steps = [[noise(draw) for _ in range(rows)] for _ in range(20)]
            warned += "sudden fall" in heard(steps)
    assert warned < runs / 100


@pytest.mark.parametrize("rows", [8, 16])
def test_a_policy_that_is_lost_is_noticed_within_two_steps(rows: int) -> None:
    draw, noticed = random.Random(0), 0
    for _ in range(50):
        good = [[coins(draw, 0.97) for _ in range(rows)] for _ in range(4)]
        bad = [[coins(draw, 0.47) for _ in range(rows)] for _ in range(2)]
        noticed += "sudden fall" in heard([*good, *bad])
    assert noticed >= 48


class Lost(Environment):
    """The policy answers held-out rows worse from one evaluation to the next."""

    rewards: tuple[float, ...] = (0.9, 0.8, 0.1)
    played = 0

    def reward(self, episode: Any) -> float:
        if "number" not in self.row:
            return float(len(episode.answer) % 2)
        type(self).played += 1
        share = self.rewards[(type(self).played - 1) // 16]
        return float(self.row["number"] < 16 * share)


def test_a_run_says_it_and_writes_it_down(tokenizer: Any, tmp_path: Path) -> None:
    heard: list[Advice] = []

    class Hears:
        def on_advice(self, advice: Advice) -> None:
            heard.append(advice)

    Lost.played = 0
    model, _ = load_model("tiny:", tokenizer=tokenizer)
    model.config.name_or_path = "tiny:"
    trainer = Trainer(
        model,
        tokenizer,
        Lost,
        [{"prompt": "Go."}],
        group_size=2,
        rows_per_step=2,
        steps=2,
        sampling=Sampling(max_new_tokens=6),
        eval_rows=[{"prompt": "Go.", "number": number} for number in range(16)],
        eval_every_steps=1,
        learning_rate=1e-3,
        warmup_steps=3,
        output_dir=tmp_path / "run",
        observer=Hears(),  # type: ignore[arg-type]
    )
    summary = trainer.train()
    (advice,) = (each for each in heard if each.cause == "falling evaluation")
    assert advice in summary["advice"]
    assert "fell from 0.938 before training to 0.125 after step 2" in advice.text
    assert "trainer.learning_rate (0.0001, say; it is 0.001)" in advice.text
    assert "it is 3" in advice.text
    written = map(json.loads, (tmp_path / "run/advice.jsonl").read_text().splitlines())
    assert advice.text in [line["text"] for line in written]


def test_the_command_that_goes_back_is_a_run(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file and its settings can be read, with the weights of the best evaluation."""
    monkeypatch.setattr(Lost, "rewards", (0.1, 0.9, 0.8, 0.1))
    Lost.played = 0
    model, _ = load_model("tiny:", tokenizer=tokenizer)
    trainer = Trainer(
        model,
        tokenizer,
        Lost,
        [{"prompt": "Go."}],
        group_size=2,
        rows_per_step=2,
        steps=3,
        sampling=Sampling(max_new_tokens=6),
        eval_rows=[{"prompt": "Go.", "number": number} for number in range(16)],
        eval_every_steps=1,
        output_dir=tmp_path / "run",
        observer=None,
    )
    summary = trainer.train()
    (text,) = (each.text for each in summary["advice"] if each.cause == "falling evaluation")
    path, *settings = shlex.split(text.partition("gymnast train ")[2])
    config = load_config(path, [*settings, f"environment.id={__file__}:Lost"])
    assert config.model.name == str(tmp_path / "run/best/model")
    assert Path(config.model.name, "model.safetensors").exists() and config.warmup is None
    assert config.trainer.learning_rate == pytest.approx(1e-7)
