"""No demonstration of an evaluation row is learned from."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.envs import Renderer
from gymnast.errors import DataError
from gymnast.trainers.data.rows import Row
from gymnast.trainers.demonstrations.files import read_demonstrations
from gymnast.trainers.saving.rollout_files import write_rollouts
from warmup_runs import Door, demonstration, make_trainer, weights


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
    row = {"prompt": "Stop.", "day": datetime(2024, 1, 2), "board": (1, 2)}
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
    with pytest.raises(DataError, match=r"no demonstration to learn from: its 1 are all of"):
        make_trainer(tokenizer, warmup=warmup, eval_environments={"exam": (Door, [row])})


def test_a_list_is_compared_as_a_file_is(
    tokenizer: Any, renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    """By its rows, or by what a conversation asks; with rows of further environments too."""
    own = replace(demonstration(renderer), row={"prompt": "Own."})
    exam = replace(own, row={"prompt": "Exam."})
    evaluated: dict[str, Any] = {
        "eval_rows": [{"prompt": "Exam."}],
        "eval_environments": {"more": (Door, [{"prompt": "Go."}])},
    }
    listed = {"demonstrations": [exam, own, demonstration(renderer)], "rows_per_step": 2}
    trainer = make_trainer(tokenizer, warmup={**listed, "steps": 1}, **evaluated)
    assert "warmup.demonstrations: 2 of 3 demonstrations are of evaluation rows" in caplog.text
    alone = make_trainer(tokenizer, warmup={**listed, "demonstrations": [own], "steps": 1})
    for each in (trainer, alone):
        each.warmup_step()
    assert all(map(torch.equal, weights(trainer), weights(alone)))
    with pytest.raises(DataError, match=r"^warmup.demonstrations: .* its 1 are all of evaluation"):
        make_trainer(tokenizer, warmup={"demonstrations": [exam]}, **evaluated)
