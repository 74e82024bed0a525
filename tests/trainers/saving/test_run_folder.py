"""What a run leaves on disk: nothing torn, nothing doubled, a model that others load."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import ConfigError
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.trainers.saving.run_folder import RunFolder, save_model


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
    save_rollouts(folder, "eval_00000.parquet")
    folder.drop_after(-1)
    assert metrics(folder) == []
    assert list((folder.path / "rollouts").iterdir()) == []


# --- One run at a time

HOLDING = """
import sys, time
from pathlib import Path
from gymnast.trainers.saving.rollout_files import write_rollouts
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


# --- Rollouts


def save_rollouts(folder: RunFolder, name: str) -> None:
    write_rollouts(folder.path / "rollouts" / name, [])


def names(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in (folder.path / "rollouts").iterdir())


def test_rollouts_of_further_environments_go_by_their_step_not_by_their_name(
    folder: RunFolder,
) -> None:
    for name in ("eval_00004_exam", "eval_00004_exam_2", "eval_00002_exam_9"):
        save_rollouts(folder, f"{name}.parquet")
    folder.drop_after(2)
    assert names(folder) == ["eval_00002_exam_9.parquet"]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_rollouts_that_will_be_written_again_are_dropped(folder: RunFolder, suffix: str) -> None:
    for name in ("eval_00000", "step_00002", "eval_00002", "step_00003", "step_100000", "mine"):
        save_rollouts(folder, f"{name}.{suffix}")
    folder.drop_after(2)
    kept = ["eval_00000", "eval_00002", "mine", "step_00002"]
    assert names(folder) == [f"{name}.{suffix}" for name in kept]


def test_a_step_that_is_there_in_both_formats_is_dropped_in_both(folder: RunFolder) -> None:
    for suffix in ("parquet", "jsonl"):
        save_rollouts(folder, f"step_00003.{suffix}")
    folder.drop_after(2)
    assert names(folder) == []


def test_rollouts_that_a_kill_left_unfinished_are_swept(folder: RunFolder) -> None:
    save_rollouts(folder, "step_00001.parquet")
    (folder.path / "rollouts" / ".step_00002.parquet.new").write_bytes(b"PAR1")
    folder.sweep()
    assert names(folder) == ["step_00001.parquet"]


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
