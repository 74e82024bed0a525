"""A disk that is full: one line that names the file, and what was whole stays whole."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from full_disk import no_file_larger_than
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.errors import ConfigError, DiskFull
from gymnast.trainers import Kl, Trainer, make_algorithm
from gymnast.trainers.saving.checkpoints import Checkpoints
from gymnast.trainers.saving.disk_space import shown_size
from gymnast.trainers.saving.run_folder import RunFolder, save_model
from gymnast.types import Sampling

STATE = {"weights": [torch.zeros(50_000) for _ in range(4)]}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB: room for a checkpoint of the tiny model (11 MB), its model (4 MB), no more.

    Only root may make one.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


# --- A file at a time


def test_a_checkpoint_without_room_is_named_with_its_need_and_the_others_stay(
    tmp_path: Path,
) -> None:
    found = Checkpoints(tmp_path)
    found.save(1, {"weight": torch.ones(2)}, keep=1)
    with no_file_larger_than(300_000), pytest.raises(DiskFull) as caught:
        found.save(2, STATE, keep=1)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(
        f"{tmp_path}/step_00002 cannot be written: File too large; it needs 800."
    )
    assert " free. What was written before is intact" in said
    assert [path.name for path in tmp_path.iterdir()] == ["step_00001"]
    assert found.newest() == 1


def test_a_model_without_room_leaves_the_one_before(tmp_path: Path, tokenizer: Any) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").touch()
    with (
        no_file_larger_than(500_000),
        pytest.raises(DiskFull, match=r"model cannot be written: File too large; it needs 3.* MB"),
    ):
        save_model(tiny_model(), tokenizer, folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "old"]


def test_a_line_of_metrics_without_room_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_metrics({"step": 1})
    with no_file_larger_than(20), pytest.raises(DiskFull, match=r"metrics.jsonl cannot be written"):
        folder.add_metrics({"step": 2, "loss": 0.125})
    folder.drop_after(1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="pickle"):
        Checkpoints(tmp_path).save(4, {"weight": lambda: None}, keep=1)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1_500_000, "1.5 MB"), (2e13, "20.0 TB"), (999, "999 bytes")]
)
def test_sizes_are_shown_as_people_read_them(size: float, text: str) -> None:
    assert shown_size(size) == text


# --- A run


class Constant(Environment):
    """Nothing to learn."""

    def reward(self, episode: Any) -> float:
        return float(len(episode.answer))


class Fills:
    """Fills the disk after a step."""

    def __init__(self, file: Path, step: int) -> None:
        self.file, self.step = file, step

    def on_start(self, trainer_info: Mapping[str, Any]) -> None: ...

    def on_rollouts(self, step: int, done: int, total: int) -> None: ...

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        if step == self.step:
            with self.file.open("wb") as file, pytest.raises(OSError, match="No space left"):
                while True:
                    file.write(bytes(2**16))

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Any) -> None: ...

    def on_end(self, summary: Mapping[str, Any]) -> None: ...


def make(tokenizer: Any, folder: Path, **settings: Any) -> Trainer:
    small: dict[str, Any] = {
        "sampling": Sampling(max_new_tokens=4),
        "group_size": 2,
        "rows_per_step": 1,
        "steps": 2,
        "keep_checkpoints": 1,
        "observer": None,
    }
    rows = [{"prompt": "Go."}]
    return Trainer(tiny_model(), tokenizer, Constant, rows, output_dir=folder, **(small | settings))


def test_a_checkpoint_is_as_large_as_was_told_with_a_reference_that_is_refreshed(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make_algorithm("grpo", kl=Kl(0.1, refresh_every_steps=1))
    trainer = make(tokenizer, tmp_path / "run", algorithm=algorithm)
    trainer.train()
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    size = sum(file.stat().st_size for file in checkpoint.rglob("*"))
    with monkeypatch.context() as patched, pytest.raises(ConfigError) as caught:
        patched.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, free=1))
        make(tokenizer, tmp_path / "other", algorithm=algorithm).train()
    told = re.search(r"a checkpoint of this run takes ([\d.]+) MB", str(caught.value))
    assert told is not None and size <= 1e6 * float(told[1]) < 1.02 * size


# --- On a real small disk


def test_a_run_that_could_not_be_kept_is_refused_before_it_begins(
    tokenizer: Any, disk: Path
) -> None:
    (disk / "other").write_bytes(bytes(14_000_000))
    with pytest.raises(ConfigError) as caught:
        make(tokenizer, disk / "run").train()
    said = str(caught.value)
    assert said.startswith(f"output_dir: {disk}/run has 1") and "\n" not in said
    assert "a checkpoint of this run takes 11.1 MB and its model 3.7 MB. Free some" in said
    assert not (disk / "run" / "rollouts").exists()


def test_a_run_with_room_for_fewer_checkpoints_than_it_is_to_keep_says_so(
    tokenizer: Any, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tokenizer, disk / "run", keep_checkpoints=2, steps=1).train()
    (said,) = [message for message in caplog.messages if message.startswith("output_dir")]
    assert said.endswith(
        "has 25.2 MB free; checkpoints (2 that stay, one being written, 11.1 MB each) and the "
        "model take 37.0 MB: free some space, or lower trainer.keep_checkpoints"
    )


def test_a_disk_that_fills_up_costs_no_checkpoint_and_the_run_goes_on_once_there_is_room(
    tokenizer: Any, disk: Path
) -> None:
    filler = disk / "filler"
    settings: dict[str, Any] = {"steps": 3, "checkpoint_every_steps": 1}
    with pytest.raises(DiskFull) as caught:
        make(tokenizer, disk / "run", observer=Fills(filler, 2), **settings).train()
    assert f"{disk}/run/checkpoints/step_00002 cannot be written: No space left" in str(
        caught.value
    )
    assert "it needs 11.0 MB, and the disk has 0 bytes free" in str(caught.value)
    assert (
        f"saved in {disk}/run: checkpoints/step_00001; to continue: " in caught.value.__notes__[-1]
    )
    filler.unlink()
    assert Checkpoints(disk / "run" / "checkpoints").newest() == 1
    assert (
        make(tokenizer, disk / "run", **(settings | {"steps": 2})).train(resume=True)["steps"] == 2
    )
