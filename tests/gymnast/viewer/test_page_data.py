"""What the page gets is what the run's files hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from gymnast.errors import DataError
from gymnast.trainers import load_rollouts
from gymnast.trainers.inspecting.cause import MEANINGS
from gymnast.viewer.runs import named_runs
from gymnast.viewer.wire import episode_of, index_of, overview_of
from viewer_fixtures import plain_run


def test_a_run_says_what_it_is(tmp_path: Path, tokenizer: Any) -> None:
    (run,) = named_runs([plain_run(tmp_path / "shop", tokenizer)])
    (head,) = overview_of([run])["runs"]
    said = {name: head[name] for name in ("name", "model", "environment", "algorithm", "steps")}
    assert said == {
        "name": "shop",
        "model": "tiny:",
        "environment": "shop.py:Shop",
        "algorithm": "grpo",
        "steps": 4,
    }
    assert head["advice"] == [{"step": 2, "cause": "no calls", "text": "Show it a call."}]


def test_metrics_are_columns_by_kind_of_line(tmp_path: Path, tokenizer: Any) -> None:
    (run,) = named_runs([plain_run(tmp_path / "shop", tokenizer)])
    metrics = run.metrics()
    assert metrics["steps"]["step"] == [1, 2]
    assert metrics["steps"]["minutes"] == [0.5, 1.0]
    assert metrics["steps"]["columns"]["reward/mean"] == [0.25, 0.5]
    assert metrics["steps"]["columns"]["loss"] == [None, None]
    assert metrics["evaluations"]["step"] == [0, 2]
    assert metrics["evaluations"]["minutes"] == [0.0, 1.0]
    assert metrics["warmup"]["step"] == []


def test_a_line_that_is_torn_or_no_metric_is_passed_over(tmp_path: Path, tokenizer: Any) -> None:
    folder = plain_run(tmp_path / "shop", tokenizer)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"step": 3, "reward/mean": NaN, "loss": "?"}\n{"step": 4, "rewa')
    (run,) = named_runs([folder])
    steps = run.metrics()["steps"]
    assert steps["step"] == [1, 2, 3]
    assert steps["columns"]["reward/mean"] == [0.25, 0.5, None]


def test_the_index_has_every_episode(tmp_path: Path, tokenizer: Any) -> None:
    folder = plain_run(tmp_path / "shop", tokenizer)
    (run,) = named_runs([folder])
    index = index_of(run.index())
    saved = load_rollouts(folder)
    assert [index["files"][n]["name"] for n in index["file"]] == [each.name for each in saved]
    assert index["group"] == [each.group for each in saved]
    assert index["member"] == [each.member for each in saved]
    assert index["reward"] == [each.trajectory.reward for each in saved]
    assert index["stop"] == [str(each.trajectory.stop_reason) for each in saved]
    assert index["turns"] == [2] * 8
    assert index["tokens"] == [len(each.trajectory.ids) for each in saved]
    assert index["errors"][2] == {"timeout": 1.0} and index["errors"][0] == {}
    assert index["tools"] == [["price"]] * 8
    assert index["alike"] == [False, False, True, True, False, False, False, False]
    assert len(index["rows"]) == 2 and index["row"] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert index["rows"][1]["tags"] == {"prompt": "What does cake cost?", "n": "2"}


def test_an_episode_is_sent_whole(tmp_path: Path, tokenizer: Any) -> None:
    folder = plain_run(tmp_path / "shop", tokenizer)
    (run,) = named_runs([folder])
    saved = load_rollouts(folder, step=2)[3]
    sent = json.loads(json.dumps(episode_of(run.index().entry("step_00002/1/1").load())))
    (context,) = sent["contexts"]
    trajectory = saved.trajectory
    assert sent["id"] == "step_00002/1/1" and sent["reward"] == 0.0
    assert sent["seed"] == str(2**62 + 1)  # a number of JavaScript would be another one
    assert context["ids"] == trajectory.ids and context["messages"] == trajectory.messages
    assert context["logprobs"] == trajectory.logprobs and context["text"] == saved.text
    assert context["advantages"] == saved.advantages and context["token_ends"] == saved.token_ends
    cause = "no final answer"
    assert sent["why"] == {"cause": cause, "form": "", "meaning": MEANINGS[cause]}
    assert context["versions"] == [list(span) for span in trajectory.versions]


def test_runs_of_one_name_are_told_apart(tmp_path: Path, tokenizer: Any) -> None:
    one, other = (plain_run(tmp_path / each / "shop", tokenizer) for each in ("a", "b"))
    third = plain_run(tmp_path / "books", tokenizer)
    runs = named_runs([one, other, third, one])
    assert [run.name for run in runs] == ["a/shop", "b/shop", "books"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such folder; name the folder of a run"):
        named_runs([tmp_path / "none"])
    with pytest.raises(DataError, match=r"has neither metrics\.jsonl nor rollouts"):
        named_runs([tmp_path])
