"""The rollouts of a run, in today's format and in the one before."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gymnast.errors import DataError
from gymnast.trainers import load_rollouts
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.trainers.saving.saved_runs import shown_steps
from gymnast.types import Span, StopReason, Trajectory, VersionSpan

EPISODE = Trajectory(
    ids=[1, 2],
    action_mask=[0, 1],
    logprobs=[0.0, -0.5],
    prompt_length=1,
    turns=[Span(1, 2)],
    turn_rewards=[1.0],
    stop_reason=StopReason.answered,
    terminated=True,
    truncated=False,
    messages=[{"role": "user", "content": "Go."}],
    tools=[{"type": "function"}],
    versions=[VersionSpan(1, 2, 3)],
    states=[("at", 1)],
    row={"prompt": "Go."},
)


def as_earlier_versions_wrote(*trajectories: Trajectory, group: int = 0) -> str:
    records = [asdict(t) | {"group": group, "reward": t.reward} for t in trajectories]
    for record in records:
        del record["experts"]
        record["logprobs"] = [v if math.isfinite(v) else None for v in record["logprobs"]]
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Steps 1, 2 and 4, two evaluations, and a file of somebody else's."""
    for seed, name in enumerate(
        ["step_00001", "step_00002", "step_00004", "eval_00000", "eval_00004", "eval_00004_exam"]
    ):
        write_rollouts(
            tmp_path / "rollouts" / f"{name}.parquet", [[], [replace(EPISODE, seed=seed)]]
        )
    (tmp_path / "rollouts" / "my_notes.txt").touch()
    (tmp_path / "rollouts" / ".step_00005.parquet.new").write_bytes(b"PAR1")
    return tmp_path


def test_all_steps_or_one_are_loaded(run: Path) -> None:
    assert [saved.name for saved in load_rollouts(run)] == [
        "step_00001",
        "step_00002",
        "step_00004",
    ]
    (saved,) = load_rollouts(str(run), step=4)
    assert (saved.trajectory, saved.group) == (replace(EPISODE, seed=2), 1)


def test_evaluations_are_loaded_where_they_are_asked_for(run: Path) -> None:
    found = load_rollouts(run, evaluations=True)
    assert [saved.name for saved in found] == ["eval_00000", "eval_00004", "eval_00004_exam"]
    assert len(load_rollouts(run, step=4, evaluations=True)) == 2


def test_the_rollouts_of_earlier_versions_are_loaded(tmp_path: Path) -> None:
    odd = replace(EPISODE, logprobs=[0.0, math.nan], tools=())
    (tmp_path / "rollouts").mkdir()
    lines = as_earlier_versions_wrote(EPISODE, odd) + as_earlier_versions_wrote(EPISODE, group=2)
    (tmp_path / "rollouts" / "step_00001.jsonl").write_text(lines)
    first, second, third = load_rollouts(tmp_path, step=1)
    assert first.trajectory == third.trajectory == EPISODE
    np.testing.assert_array_equal(second.trajectory.logprobs, [0.0, math.nan])
    assert [(s.group, s.member) for s in (first, second, third)] == [(0, 0), (0, 1), (2, 0)]
    assert (first.name, first.advantages, first.tokenizer) == ("step_00001", None, None)


def test_lines_from_before_a_field_was_there_have_its_default(tmp_path: Path) -> None:
    record = json.loads(as_earlier_versions_wrote(EPISODE))
    for name in ("tools", "versions", "states", "token_rewards", "reward_parts", "no_reward"):
        del record[name]
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step_00001.jsonl").write_text(json.dumps(record) + "\n")
    (saved,) = load_rollouts(tmp_path)
    assert (saved.trajectory.tools, saved.trajectory.no_reward) == ((), False)


def test_a_line_that_a_kill_tore_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rollouts").mkdir()
    lines = as_earlier_versions_wrote(EPISODE, EPISODE)
    (tmp_path / "rollouts" / "step_00001.jsonl").write_text(lines[:-20])
    assert len(load_rollouts(tmp_path)) == 1
    (said,) = caplog.messages
    assert said.endswith("step_00001.jsonl: the last line is torn and left out")


def test_a_step_that_was_written_again_is_read_in_the_newer_format(run: Path) -> None:
    lines = as_earlier_versions_wrote(EPISODE, EPISODE)
    (run / "rollouts" / "step_00001.jsonl").write_text(lines)
    assert len(load_rollouts(run, step=1)) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda run: load_rollouts(run / "none"),
            "there is no such folder; name the folder of a run",
        ),
        (lambda run: load_rollouts(run / "rollouts"), "has no rollouts of steps (in rollouts/)"),
        (
            lambda run: load_rollouts(run, step=3),
            "has no rollouts of step 3; it has those of 1-2, 4",
        ),
        (
            lambda run: load_rollouts(run, step=1, evaluations=True),
            "has no rollouts of evaluation 1; it has those of 0, 4",
        ),
    ],
)
def test_what_is_not_there_is_named(wrong: Callable[[Path], Any], said: str, run: Path) -> None:
    with pytest.raises(DataError) as caught:
        wrong(run)
    assert said in str(caught.value)


@pytest.mark.parametrize("line", ["null", "{}", '{"group": 0, "ids": 3}', "[1]"])
def test_a_line_that_is_no_trajectory_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    file, whole = tmp_path / "rollouts" / "step_00001.jsonl", as_earlier_versions_wrote(EPISODE)
    file.write_text(f"{whole}{line}\n{whole}")
    with pytest.raises(DataError, match=r"step_00001.jsonl:2: is no trajectory; remove the line"):
        load_rollouts(tmp_path)
    file.write_text(f"{line}\n{line}\n")  # metrics, for example, are not to be damaged
    with pytest.raises(DataError, match=r"step_00001.jsonl: holds no rollouts, as its first line"):
        load_rollouts(file)


def test_a_torn_file_is_named_by_its_path(run: Path) -> None:
    (run / "rollouts" / "step_00002.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"step_00002.parquet: cannot be read"):
        load_rollouts(run)
    assert len(load_rollouts(run, step=1)) == 1


def test_steps_are_shown_shortly() -> None:
    assert shown_steps([5, 1, 2, 3, 9, 2]) == "1-3, 5, 9"
