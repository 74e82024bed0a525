"""A run of the previous format goes on: no files have numbers, rollouts are lines of JSON.

`old_run/` was written by Gymnast as it was before rollouts were Parquet (by `gymnast train`, in a
clone of that commit), two steps of a tiny model with adapters; its `model/` is left out.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from command_fixtures import CommandLine
from gymnast.trainers import load_rollouts
from gymnast.trainers.saving.checkpoints import Checkpoints

OLD = Path(__file__).parent / "old_run"
EXAMPLE = Path(__file__).parents[3] / "examples/digits.py"


@pytest.fixture
def old_run(shop_folder: Path) -> Path:
    """The run, with its environment beside its config."""
    run = shop_folder / "old"
    shutil.copytree(OLD, run)
    shutil.copy(EXAMPLE, run)
    return run


def test_a_run_of_the_previous_format_is_resumed(gymnast: CommandLine, old_run: Path) -> None:
    before = Checkpoints(old_run / "checkpoints").load(2)
    lines = (old_run / "metrics.jsonl").read_text().splitlines()
    ran = gymnast("train", "old/config.yaml", "output_dir=old", "trainer.steps=3", "--resume", "-q")
    assert ran.code == 0, ran.errors

    after = (old_run / "metrics.jsonl").read_text().splitlines()
    assert after[: len(lines)] == lines
    assert [json.loads(line)["step"] for line in after[len(lines) :]] == [3, 3]
    assert [len(load_rollouts(old_run, step=step)) for step in (1, 2, 3)] == [4, 4, 4]

    state = Checkpoints(old_run / "checkpoints").load(3)
    assert state["counters"]["step"] == 3
    assert (
        before["counters"]["step"] == 2 and before["optimizer"].keys() == state["optimizer"].keys()
    )
    assert state["optimizer"]["steps"] == before["optimizer"]["steps"] + 1
    assert (old_run / "environment.json").exists()
    assert (old_run / "config.yaml").read_text().startswith("format_version: 1\n")


def test_its_weights_are_those_it_had(gymnast: CommandLine, old_run: Path) -> None:
    """With a learning rate that changes nothing, the third step leaves what two have learned."""
    before = Checkpoints(old_run / "checkpoints").load(2)["optimizer"]["master"]
    still = ["trainer.steps=3", "trainer.learning_rate=1e-30", "--resume", "-q"]
    assert gymnast("train", "old/config.yaml", "output_dir=old", *still).code == 0
    after = Checkpoints(old_run / "checkpoints").load(3)["optimizer"]["master"]
    named = zip(before, after, strict=True)
    assert all(torch.equal(one, other) for one, other in named)
