"""The index of a run's saved episodes: what there is, by which name, and one of them loaded."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from gymnast.errors import DataError
from gymnast.trainers import load_rollouts
from gymnast.trainers.inspecting.filters import Filter
from gymnast.trainers.inspecting.index import Index
from gymnast.trainers.saving.rollout_files import EPISODES_AT_ONCE, write_rollouts
from gymnast.types import Branch, Span, Trajectory
from saved_episodes import ASKED, episode, said


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two steps and two evaluations; a group of step 2 is empty."""
    for name, groups in {
        "step_00001": [[episode(said("one"), reward=1.0), episode(said("two"))]],
        "step_00002": [[], [episode(said("three"), reward=0.5, seed=7)]],
        "eval_00002": [[episode(said("four"), no_reward=True)]],
        "eval_00002_exam": [[episode(said("five"))]],
    }.items():
        write_rollouts(tmp_path / "rollouts" / f"{name}.parquet", groups)
    return tmp_path


def test_every_episode_has_a_name_by_which_it_is_loaded(run: Path) -> None:
    index = Index(run)
    names = [entry.id for entry in index.entries()]
    assert names == [
        *("step_00001/0/0", "step_00001/0/1", "eval_00002/0/0", "eval_00002_exam/0/0"),
        "step_00002/1/0",
    ]
    assert len(index) == len(names)
    whole = [*load_rollouts(run), *load_rollouts(run, evaluations=True)]
    for saved in whole:
        assert index.entry(f"{saved.name}/{saved.group}/{saved.member}").load() == saved


def test_an_entry_tells_the_outcome(run: Path) -> None:
    third = Index(run).entry("step_00002/1/0")
    assert (third.step, third.is_evaluation, third.group, third.member) == (2, False, 1, 0)
    assert (third.reward, third.stop_reason, third.turns) == (0.5, "answered", 1)
    assert (third.seed, third.truncated, third.environment) == (7, False, "")
    unknown, exam = (Index(run).entry(f"eval_00002{name}/0/0") for name in ("", "_exam"))
    assert unknown.reward is None
    assert (unknown.environment, exam.environment) == ("", "exam")


def test_turns_are_those_of_all_contexts(tmp_path: Path) -> None:
    branch = Branch([], [], [], 0, [Span(0, 0)] * 2, [0.0, 0.0], messages=[ASKED])
    whole = episode(said("one"), branches=[branch], order=[0, 1, 1])
    write_rollouts(tmp_path / "rollouts/step_00001.parquet", [[whole]])
    assert Index(tmp_path).entry("step_00001/0/0").turns == 3


def test_one_file_is_an_index_too(run: Path) -> None:
    [entry] = Index(run / "rollouts/step_00002.parquet").entries()
    assert (entry.id, entry.step) == ("step_00002/1/0", 2)
    (run / "rollouts/step_00002.parquet").rename(run / "chosen.parquet")
    assert [entry.id for entry in Index(run / "chosen.parquet").entries()] == ["chosen/1/0"]


def test_an_episode_is_found_in_whichever_part_of_its_file_it_is(tmp_path: Path) -> None:
    count = EPISODES_AT_ONCE + 2
    groups = [[episode(said(f"answer {number}"))] for number in range(count)]
    write_rollouts(tmp_path / "rollouts/step_00001.parquet", groups)
    index = Index(tmp_path)
    for number in (0, EPISODES_AT_ONCE - 1, EPISODES_AT_ONCE, count - 1):
        saved = index.entry(f"step_00001/{number}/0").load()
        assert saved.trajectory == groups[number][0]
    found = [entry.id for entry in index.find(Filter(search=f"answer {count - 1}"))]
    assert found == [f"step_00001/{count - 1}/0"]


def test_json_lines_of_earlier_versions_are_found_and_loaded(tmp_path: Path) -> None:
    old = episode(said("Pear"), reward=0.5, metrics={"tools/calls/add": 1.0}, seed=3)
    record = asdict(old) | {"group": 4, "reward": old.reward}
    del record["experts"]
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts/step_00001.jsonl").write_text(json.dumps(record) + "\n")
    index = Index(tmp_path)
    [found] = index.find(Filter(min_reward=0.5, tool="add", search="pear"))
    assert (found.id, found.load().trajectory) == ("step_00001/4/0", old)
    assert not list(index.find(Filter(search="plum")))


def test_new_files_and_changed_ones_are_seen_after_a_look(run: Path) -> None:
    index = Index(run)
    kept = index.entry("step_00001/0/0").file
    write_rollouts(run / "rollouts/step_00003.parquet", [[episode(said("six"))]])
    write_rollouts(run / "rollouts/step_00002.parquet", [[episode(said("seven"), reward=2.0)]])
    os.utime(run / "rollouts/step_00002.parquet", ns=(1, 1))
    (run / "rollouts/eval_00002.parquet").unlink()
    index.refresh()
    assert index.entry("step_00001/0/0").file is kept
    assert index.entry("step_00003/0/0").load().trajectory.messages[-1] == said("six")
    assert index.entry("step_00002/0/0").reward == 2.0
    assert "eval_00002" not in {file.name for file in index.files}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "step_00001",
            "'step_00001': names no episode; write FILE/GROUP/MEMBER, as step_00001/0/0",
        ),
        ("step_00009/0/0", "has no file 'step_00009'; it has step_00001, eval_00002, "),
        ("step_00001/3/0", "step_00001/3/0: there is no such episode; the file has groups 0"),
        ("step_00001/0/5", "step_00001/0/5: there is no such episode; group 0 has members 0-1"),
    ],
)
def test_a_name_of_nothing_is_answered_with_what_there_is(run: Path, name: str, said: str) -> None:
    with pytest.raises(DataError) as raised:
        Index(run).entry(name)
    assert said in str(raised.value)


def test_a_run_without_saved_episodes_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no saved episodes"):
        Index(tmp_path)
    with pytest.raises(DataError, match="there is no such folder or file"):
        Index(tmp_path / "nothing")


def test_files_of_before_there_were_branches_are_read(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "rollouts/step_00001.parquet"
    trajectory: Trajectory = episode(said("Pear"))
    write_rollouts(path, [[trajectory]])
    table = pq.read_table(path).drop_columns(["branches", "order"])
    marked = {**(table.schema.metadata or {}), b"format_version": b"1"}
    pq.write_table(table.replace_schema_metadata(marked), path)
    [found] = Index(tmp_path).find(Filter(search="pear"))
    assert (found.turns, found.load().trajectory) == (1, trajectory)


def test_what_is_no_run_names_those_that_may_be_meant(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "runs/till/rollouts/step_00001.parquet", [[episode(said("5"))]])
    with pytest.raises(DataError, match=r"a file of its rollouts/\. Did you mean .*runs/till\?"):
        Index(tmp_path / "runs/tlil")
    with pytest.raises(DataError, match=r"has no saved episodes .*\. The runs in it are till$"):
        Index(tmp_path / "runs")
