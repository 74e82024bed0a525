"""Checkpoints: the newest whole one is found, whatever happened to the files."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.errors import CheckpointError
from gymnast.trainers.saving.checkpoints import Checkpoints


@pytest.fixture
def found(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "run" / "checkpoints")


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def state_of(step: int) -> dict[str, Any]:
    return {"weight": torch.full((2,), float(step)), "counters": {"step": step}}


def save(checkpoints: Checkpoints, *steps: int, keep: int = 2) -> None:
    for step in steps:
        checkpoints.save(step, state_of(step), keep=keep)


def test_a_checkpoint_is_read_back_as_it_was_written(found: Checkpoints) -> None:
    save(found, 3)
    assert found.newest() == 3
    state = found.load(3)
    assert state["counters"] == {"step": 3}
    assert torch.equal(state["weight"], torch.tensor([3.0, 3.0]))


def test_without_any_there_is_no_newest(found: Checkpoints) -> None:
    assert (found.newest(), found.any()) == (None, False)
    found.sweep()


def test_the_newest_checkpoint_is_found_and_old_ones_are_removed(found: Checkpoints) -> None:
    save(found, 2, 4, 6, 8, keep=2)
    assert names(found) == ["step_00006", "step_00008"]
    assert found.newest() == 8
    save(found, 10, keep=1)
    assert names(found) == ["step_00010"]


def test_checkpoints_are_in_the_order_of_their_numbers(found: Checkpoints) -> None:
    save(found, 99_999, 100_000, 100_001, keep=2)
    assert names(found) == ["step_100000", "step_100001"]
    assert found.newest() == 100_001


def test_a_checkpoint_written_again_replaces_the_first(found: Checkpoints) -> None:
    save(found, 2)
    found.save(2, {"weight": torch.zeros(1)}, keep=2)
    assert found.load(2)["weight"].tolist() == [0.0]
    assert names(found) == ["step_00002"]


def test_a_checkpoint_that_fails_half_way_leaves_the_one_before(found: Checkpoints) -> None:
    save(found, 2)
    with pytest.raises(Exception, match="pickle"):
        found.save(4, {"weight": lambda: None}, keep=1)
    assert names(found) == ["step_00002"]
    assert found.newest() == 2


def test_what_a_killed_run_wrote_aside_is_no_checkpoint_and_is_swept(found: Checkpoints) -> None:
    save(found, 2)
    for name in (".step_00004.new", ".step_00004.12345", ".step_00001.gone"):
        (found.folder / name).mkdir()
        (found.folder / name / "state.pt").write_bytes(b"half")
    assert found.newest() == 2
    found.sweep()
    assert names(found) == ["step_00002"]


def test_what_code_runs_on_loading_is_refused(found: Checkpoints) -> None:
    """Only numbers, text, tensors and containers are read."""
    found.save(2, {"path": Path("x")}, keep=1)
    with pytest.raises(CheckpointError, match=r"state.pt cannot be read"):
        found.load(2)


# --- Torn ones


def test_a_torn_checkpoint_is_said_in_one_line_and_passed_over(
    found: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    save(found, 2, 4)
    state = found.path(4) / "state.pt"
    state.write_bytes(state.read_bytes()[:-10])
    with caplog.at_level(logging.WARNING):
        assert found.newest() == 2
    (line,) = caplog.messages
    assert "step_00004 is torn (state.pt has " in line and "\n" not in line


def test_torn_checkpoints_do_not_cost_a_whole_one_its_place(found: Checkpoints) -> None:
    save(found, 2, 4, keep=2)
    (found.path(4) / "complete").unlink()
    save(found, 6, keep=2)
    assert names(found) == ["step_00002", "step_00006"]
    (found.path(6) / "complete").unlink()
    assert found.newest() == 2


@pytest.mark.parametrize("keep", [1, 2])
def test_a_run_that_went_back_keeps_what_it_writes_then(keep: int, found: Checkpoints) -> None:
    """Step 8 cannot be used, though its size is right: it is not among the newest that are kept."""
    save(found, 4, 8)
    state = found.path(8) / "state.pt"
    state.write_bytes(bytes(reversed(state.read_bytes())))
    assert found.newest() == 4
    save(found, 5, keep=keep)
    assert names(found) == ["step_00004", "step_00005"][-keep:]
    assert found.newest() == 5


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("two")
    save(Checkpoints(folder), 2, 4)
    return folder


@pytest.fixture(scope="module")
def damage(two: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Checkpoints]:
    """A copy of `two` in which one file of step 4 has other bytes, or is gone."""
    folder = tmp_path_factory.mktemp("damaged") / "checkpoints"

    def damage(file: str, change: Callable[[bytes], bytes] | None) -> Checkpoints:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(two, folder)
        path = folder / "step_00004" / file
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))
        return Checkpoints(folder)

    return damage


FILES = st.sampled_from(["state.pt", "complete"])


@pytest.mark.parametrize("file", ["state.pt", "complete"])
def test_a_missing_file_is_noticed(file: str, damage: Callable[..., Checkpoints]) -> None:
    assert damage(file, None).newest() == 2


@settings(max_examples=80)
@given(file=FILES, share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_at_any_byte_is_noticed(
    file: str, share: float, damage: Callable[..., Checkpoints]
) -> None:
    assert damage(file, lambda data: data[: int(share * len(data))]).newest() == 2


@settings(max_examples=80)
@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_any_changed_byte_of_the_state_is_noticed(
    share: float, flip: int, damage: Callable[..., Checkpoints]
) -> None:
    def change(data: bytes) -> bytes:
        place = int(share * len(data))
        return data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]

    assert damage("state.pt", change).newest() == 2


@settings(max_examples=80)
@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_marker_is_noticed_or_changes_nothing(
    share: float, flip: int, damage: Callable[..., Checkpoints]
) -> None:
    """A space that becomes a tab says the same."""

    def change(data: bytes) -> bytes:
        place = int(share * len(data))
        return data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]

    checkpoints = damage("complete", change)
    if (step := checkpoints.newest()) != 2:
        assert step == 4 and checkpoints.load(4)["weight"].tolist() == [4.0, 4.0]


@settings(max_examples=40)
@given(data=st.binary(max_size=200) | st.sampled_from([b"[]", b"{}", b'{"state.pt": 3}', b"1"]))
def test_a_marker_of_anything_else_is_noticed(
    data: bytes, damage: Callable[..., Checkpoints]
) -> None:
    assert damage("complete", lambda _: data).newest() == 2
