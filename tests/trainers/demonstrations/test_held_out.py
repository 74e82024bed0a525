"""No demonstration of an evaluation row is learned from."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import Renderer
from gymnast.errors import DataError
from gymnast.trainers.data.rows import Row
from gymnast.trainers.demonstrations.files import read_demonstrations
from gymnast.trainers.saving.rollout_files import write_rollouts
from warmup_runs import Door, demonstration, make_trainer


def test_conversations_that_answer_an_evaluation_row_are_left_out(
    renderer: Renderer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def talk(*asked: str) -> str:
        said = [
            ({"role": "user", "content": a}, {"role": "assistant", "content": "42"}) for a in asked
        ]
        return json.dumps({"messages": [message for pair in said for message in pair]})

    file = tmp_path / "demos.jsonl"
    file.write_text(
        "\n".join(map(talk, ["Own?", "Exam?", "Shared?"])) + "\n" + talk("Own?", "Exam?")
    )
    system = {"role": "system", "content": "Be brief."}
    exam = {"prompt": [system, {"role": "user", "content": [{"type": "text", "text": "Exam?"}]}]}
    shared = [{"prompt": "Shared?", "seed": seed} for seed in range(2)]
    excluded: list[Row] = [exam, *shared, {"no": "prompt"}]
    found = read_demonstrations(file, renderer, min_reward=1.0, excluded=excluded)
    assert [each.messages[0]["content"] for each in found] == ["Own?", "Shared?"]
    assert "2 of 4 demonstrations are of evaluation rows, and left out" in caplog.text


def test_rows_are_compared_as_a_file_has_them(renderer: Renderer, tmp_path: Path) -> None:
    row = {"prompt": "Go.", "day": datetime(2024, 1, 2), "board": (1, 2)}
    good = replace(demonstration(renderer), turn_rewards=[1.0], no_reward=False)
    write_rollouts(tmp_path / "demos.parquet", [[replace(good, row=row), good]])
    found = read_demonstrations(
        tmp_path / "demos.parquet", renderer, min_reward=1.0, excluded=[row]
    )
    assert [each.row for each in found] == [{}]


def test_a_file_is_not_learned_from_where_a_further_environment_is_evaluated(
    tokenizer: Any, renderer: Renderer, tmp_path: Path
) -> None:
    row = {"prompt": "Exam."}
    exam = replace(demonstration(renderer), turn_rewards=[1.0], no_reward=False, row=row)
    write_rollouts(tmp_path / "demos.parquet", [[exam]], tokenizer=tokenizer)
    warmup = {"demonstrations": str(tmp_path / "demos.parquet")}
    with pytest.raises(DataError, match="has no demonstration to learn from: it is empty"):
        make_trainer(tokenizer, warmup=warmup, eval_environments={"exam": (Door, [row])})
