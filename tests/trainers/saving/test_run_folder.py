"""What a run leaves on disk: nothing torn, nothing doubled, a model that others load."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import ConfigError
from gymnast.trainers.saving.run_folder import RunFolder, evaluation_folder, save_model
from gymnast.types import Span, StopReason, Trajectory


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "first")


# --- Metrics


def metrics(folder: RunFolder) -> list[dict[str, Any]]:
    text = (folder.path / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_each_step_is_a_line(folder: RunFolder) -> None:
    folder.add_metrics({"step": 0, "eval/reward/mean": 0.5})
    folder.add_metrics({"step": 1, "loss": -0.25})
    assert metrics(folder) == [{"step": 0, "eval/reward/mean": 0.5}, {"step": 1, "loss": -0.25}]


def test_a_resumed_run_drops_what_it_will_write_again(folder: RunFolder) -> None:
    for step in (0, 1, 2, 2, 3):
        folder.add_metrics({"step": step})
    folder.drop_after(2)
    assert [line["step"] for line in metrics(folder)] == [0, 1, 2, 2]
    folder.add_metrics({"step": 3})
    assert [line["step"] for line in metrics(folder)] == [0, 1, 2, 2, 3]


def test_a_line_torn_by_a_kill_is_dropped(folder: RunFolder) -> None:
    folder.add_metrics({"step": 1, "loss": 0.5})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    folder.drop_after(1)
    assert metrics(folder) == [{"step": 1, "loss": 0.5}]


def test_without_metrics_there_is_nothing_to_drop(folder: RunFolder) -> None:
    folder.drop_after(3)
    assert not (folder.path / "metrics.jsonl").exists()


@pytest.mark.parametrize("torn", ["", "{", '{"step": 2, "lo', '{"step"', "3", "null", "\\0\\0"])
def test_no_torn_line_is_taken_for_a_line(torn: str, folder: RunFolder) -> None:
    folder.add_metrics({"step": 1})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write(torn)
    folder.drop_after(1)
    assert (folder.path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_a_line_without_its_end_is_completed(folder: RunFolder) -> None:
    (folder.path / "metrics.jsonl").write_text('{"step": 1}')
    folder.drop_after(1)
    folder.add_metrics({"step": 2})
    assert metrics(folder) == [{"step": 1}, {"step": 2}]


def test_before_the_first_checkpoint_everything_is_dropped(folder: RunFolder) -> None:
    folder.add_metrics({"step": 0, "eval/reward/mean": 0.5})
    folder.save_rollouts("eval_00000", [])
    folder.drop_after(-1)
    assert metrics(folder) == []
    assert list((folder.path / "rollouts").iterdir()) == []


# --- One run at a time

HOLDING = """
import sys, time
from pathlib import Path
from gymnast.trainers.saving.run_folder import RunFolder
with RunFolder(sys.argv[1]).claimed():
    Path(sys.argv[1], "held").touch()
    time.sleep(600)
"""


def test_two_live_runs_cannot_write_to_one_folder(folder: RunFolder) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLDING, str(folder.path)])
    try:
        while not (folder.path / "held").exists():
            assert other.poll() is None
            time.sleep(0.05)
        with pytest.raises(ConfigError, match="another run is writing to"), folder.claimed():
            pass
    finally:
        other.kill()  # as a run that is killed
        other.wait()
    with folder.claimed():
        pass


def test_a_folder_is_free_again_after_its_run(folder: RunFolder) -> None:
    other = RunFolder(folder.path)
    for holding, waiting in ((folder, other), (other, folder)):
        with (
            holding.claimed(),
            pytest.raises(ConfigError, match="another run is writing to"),
            waiting.claimed(),
        ):
            pytest.fail("two runs have claimed one folder")


# --- Evaluations on their own


def test_evaluations_are_numbered_and_those_that_wrote_no_metrics_are_removed(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with evaluation_folder(run):
        pass
    assert not run.exists()  # nothing of an evaluation that came to nothing
    for number in (1, 2):
        with evaluation_folder(run) as folder:
            assert folder == str(run / "evaluations" / f"00{number}")
            RunFolder(folder).add_metrics({"step": 0})
    with pytest.raises(ZeroDivisionError), evaluation_folder(run):
        raise ZeroDivisionError
    assert sorted(path.name for path in (run / "evaluations").iterdir()) == ["001", "002"]


def test_only_the_first_process_makes_a_folder_for_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with evaluation_folder(tmp_path / "run") as folder:
        assert folder is None
    assert not (tmp_path / "run").exists()


# --- Rollouts


def test_rollouts_of_further_environments_go_by_their_step_not_by_their_name(
    folder: RunFolder,
) -> None:
    for name in ("eval_00004_exam", "eval_00004_exam_2", "eval_00002_exam_9"):
        folder.save_rollouts(name, [])
    folder.drop_after(2)
    assert [path.name for path in (folder.path / "rollouts").iterdir()] == [
        "eval_00002_exam_9.jsonl"
    ]


def test_rollouts_that_will_be_written_again_are_dropped(folder: RunFolder) -> None:
    for name in ("eval_00000", "step_00002", "eval_00002", "step_00003", "step_100000", "mine"):
        folder.save_rollouts(name, [])
    folder.drop_after(2)
    left = sorted(path.stem for path in (folder.path / "rollouts").iterdir())
    assert left == ["eval_00000", "eval_00002", "mine", "step_00002"]


def test_rollouts_are_written_one_a_line(folder: RunFolder) -> None:
    trajectory = Trajectory(
        ids=[1, 2, 3],
        action_mask=[0, 1, 1],
        logprobs=[0.0, -0.5, -0.25],
        prompt_length=1,
        turns=[Span(1, 3)],
        turn_rewards=[2.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        messages=[{"role": "user", "content": "é"}],
        row={"made": Path("odd"), "half": "\ud83d"},  # JSON cannot say the first
    )
    diverged = replace(trajectory, logprobs=[0.0, float("nan"), float("-inf")])  # nor these
    groups = [[trajectory, replace(trajectory, turn_rewards=[0.0])], [], [diverged]]
    folder.save_rollouts("step_00001", groups)
    text = (folder.path / "rollouts" / "step_00001.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [(line["group"], line["reward"]) for line in lines] == [(0, 2.0), (0, 0.0), (2, 2.0)]
    assert lines[0]["ids"] == [1, 2, 3] and lines[0]["turns"] == [[1, 3]]
    assert lines[0]["stop_reason"] == "answered"
    assert lines[0]["messages"] == [{"role": "user", "content": "é"}]
    assert lines[0]["row"] == {"made": "odd", "half": "\ud83d"}
    assert lines[2]["logprobs"] == [0.0, None, None]


# --- The model


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([ids])).logits
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_transformers_loads_the_saved_model(
    dtype: torch.dtype, tmp_path: Path, tokenizer: Any
) -> None:
    model, _ = load_model("tiny:", dtype=dtype, tokenizer=tokenizer)
    save_model(model, tokenizer, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "model")
    talk = [{"role": "user", "content": "What is 3 plus 4?"}]
    ids = tokenizer.apply_chat_template(talk, return_dict=False, add_generation_prompt=True)
    assert theirs.apply_chat_template(talk, return_dict=False, add_generation_prompt=True) == ids
    assert loaded.dtype == dtype
    assert torch.equal(logits(loaded, ids), logits(model, ids))


def test_adapters_are_merged_into_the_saved_model_and_stay_in_the_one_that_trains(
    tmp_path: Path, tokenizer: Any
) -> None:
    model, _ = load_model("tiny:", lora={"rank": 4}, tokenizer=tokenizer)
    trained = [p for p in model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # as training would; fresh adapters change nothing
        for weight in trained:
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    ids = list(range(5, 40))
    before = logits(model, ids)
    save_model(model, tokenizer, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(logits(loaded, ids), before, rtol=0, atol=1e-4)
    base = logits(tiny_model(), ids)
    assert (before - base).abs().max() > 1e-2  # the adapters do something
    # Nothing of the model that goes on training was touched.
    assert torch.equal(logits(model, ids), before)
    assert [id(p) for p in model.parameters() if p.requires_grad] == [id(p) for p in trained]
    assert not list((tmp_path / "model").glob("adapter*"))
