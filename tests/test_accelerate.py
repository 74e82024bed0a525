"""The configs of examples/accelerate, and a run started with them as a user starts it."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from command_fixtures import CommandLine

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "examples/accelerate").glob("*.yaml"))
SMALL = ["trainer.steps=2", "trainer.checkpoint_every_steps=0", "sampling.max_new_tokens=8"]


def run(*command: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    clocked = ("time/", "eval/time/", "perf/", "tokens/per_s", "tokens/trained_per_s")
    return [{k: v for k, v in line.items() if not k.startswith(clocked)} for line in lines]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_is_one_of_accelerates_and_says_how_it_is_started(path: Path) -> None:
    config = load_config_from_file(str(path))
    assert config.num_processes == 2 and config.mixed_precision == "no"
    (command,) = re.findall(r"^# (accelerate launch .*)$", path.read_text(), re.MULTILINE)
    words = shlex.split(command)
    assert words[:4] == [
        "accelerate",
        "launch",
        "--config_file",
        f"examples/accelerate/{path.name}",
    ]
    assert words[4:7] == ["-m", "gymnast.cli", "train"]
    assert (ROOT / words[7]).is_file()


@pytest.mark.parametrize(
    "config",
    [
        "cpu",
        pytest.param(
            "deepspeed",
            marks=[
                pytest.mark.deepspeed,
                pytest.mark.skipif(
                    importlib.util.find_spec("deepspeed") is None,
                    reason="DeepSpeed is not installed",
                ),
            ],
        ),
    ],
)
def test_a_run_started_with_accelerate_is_the_run_of_one_process(
    gymnast: CommandLine, tmp_path: Path, config: str
) -> None:
    task = [str(ROOT / "examples/tiny.yaml"), *SMALL]
    assert gymnast("train", *task, f"output_dir={tmp_path / 'one'}").code == 0
    launch = ["accelerate.commands.launch", "--config_file", f"examples/accelerate/{config}.yaml"]
    said = run(*launch, "-m", "gymnast.cli", "train", *task, f"output_dir={tmp_path / 'two'}")
    assert said.count("the trained model in") == 1  # one of the two says so
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [line["step"] for line in two] == [0, 1, 2, 2]
    for ours, theirs in zip(two, one, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    assert all(line["grad_norm"] > 0 for line in two if "loss" in line)
    assert (tmp_path / "two/model/config.json").exists()
