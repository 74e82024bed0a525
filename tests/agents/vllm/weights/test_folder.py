"""The folder of new weights: nothing of it is left however the run ends; a full disk is named."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import save_file

from full_disk import no_file_larger_than
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.merging import save_merged
from gymnast.agents.vllm.weights.folder import WeightsFolder
from gymnast.errors import ConfigError, DiskFull

RUN = """
import sys, time
from pathlib import Path
from gymnast.agents.vllm.weights.folder import WeightsFolder
folder = WeightsFolder(Path(sys.argv[1]))
with folder.writing("1") as path:
    (path / "model.safetensors").write_bytes(b"0" * 1000)
print(folder.path, flush=True)
time.sleep(600)
"""


def wait_until_empty(folder: Path) -> None:
    until = time.monotonic() + 60
    while list(folder.iterdir()):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_closing_removes_it(tmp_path: Path) -> None:
    folder = WeightsFolder(tmp_path)
    with folder.writing("1") as path:
        save_merged(tiny_model(), path)
    assert (folder.path / "1" / "model.safetensors").exists()
    folder.close()
    assert not list(tmp_path.iterdir())
    folder.close()


def test_a_run_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    path = Path(run.stdout.readline().strip())
    assert (path / "1" / "model.safetensors").exists()
    run.kill()
    run.wait()
    run.stdout.close()
    wait_until_empty(tmp_path)


def test_what_a_machine_left_that_went_down_is_removed_by_the_next_run(tmp_path: Path) -> None:
    for name in ("gymnast-weights-left", "gymnast-weights-used", "something"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    used = os.open(tmp_path / "gymnast-weights-used" / "lock", os.O_RDWR)
    fcntl.flock(used, fcntl.LOCK_EX)
    folder = WeightsFolder(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"gymnast-weights-used", "something", folder.path.name}
    os.close(used)
    folder.close()


def test_a_full_disk_is_named_and_the_part_is_removed(tmp_path: Path) -> None:
    folder, model = WeightsFolder(tmp_path), tiny_model()
    with (
        pytest.raises(
            DiskFull, match=r"cannot be written for the vLLM servers: .*servers keep the"
        ),
        no_file_larger_than(100_000),
        folder.writing("2") as path,
    ):
        save_merged(model, path)
    assert [each.name for each in folder.path.iterdir()] == ["lock"]
    folder.close()


def test_other_errors_are_what_they_are(tmp_path: Path) -> None:
    folder = WeightsFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), folder.writing("1") as path:
        save_file({}, path / "some.safetensors")
        _ = 1 / 0
    folder.close()


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.weights_folder: must be a folder .* got .*gone"):
        WeightsFolder(tmp_path / "gone")
