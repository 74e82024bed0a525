"""The README's main job: a real model learns to use a calculator, for both algorithms."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from gymnast.trainers import SavedTrajectory, load_rollouts

ROOT = Path(__file__).parent.parent


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def questions(rollouts: list[SavedTrajectory]) -> set[tuple[int, str, int]]:
    rows = [saved.trajectory.row for saved in rollouts]
    return {(row["a"], row["operation"], row["b"]) for row in rows}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_the_main_job_learns(algorithm: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    subprocess.run(
        [
            *(sys.executable, "-c", "from gymnast.cli import main; main()", "train"),
            str(ROOT / "examples/arithmetic.yaml"),
            f"algorithm.name={algorithm}",
            f"output_dir={run}",
        ],
        check=True,
    )
    evaluations = [line for line in read(run / "metrics.jsonl") if "eval/reward/mean" in line]
    assert evaluations[0]["step"] == 0
    assert evaluations[0]["eval/reward/mean"] < 0.3
    assert evaluations[-1]["eval/reward/mean"] >= 0.9

    held_out = questions(load_rollouts(run, step=0, evaluations=True))
    trained_on = questions(load_rollouts(run))
    assert len(held_out) == 128
    assert not held_out & trained_on

    model = AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_tensors="pt"
    )
    assert model.generate(**prompt, max_new_tokens=4).shape[1] > prompt["input_ids"].shape[1]
