"""Programs in a run's YAML: alone, and mixed with an environment that has its own loop."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_fixtures import CommandLine
from gymnast.errors import ConfigError
from gymnast.trainers import load_config
from gymnast.trainers.build import build_trainer

AGENT = """\
import openai

def ask(base_url, api_key, task):
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        for _ in range(2):  # two contexts
            message = {"role": "user", "content": task["prompt"] + task["kind"]}
            client.chat.completions.create(model="policy", messages=[message])

def pays(episode, result):
    return 0.25 + (result.exit_code != 0)
"""
PROGRAM: dict[str, Any] = {
    "id": "gymnast/Program-v0",
    "function": "agent.py:ask",
    "reward": "agent.py:pays",
    "shown": ["kind"],
}
MIXED: dict[str, Any] = {
    "mixture": [
        {**PROGRAM, "name": "program", "data": "rows.jsonl"},
        {"id": "gymnast/Arithmetic-v0", "name": "sums", "max_turns": 2},
    ],
}
RUN: dict[str, Any] = {
    "model": {"name": "tiny:"},
    "algorithm": {"group_size": 2},
    "sampling": {"max_new_tokens": 8},
    "trainer": {"steps": 1, "rows_per_step": 4, "learning_rate": 1e-3},
    "evaluation": {"rows": 2},
    "output_dir": "out",
}
ALONE = RUN | {"environment": PROGRAM | {"context_length": 512}, "data": {"train": "rows.jsonl"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(AGENT)
    rows = [{"prompt": f"What is {n}?", "kind": "in words"} for n in range(8)]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def written(run: dict[str, Any]) -> str:
    Path("run.yaml").write_text(yaml.safe_dump(run))
    return "run.yaml"


def lines() -> list[dict[str, float]]:
    return [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]


def test_a_program_is_trained_by_the_command(gymnast: CommandLine, folder: Path) -> None:
    ran = gymnast("train", written(ALONE))
    assert ran.code == 0, ran.errors
    (trained,) = [line for line in lines() if "program/requests" in line]
    assert trained["episodes/finished"] == 8
    assert trained["program/requests"] == trained["program/branches"] == 2.0
    assert trained["reward/mean"] == 0.25
    assert all(line.get("eval/reward/mean", 0.25) == 0.25 for line in lines())


def test_a_program_is_mixed_with_an_environment_that_has_its_own_loop(folder: Path) -> None:
    mixed = RUN | {"environment": MIXED | {"context_length": 512}, "deterministic": True}
    trainer = build_trainer(load_config(written(mixed)))
    trainer.train()
    (trained,) = [line for line in lines() if "environments/program/reward/mean" in line]
    names = ("program", "sums")
    counts = [trained[f"environments/{name}/episodes/finished"] for name in names]
    assert sum(counts) == 8 and all(count in (2, 4, 6) for count in counts)  # whole groups
    assert trained["environments/program/reward/mean"] == 0.25
    assert trained["environments/sums/reward/mean"] == 0.0
    assert trained["advantage/groups_alike"] == 1.0  # none has episodes of both


def test_a_function_that_is_not_there_is_named_by_its_key(folder: Path) -> None:
    wrong = MIXED["mixture"][0] | {"function": "agent.py:aks"}
    mixed = RUN | {"environment": MIXED | {"mixture": [wrong, MIXED["mixture"][1]]}}
    with pytest.raises(
        ConfigError, match=r"environment\.mixture\.0\.function: .*Did you mean 'ask'"
    ):
        build_trainer(load_config(written(mixed), ["environment.context_length=512"]))
