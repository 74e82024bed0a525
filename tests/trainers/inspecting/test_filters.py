"""Which saved episodes a filter takes: what a look at each whole episode says, and no more read."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jmespath
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.errors import ConfigError
from gymnast.trainers import SavedTrajectory, load_rollouts
from gymnast.trainers.inspecting.filters import Filter
from gymnast.trainers.inspecting.index import Index
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import StopReason, Trajectory
from saved_episodes import call, episode, said

REWARDS = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
REASONS = st.sampled_from([StopReason.answered, StopReason.max_tokens, StopReason.timeout])
WORDS = st.sampled_from(["Straße", "pear", 'a "pear"\n', "É", "x\\n", "", "\ud800", "role"])
METRICS = st.dictionaries(
    st.sampled_from(
        [
            *("tools/calls/add", "tools/failures/add", "tools/calls/mul", "tools/errors/malformed"),
            *("environments/Sums/episodes", "tools/errors/timeout"),
        ]
    ),
    st.sampled_from([0.0, 1.0, 2.0]),
)
ROWS = st.fixed_dictionaries(
    {"a": st.integers(0, 3)}, optional={"kind": st.sampled_from(["x", "y", None, True])}
)
EPISODES = st.builds(
    lambda word, argument, **known: episode(call("add", {"to": argument}), said(word), **known),
    WORDS,
    WORDS,
    reward=REWARDS,
    stop_reason=REASONS,
    metrics=METRICS,
    row=ROWS,
    no_reward=st.booleans(),
)
FILES = st.dictionaries(
    st.sampled_from(["step_00001", "step_00003", "eval_00000", "eval_00003_exam"]),
    st.lists(st.lists(EPISODES, max_size=2), min_size=1, max_size=3),
    min_size=1,
)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


FILTERS = st.builds(
    Filter,
    steps=maybe(st.sampled_from([range(1), range(1, 2), range(1, 4)])),
    evaluations=maybe(st.booleans()),
    group=maybe(st.integers(0, 2)),
    min_reward=maybe(REWARDS),
    max_reward=maybe(REWARDS),
    stop_reason=maybe(REASONS.map(str)),
    environment=maybe(st.sampled_from(["", "Sums", "exam"])),
    tool=maybe(st.sampled_from(["add", "mul"])),
    error=maybe(st.sampled_from(["malformed", "timeout"])),
    tags=st.dictionaries(st.sampled_from(["a", "kind"]), st.sampled_from(["1", "x", "true"])),
    where=maybe(st.sampled_from(["a > `1`", "kind", "a", "kind == 'x'"])),
    search=maybe(st.sampled_from(["strasse", "PEAR", 'a "p', "\n", "\\n", "add", '"to":', "role"])),
)


def brute_force(saved: SavedTrajectory, wanted: Filter) -> bool:
    """Whether a whole episode is such a one, said another way."""
    episode, kind = saved.trajectory, saved.name.split("_")
    number = episode.metrics
    mixture = "Sums" if "environments/Sums/episodes" in episode.metrics else "".join(kind[2:])
    conditions = [
        wanted.steps is None or int(kind[1]) in wanted.steps,
        wanted.evaluations is None or wanted.evaluations == (kind[0] == "eval"),
        wanted.group in (None, saved.group),
        wanted.min_reward is None
        or (not episode.no_reward and episode.reward >= wanted.min_reward),
        wanted.max_reward is None
        or (not episode.no_reward and episode.reward <= wanted.max_reward),
        wanted.stop_reason in (None, str(episode.stop_reason)),
        wanted.environment in (None, mixture),
        wanted.tool is None
        or number.get(f"tools/calls/{wanted.tool}", 0)
        + number.get(f"tools/failures/{wanted.tool}", 0)
        > 0,
        wanted.error is None or number.get(f"tools/errors/{wanted.error}", 0) > 0,
        all(
            key in episode.row and shown(episode.row[key]) == text
            for key, text in wanted.tags.items()
        ),
        wanted.where is None or jmespath.search(f"[@][?{wanted.where}]", dict(episode.row)) != [],
        wanted.search is None or contains(episode, wanted.search),
    ]
    return all(conditions)


def shown(value: Any) -> str:
    return {None: "null", True: "true"}.get(value, str(value)) if value != 1 else str(value).lower()


def contains(episode: Trajectory, text: str) -> bool:
    said = episode.messages[-1]["content"]
    argument = episode.messages[1]["tool_calls"][0]["function"]["arguments"]["to"]
    quoted = argument.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    texts = [said, argument, f'{{"to": "{quoted}"}}', "add", episode.messages[0]["content"]]
    return any(text.casefold() in each.casefold() for each in texts)


@given(FILES, FILTERS)
def test_it_takes_what_a_look_at_each_whole_episode_takes(
    files: dict[str, list[list[Trajectory]]], wanted: Filter
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, groups in files.items():
            write_rollouts(Path(folder) / "rollouts" / f"{name}.parquet", groups)
        index = Index(folder)
        found = [entry.load() for entry in index.find(wanted)]
        whole = [
            saved
            for evaluations in (False, True)
            if any(name.startswith("eval") == evaluations for name in files)
            for saved in load_rollouts(folder, evaluations=evaluations)
        ]
        place = {(s.name, s.group, s.member): s for s in whole if brute_force(s, wanted)}
        assert {(s.name, s.group, s.member): s for s in found} == place
        assert [entry.id for entry in index.find(wanted)] == [
            f"{s.name}/{s.group}/{s.member}" for s in found
        ]


def test_only_the_columns_that_it_asks_about_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rollouts(tmp_path / "rollouts/step_00001.parquet", [[episode(said("5"), reward=1.0)]])
    asked: list[str] = []

    def recording(read: Callable[..., Any]) -> Callable[..., Any]:
        def read_and_record(*arguments: Any, columns: list[str] | None = None, **named: Any) -> Any:
            assert columns is not None, "a whole file was read"
            asked.extend(columns)
            return read(*arguments, columns=columns, **named)

        return read_and_record

    for name in ("read", "read_row_group"):
        monkeypatch.setattr(pq.ParquetFile, name, recording(getattr(pq.ParquetFile, name)))
    everything = {"min_reward": 0.5, "error": "malformed", "tags": {"a": "1"}, "search": "5"}
    heavy = {"ids", "action_mask", "logprobs", "advantages", "token_ends", "versions", "turns"}
    assert list(Index(tmp_path).find(Filter(min_reward=0.5)))
    assert not {*asked} & {*heavy, "messages", "text", "row", "metrics"}
    list(Index(tmp_path).find(Filter(**everything)))  # type: ignore[arg-type]
    assert not {*asked} & {*heavy, "messages"}  # nothing was left to search in
    list(Index(tmp_path).find(Filter(search="5")))
    assert "messages" in asked and not {*asked} & heavy


def test_an_expression_that_cannot_be_read_or_applied_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="where: must be a jmespath expression"):
        Filter(where="a >")
    wanted = Filter(where="abs(a) > `0`")
    path = tmp_path / "rollouts/step_00001.parquet"
    write_rollouts(path, [[episode(said("5"), row={"a": "text"})]])
    with pytest.raises(ConfigError, match=r"where: 'abs.*cannot be applied to a row"):
        list(Index(tmp_path).find(wanted))
