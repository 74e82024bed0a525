"""Files of rollouts: what is read is what was written, and nothing torn is taken for a file."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.errors import DataError
from gymnast.trainers.saving.rollout_files import (
    SavedBranch,
    read_rollouts,
    write_rollouts,
    write_saved,
)
from gymnast.types import Branch, Span, StopReason, Trajectory, VersionSpan

CALL = {
    "id": "a",
    "type": "function",
    "function": {"name": "price", "arguments": {"item": "tea", "café": None}},
}
FULL = Trajectory(
    ids=[5, 6, 7, 8, 9],
    action_mask=[0, 1, 1, 0, 1],
    logprobs=[0.0, -0.1, -0.25, 0.0, -1.5],
    prompt_length=1,
    turns=[Span(1, 3), Span(4, 5)],
    turn_rewards=[0.1, 0.2],
    stop_reason=StopReason.stop_tool,
    terminated=True,
    truncated=False,
    messages=[
        {"role": "user", "content": "é\ud83d"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "2", "tool_call_id": "a"},
    ],
    tools=[{"type": "function", "function": {"name": "price", "parameters": {}}}],
    versions=[VersionSpan(1, 3, 4), VersionSpan(4, 5, 5)],
    token_rewards=[0.0, 0.1, 0.0, 0.0, 0.2],
    states=["start", ("shelf", (1, 2.5), None)],
    reward_parts={"found": 0.3, "odd": math.inf},
    no_reward=False,
    metrics={"time/episode_s": 0.5, "tools/calls": 1},
    row={"prompt": "Buy tea.", "nested": [{"a": None}], "half": "\udfff"},
    seed=2**62,
)
BARE = Trajectory(
    ids=[1],
    action_mask=[0],
    logprobs=[0.0],
    prompt_length=1,
    turns=[],
    turn_rewards=[],
    stop_reason=StopReason.error,
    terminated=False,
    truncated=True,
)
MESSAGES_ONLY = replace(
    FULL,
    ids=[],
    action_mask=[],
    logprobs=[],
    prompt_length=0,
    turns=[Span(0, 0), Span(0, 0)],
    versions=(),
    token_rewards=(),
)

BRANCHED = replace(
    FULL,
    branches=[
        Branch(
            ids=[7, 7, 2],
            action_mask=[0, 0, 1],
            logprobs=[0.0, 0.0, -3.5],
            prompt_length=2,
            turns=[Span(2, 3)],
            turn_rewards=[0.5],
            messages=[{"role": "user", "content": "é"}, {"role": "assistant", "content": "x"}],
            tools=[{"type": "function", "function": {"name": "cost", "parameters": {}}}],
            versions=[VersionSpan(2, 3, 4)],
            token_rewards=[0.0, 0.0, 0.5],
            states=[("shelf", 1)],
        ),
        Branch([4, 5], [0, 1], [0.0, -1.0], 1, [Span(1, 2)], [0.25]),
    ],
    order=[0, 1, 2, 0],
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rollouts" / "step_00003.parquet"


def test_a_trajectory_is_read_as_it_was_written(path: Path) -> None:
    write_rollouts(path, [[FULL, BARE], [], [MESSAGES_ONLY]])
    saved = read_rollouts(path)
    assert [each.trajectory for each in saved] == [FULL, BARE, MESSAGES_ONLY]
    assert [(each.group, each.member) for each in saved] == [(0, 0), (0, 1), (2, 0)]
    assert {each.name for each in saved} == {"step_00003"}
    assert [(each.advantages, each.tokenizer) for each in saved] == [(None, None)] * 3


def test_the_contexts_of_an_episode_are_read_as_they_were_written(
    path: Path, tokenizer: Any
) -> None:
    advantages = [0.0, 0.5, 0.5, 0.0, -0.25, 0.0, 0.0, 1.0, 0.0, 2.0]
    write_rollouts(path, [[BRANCHED, FULL]], tokenizer=tokenizer, advantages=[[advantages, None]])
    saved, other = read_rollouts(path)
    assert saved.trajectory == BRANCHED and other.trajectory == FULL
    assert saved.advantages == advantages[:5]
    assert [branch.advantages for branch in saved.branches] == [advantages[5:8], advantages[8:]]
    for branch, known in zip(BRANCHED.branches, saved.branches, strict=True):
        assert known.text == tokenizer.decode(branch.ids)
        assert known.token_ends is not None and len(known.token_ends) == len(branch.ids)
    again = path.with_name("again.parquet")
    write_saved(again, [saved, other])
    assert [replace(each, name=path.stem, group=0) for each in read_rollouts(again)] == [
        saved,
        replace(other, member=0),
    ]
    write_saved(again, [replace(saved, branches=())])
    assert read_rollouts(again)[0].branches == [SavedBranch(), SavedBranch()]


def test_files_without_contexts_are_still_read(path: Path) -> None:
    write_rollouts(path, [[FULL, BARE]])
    table = pq.read_table(path).drop_columns(["branches", "order"])
    metadata = {**table.schema.metadata, b"format_version": b"1"}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    assert [each.trajectory for each in read_rollouts(path)] == [FULL, BARE]


def test_calls_get_no_arguments_that_they_did_not_have(path: Path) -> None:
    other = replace(FULL, messages=[{"role": "assistant", "tool_calls": [{"arguments": {}}]}])
    write_rollouts(path, [[FULL, other]])
    assert [each.trajectory for each in read_rollouts(path)] == [FULL, other]


def test_log_probabilities_that_are_no_numbers_survive(path: Path) -> None:
    logprobs = [0.0, math.nan, -math.inf, 0.0, -1 / 3]
    write_rollouts(path, [[replace(FULL, logprobs=logprobs)]])
    [saved] = read_rollouts(path)
    np.testing.assert_array_equal(saved.trajectory.logprobs, logprobs)


def test_advantages_are_written_where_there_are_any(path: Path) -> None:
    advantages = [0.0, 0.5, 0.5, 0.0, -0.25]
    write_rollouts(path, [[FULL, BARE]], advantages=[[advantages, None]])
    assert [each.advantages for each in read_rollouts(path)] == [advantages, None]


def test_what_json_cannot_say_is_written_as_text_and_numpy_as_python(path: Path) -> None:
    row = {"made": Path("odd"), "count": np.int64(3), "list": np.array([1.5, 2.0])}
    write_rollouts(path, [[replace(FULL, row=row, states=[np.int64(1), "end"])]])
    [saved] = read_rollouts(path)
    assert saved.trajectory.row == {"made": "odd", "count": 3, "list": [1.5, 2.0]}
    assert saved.trajectory.states == [1, "end"]


def test_the_text_of_each_token_can_be_found(path: Path, tokenizer: Any) -> None:
    ids = tokenizer.encode("The café sells 🍵.", add_special_tokens=False)
    episode = replace(
        BARE, ids=ids, action_mask=[0] * len(ids), logprobs=[0.0] * len(ids), prompt_length=len(ids)
    )
    write_rollouts(path, [[episode, MESSAGES_ONLY]], tokenizer=tokenizer)
    saved, without_ids = read_rollouts(path)
    assert saved.text == "The café sells 🍵." and saved.token_ends is not None
    assert len(saved.token_ends) == len(ids)
    assert saved.token_ends[-1] == len(saved.text.encode())
    assert (without_ids.text, without_ids.token_ends) == ("", [])
    assert saved.tokenizer == without_ids.tokenizer is not None


def test_a_file_without_episodes_is_a_file(path: Path) -> None:
    write_rollouts(path, [[], []])
    assert read_rollouts(path) == []


def test_more_episodes_than_are_held_at_once_keep_their_order(path: Path) -> None:
    group = [replace(BARE, seed=number) for number in range(600)]
    write_rollouts(path, [group])
    assert [each.trajectory.seed for each in read_rollouts(path)] == list(range(600))


def test_a_file_is_replaced_as_a_whole(path: Path) -> None:
    write_rollouts(path, [[FULL]])
    with pytest.raises(ZeroDivisionError):
        write_rollouts(path, [[BARE]], advantages=Broken())
    assert [each.trajectory for each in read_rollouts(path)] == [FULL]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


class Broken(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise ZeroDivisionError


def test_plain_pandas_reads_it(path: Path) -> None:
    write_rollouts(path, [[FULL, BARE]], advantages=[[[0.0, 1.0, 1.0, 0.0, 1.0], None]])
    frame = pandas.read_parquet(path)
    assert list(frame["reward"]) == [FULL.reward, 0.0]
    assert list(frame["ids"][0]) == FULL.ids
    assert [tuple(turn) for turn in frame["turns"][0]] == FULL.turns
    assert json.loads(frame["messages"][0]) == FULL.messages
    assert frame["advantages"][1] is None


# --- Files that are none


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(DataError, match=r"step_00003.parquet: there is no such file"):
        read_rollouts(path)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_torn_file_is_named(part: float, path: Path) -> None:
    write_rollouts(path, [[FULL, BARE]])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(DataError, match=r"step_00003.parquet: cannot be read .* it is torn"):
        read_rollouts(path)


def test_a_file_with_another_ending_is_not_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: {}\n")
    with pytest.raises(DataError, match=r"run.yaml: .*; name the folder of a run") as caught:
        read_rollouts(tmp_path / "run.yaml")
    assert "Remove" not in str(caught.value)


def with_metadata(path: Path, metadata: dict[str, str]) -> None:
    write_rollouts(path, [[FULL]])
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)


def test_a_newer_format_is_refused(path: Path) -> None:
    with_metadata(path, {"format_version": "3"})
    with pytest.raises(DataError, match=r"has format_version 3, .* reads up to 2; update Gymnast"):
        read_rollouts(path)


@pytest.mark.parametrize("metadata", [{}, {"format_version": "new"}])
def test_another_parquet_file_is_refused(metadata: dict[str, str], path: Path) -> None:
    with_metadata(path, metadata)
    with pytest.raises(DataError, match="one of Gymnast's rollouts; name the folder of a run"):
        read_rollouts(path)


# --- Any trajectory

NUMBERS = st.floats(allow_nan=False, width=64)
# Halves of surrogate pairs too, which JSON in a dataset may hold.
TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
STATES = st.recursive(
    st.integers() | TEXT | NUMBERS, lambda inner: st.tuples(inner, inner), max_leaves=4
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    lengths = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=4))
    prompt = draw(st.integers(0, 4))
    mask, turns = [0] * prompt, list[Span]()
    for action, observation in lengths:
        turns.append(Span(len(mask), len(mask) + action))
        mask += [1] * action + [0] * observation

    def each(values: st.SearchStrategy[Any], like: list[Any]) -> list[Any]:
        found: list[Any] = draw(st.lists(values, min_size=len(like), max_size=len(like)))
        return found

    reason = draw(st.sampled_from(StopReason))
    return Trajectory(
        ids=each(st.integers(0, 2**31 - 1), mask),
        action_mask=mask,
        logprobs=each(NUMBERS, mask),
        prompt_length=prompt,
        turns=turns,
        turn_rewards=each(NUMBERS, turns),
        stop_reason=reason,
        terminated=reason.terminated,
        truncated=not reason.terminated,
        messages=draw(st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2)),  # type: ignore[arg-type]
        tools=draw(st.just(()) | st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2)),
        versions=draw(st.just(()) | st.just([VersionSpan(*turn, 3) for turn in turns])),
        token_rewards=each(NUMBERS, mask) if draw(st.booleans()) and mask else (),
        states=each(STATES, turns) if draw(st.booleans()) and turns else (),
        reward_parts=draw(st.dictionaries(TEXT, NUMBERS, max_size=2)),
        no_reward=draw(st.booleans()),
        metrics=draw(st.dictionaries(TEXT, NUMBERS | st.integers(), max_size=2)),
        row=draw(st.dictionaries(TEXT, JSON, max_size=3)),
        seed=draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
    )


@given(groups=st.lists(st.lists(trajectories(), max_size=3), max_size=3))
def test_any_trajectory_is_read_as_it_was_written(
    groups: list[list[Trajectory]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    write_rollouts(path, groups)
    saved = read_rollouts(path)
    assert [each.trajectory for each in saved] == [t for group in groups for t in group]
    assert [each.group for each in saved] == [n for n, group in enumerate(groups) for _ in group]
