"""Where evaluations are kept: numbered folders, which of them go on, and what is removed."""

import threading
from pathlib import Path

import pytest

from gymnast.errors import ConfigError
from gymnast.trainers.config.files import parse_config
from gymnast.trainers.evaluating.places import evaluation_place
from gymnast.trainers.evaluating.targets import Target
from gymnast.trainers.saving.run_folder import RunFolder
from gymnast.trainers.saving.saved_runs import EVALUATION_FILE

CONFIG = parse_config({"model": {"name": "tiny:"}, "environment": {"id": "gymnast/Arithmetic-v0"}})


def of(run: Path) -> Target:
    return Target(CONFIG, "tiny:", run / "evaluations")


def test_evaluations_are_numbered_and_those_that_came_to_nothing_are_removed(
    tmp_path: Path,
) -> None:
    target = of(tmp_path / "deep/run")
    with evaluation_place(target):
        pass
    assert not (tmp_path / "deep").exists()
    for number in (1, 2):
        with evaluation_place(target) as folder:
            assert folder == target.evaluations / f"00{number}"
            RunFolder(folder).add_metrics({"step": 0})
    with pytest.raises(ZeroDivisionError), evaluation_place(target):
        raise ZeroDivisionError
    assert sorted(path.name for path in target.evaluations.iterdir()) == ["001", "002"]


def test_only_the_first_process_makes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with evaluation_place(of(tmp_path / "run")) as folder:
        assert folder is None
    assert not (tmp_path / "run").exists()


def begun(folder: Path) -> None:
    (folder / "episodes/eval").mkdir(parents=True, exist_ok=True)
    (folder / "episodes/eval/001_00.arrows").touch()
    (folder / EVALUATION_FILE).write_text("{}")


def test_the_newest_that_has_not_ended_goes_on(tmp_path: Path) -> None:
    target = of(tmp_path)
    for number in range(3):
        with evaluation_place(target) as folder:
            assert folder is not None
            begun(folder)
            if number == 2:
                RunFolder(folder).add_metrics({"step": 0})
    with evaluation_place(target, resume=True) as folder:
        assert folder == target.evaluations / "002"
    assert (target.evaluations / "002/episodes").exists()
    assert not (target.evaluations / "003/episodes").exists()


def test_one_process_at_a_time_is_at_an_evaluation(tmp_path: Path) -> None:
    said: list[str] = []

    def also() -> None:
        with (
            pytest.raises(ConfigError) as refused,
            evaluation_place(of(tmp_path), output=tmp_path / "mine", resume=True),
        ):
            pass
        said.append(str(refused.value))

    with evaluation_place(of(tmp_path), output=tmp_path / "mine") as folder:
        assert folder is not None
        begun(folder)
        other = threading.Thread(target=also)
        other.start()
        other.join()
    assert len(said) == 1 and "another process is evaluating in" in said[0]
    with evaluation_place(of(tmp_path), output=tmp_path / "mine", resume=True):
        pass


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("Dear")
    with (
        pytest.raises(ConfigError, match="mine"),
        evaluation_place(of(tmp_path), output=tmp_path / "mine", resume=resume),
    ):
        pass
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]
