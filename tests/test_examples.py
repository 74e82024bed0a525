"""The examples that take seconds, run as a user runs them."""

import ast
import asyncio
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from chat_fixtures import Endpoint, says
from command_fixtures import CommandLine
from gymnast.trainers import load_rollouts, play_solution

ROOT = Path(__file__).parent.parent


def in_a_process(*arguments: str) -> str:
    program = "from gymnast.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_tiny_example_goes_the_whole_way(gymnast: CommandLine, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = in_a_process("train", "examples/tiny.yaml", f"output_dir={run}")
    assert "evaluation reward:" in said
    metrics = lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [0, 1, 2, 2, 3, 3]
    assert [line["step"] for line in metrics if "eval/reward/mean" in line] == [0, 2, 3]
    trained = [line for line in metrics if "loss" in line]
    assert all(line["grad_norm"] > 0 and line["updates/skipped"] == 0 for line in trained)
    assert len(load_rollouts(run, step=1)) == 4 * 4
    assert (run / "config.yaml").exists()

    more = gymnast("train", str(run / "config.yaml"), "trainer.steps=4", "--resume")
    assert more.code == 0 and "step 4/4" in more.output
    assert lines(run / "metrics.jsonl")[-1]["step"] == 4
    assert "\nall rows " in gymnast("eval", str(run)).output
    assert "eval/reward/mean" in lines(run / "evaluations/001/metrics.jsonl")[0]

    model = AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    ids = tokenizer("What is 3 plus 4?", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=3).shape[1] > ids["input_ids"].shape[1]


def test_an_endpoint_plays_the_user_of_an_example(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.answers(says("It is a blue one."))
    run = tmp_path / "run"
    customer = [f"environment.customer.base_url={endpoint.url}", "trainer.steps=1"]
    in_a_process("train", "examples/support.yaml", f"output_dir={run}", *customer)
    assert (run / "metrics.jsonl").exists()
    talks = [request["messages"] for request in endpoint.requests]
    assert all(request["model"] == "my-model" for request in endpoint.requests)
    assert all(talk[0]["content"].startswith("You are a customer") for talk in talks)


def test_the_example_of_rubrics_reports_every_part(tmp_path: Path) -> None:
    report = runpy.run_path(str(ROOT / "examples/rubrics.py"))["Report"]()
    row = {"prompt": "Go.", "city": "Bern", "celsius": -3}
    solved = asyncio.run(play_solution(report, row))
    assert solved.reward == 1.0
    shares = {"report/city": 0.25, "report/celsius": 0.5, "report/brief": 0.25}
    assert solved.reward_parts == shares

    run = tmp_path / "run"
    in_a_process("train", "examples/rubrics.yaml", f"output_dir={run}")
    (trained,) = [line for line in lines(run / "metrics.jsonl") if "loss" in line]
    assert {"reward_parts/names_the_city", "reward_parts/report", "rubrics/json"} <= {*trained}


def test_the_loop_on_one_page_learns() -> None:
    """More episodes than a chance rise could fill: each evaluation is of 32."""
    loop = runpy.run_path(str(ROOT / "examples/loop.py"))
    before, after = loop["train"](steps=7, rows_per_step=3, seed=2)
    assert before < 0.4
    assert after > before + 0.15


def test_the_loop_is_one_page_of_public_names() -> None:
    text = (ROOT / "examples/loop.py").read_text()
    assert len(text.splitlines()) < 150
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    ours = {str(node.module) for node in imports if str(node.module).startswith("gymnast")}
    assert ours == {"gymnast.agents", "gymnast.envs", "gymnast.trainers", "gymnast.types"}
    attributes = {
        node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)
    }
    assert not [name for name in attributes if name.startswith("_")]


@pytest.mark.parametrize("name", ["best_of_group", "mixture", "turns", "wrappers"])
def test_a_small_example_runs(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    in_a_process("train", f"examples/{name}.yaml", f"output_dir={run}")
    assert [line for line in lines(run / "metrics.jsonl") if "loss" in line]
    assert len((ROOT / f"examples/{name}.yaml").read_text().splitlines()) <= 40


def test_the_solution_of_the_dice_is_paid_by_turns() -> None:
    dice = runpy.run_path(str(ROOT / "examples/turns.py"))["Dice"](max_turns=10)
    solved = asyncio.run(play_solution(dice, {"prompt": "Roll.", "wanted": 7}))
    assert solved.reward == pytest.approx(1 + sum(solved.turn_rewards[:-1]))
    assert set(solved.turn_rewards[:-1]) == {0.1}
