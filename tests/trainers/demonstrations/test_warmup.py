"""A warm-up learns from demonstrations before RL, and what it does is seen."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.envs import Renderer
from gymnast.errors import ConfigError, DataError
from gymnast.trainers import make_algorithm
from gymnast.types import Sampling
from warmup_runs import ROWS, Door, Listed, Sees, demonstration, lines, make_trainer, weights


def test_a_model_that_knows_nothing_learns_to_use_a_tool(tokenizer: Any, tmp_path: Path) -> None:
    trainer = make_trainer(
        tokenizer,
        warmup={"demonstrations": "solve", "steps": 30, "rows_per_step": 2},
        learning_rate=5e-3,
        rows=ROWS[:2],
        eval_rows=ROWS[2:],
        eval_sampling=Sampling(temperature=0.0, max_new_tokens=24),
        output_dir=tmp_path / "run",
    )
    summary = trainer.train()
    assert (summary["before"], summary["after_warmup"]) == (0.0, 1.0)
    evaluations = [line for line in lines(tmp_path / "run") if "eval/reward/mean" in line]
    places = [(line["step"], line.get("warmup/step")) for line in evaluations]
    assert places == [(0, None), (0, 30), (1, None)]


def test_every_step_of_it_is_a_line_and_an_event(tokenizer: Any, tmp_path: Path) -> None:
    sees = Sees()
    make_trainer(tokenizer, observer=sees, output_dir=tmp_path / "run").train()
    found = [line for line in lines(tmp_path / "run") if "warmup/loss" in line]
    assert [(line["step"], line["warmup/step"]) for line in found] == [(0, 1), (0, 2), (0, 3)]
    assert [step for step, _ in sees.warmup] == [1, 2, 3]
    assert sees.started["warmup_steps"] == 3
    losses = [line["warmup/loss"] for line in found]
    assert losses[0] > losses[1] > losses[2] > 0
    assert all(line["warmup/episodes"] == 2 and line["warmup/reward"] == 1 for line in found)
    assert all(line["warmup/learning_rate"] == 3e-3 for line in found)


def test_the_rollouts_of_both_first_evaluations_are_kept(tokenizer: Any, tmp_path: Path) -> None:
    make_trainer(tokenizer, eval_rows=ROWS[:1], output_dir=tmp_path / "run").train()
    names = {path.stem for path in (tmp_path / "run/rollouts").iterdir()}
    assert names == {"eval_00000", "eval_00000_warmup", "step_00001", "eval_00001"}


class Various(Door):
    """Of whose rows some have no solution, and some one that does not do what is asked."""

    def solve(self, row: Any) -> Any:
        if row["prompt"] == "Stay.":
            return None
        return ["in"] if row["prompt"] == "Guess." else super().solve(row)


def various(*words: str) -> Any:
    return Listed([{"prompt": word} for word in words])


def test_a_step_whose_rows_give_nothing_is_counted_and_told_of_once(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_trainer(
        tokenizer,
        environment=Various,
        rows=various("Stay.", "Go.", "Guess."),
        warmup={"demonstrations": "solve", "steps": 3, "rows_per_step": 1},
        output_dir=tmp_path / "run",
    ).train()
    found = [line for line in lines(tmp_path / "run") if "warmup/step" in line]
    assert [line["warmup/step"] for line in found] == [1, 2, 3]
    assert [line["warmup/episodes"] for line in found] == [0, 1, 0]
    assert [line["warmup/updates/taken"] for line in found] == [0, 1, 0]
    assert ["warmup/loss" in line for line in found] == [False, True, False]
    (told,) = [text for text in caplog.messages if "gave none" in text]
    assert "the 1 training rows of a step" in told and "(`solve` returned None)" in told


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            various("Stay."),
            "any of 4 training rows: 4 without a solution (`solve` returned None); train on rows "
            "that `solve` solves; or name a file",
        ),
        (
            [{"prompt": "Go on. " * 2000}],
            "any of 2 training rows: 2 longer than environment.context_length (2048 tokens); raise",
        ),
        (
            various("Guess.", "Stay."),
            "2 without a solution (`solve` returned None), 2 with a reward below warmup.min_reward "
            "(1; the best is 0); train on rows that `solve` solves; lower warmup.min_reward, or",
        ),
    ],
)
def test_a_warm_up_without_any_demonstration_ends_with_the_reasons(
    rows: Any, why: str, tokenizer: Any
) -> None:
    """At its end or, of a list, when all rows were tried."""
    warmup = {"demonstrations": "solve", "steps": 2, "rows_per_step": 2}
    with pytest.raises(DataError) as caught:
        make_trainer(tokenizer, environment=Various, rows=rows, warmup=warmup).train()
    assert why in str(caught.value)


def test_a_list_or_a_file_of_conversations_will_do(
    tokenizer: Any, renderer: Renderer, tmp_path: Path
) -> None:
    file = tmp_path / "demos.jsonl"
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "in"}]
    file.write_text(json.dumps({"messages": messages}) + "\n\n")
    named = {"demonstrations": str(file), "steps": 2, "rows_per_step": 1}
    listed = named | {"demonstrations": [demonstration(renderer)]}
    trainers = [make_trainer(tokenizer, warmup=warmup) for warmup in (named, listed)]
    for trainer in trainers:
        trainer.train()
    assert all(map(torch.equal, *map(weights, trainers)))


@pytest.mark.parametrize(
    ("warmup", "message"),
    [
        ({"steps": 3}, "warmup.demonstrations: "),
        ({"demonstrations": "solve", "min_reward": math.nan}, "warmup.min_reward: "),
        ({"demonstrations": "solve", "steps": -1}, "warmup.steps: must be >= 0, got -1"),
        ({"demonstrations": "solve", "stps": 1}, "warmup.stps: unknown key; did you mean steps?"),
        ({"demonstrations": []}, "warmup.demonstrations: is empty"),
        ({"demonstrations": ["solve"]}, "entry 0 must be a Trajectory with action tokens"),
        ({"demonstrations": "nowhere.jsonl"}, "there is no such file. `gymnast demos` writes one"),
        ({"demonstrations": "."}, "is a folder; name a file in it"),
    ],
)
def test_what_does_not_hold_is_refused(warmup: Any, message: str, tokenizer: Any) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        make_trainer(tokenizer, warmup=warmup)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_weight_without_demonstrations_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"demonstration_weight: is 0.1, and there are no demo"):
        make_trainer(
            tokenizer, warmup=None, algorithm=make_algorithm("grpo", demonstration_weight=0.1)
        )


def test_demonstrations_that_nothing_learns_from_are_told(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make_trainer(tokenizer, warmup={"demonstrations": "solve", "steps": 0})
    assert "warmup.steps: is 0, and so is algorithm.demonstration_weight" in caplog.text
    caplog.clear()
    beside = make_algorithm("grpo", demonstration_weight=0.1)
    make_trainer(tokenizer, warmup={"demonstrations": "solve", "steps": 0}, algorithm=beside)
    make_trainer(tokenizer)
    assert "warmup.steps" not in caplog.text
