"""Which rollouts are written, and what is told of their size."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.errors import ConfigError
from gymnast.trainers import Trainer, load_rollouts
from gymnast.trainers.saving.kept_rollouts import Expected, KeptRollouts, sampled
from gymnast.trainers.saving.rollout_files import read_rollouts
from gymnast.trainers.saving.settings import RolloutKeeping
from gymnast.types import Sampling, Span, StopReason, Trajectory


def episode(seed: int) -> Trajectory:
    return Trajectory(
        ids=[1, 2],
        action_mask=[0, 1],
        logprobs=[0.0, -0.5],
        prompt_length=1,
        turns=[Span(1, 2)],
        turn_rewards=[1.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        seed=seed,
    )


def groups(*sizes: int) -> list[list[Trajectory]]:
    seeds = iter(range(sum(sizes)))
    return [[episode(next(seeds)) for _ in range(size)] for size in sizes]


def kept(folder: Path, **settings: Any) -> KeptRollouts:
    return KeptRollouts(folder, RolloutKeeping(**settings), seed=1)


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("rollouts/*.parquet"))


# --- Which


def test_every_step_and_evaluation_is_kept_by_default(tmp_path: Path) -> None:
    rollouts = kept(tmp_path)
    rollouts.save_evaluation(0, groups(2))
    for step in (1, 2):
        rollouts.save(step, groups(2, 2))
    assert names(tmp_path) == ["eval_00000", "step_00001", "step_00002"]


def test_of_every_nth_step_the_evaluations_are_all_kept(tmp_path: Path) -> None:
    rollouts = kept(tmp_path, every_n=3)
    for step in range(1, 8):
        rollouts.save(step, groups(1))
    rollouts.save_evaluation(7, groups(1), {"exam": groups(1)})
    assert names(tmp_path) == ["eval_00007", "eval_00007_exam", "step_00003", "step_00006"]


def test_none_keeps_nothing(tmp_path: Path) -> None:
    rollouts = kept(tmp_path, keep="none")
    rollouts.save(1, groups(1))
    rollouts.save_evaluation(1, groups(1))
    assert list(tmp_path.iterdir()) == []


def test_a_sample_is_of_whole_groups_at_their_places_with_their_advantages(
    tmp_path: Path,
) -> None:
    played = groups(2, 2, 2, 2)
    credit = [[[0.0, float(t.seed or 0)] for t in group] for group in played]
    kept(tmp_path, sample=5).save(1, played, credit)
    saved = read_rollouts(tmp_path / "rollouts" / "step_00001.parquet")
    assert len(saved) == 4
    for each in saved:
        assert each.trajectory == played[each.group][each.member]
        assert each.advantages == [0.0, float(each.trajectory.seed or 0)]


@given(sizes=st.lists(st.integers(0, 5), max_size=8), most=st.integers(1, 12), seed=st.integers())
def test_a_sample_holds_as_many_whole_groups_as_fit_in_the_order_drawn(
    sizes: list[int], most: int, seed: int
) -> None:
    played = groups(*sizes)
    chosen = sampled(played, most, seed)
    count = sum(map(len, chosen))
    assert len(chosen) == len(played) and count <= most
    if most >= sum(sizes):
        assert [list(group) for group in chosen] == played
    for one, whole in zip(chosen, played, strict=True):
        assert list(one) in ([], whole) or (list(one) == whole[:most] and count == most)
    assert chosen == sampled(played, most, seed)
    assert count > 0 or not sum(sizes)


# --- How much


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """As if the disk had so much left: a small disk cannot be made everywhere."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 10**12 - free, free))


EXPECTED = Expected(range(1, 11), 64, 128, 5, 1000)


def test_the_expected_size_is_told_before_and_after_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rollouts = kept(tmp_path)
    rollouts.expect(EXPECTED)
    for step in (1, 2):
        rollouts.save(step, groups(*[8] * 8))
    before, after = caplog.messages
    # 10 steps of 64, and evaluations before, after the 5th and 10th, and at the end at most.
    assert before == "rollouts: at most 23.0 MB in all (1152 episodes of at most 1000 tokens)"
    size = (tmp_path / "rollouts" / "step_00001.parquet").stat().st_size
    assert after == (
        f"rollouts: those of step 1 take {size / 1000:.1f} kB, so those of the run take about "
        f"{size * 1152 / 64 / 1000:.1f} kB"
    )


@pytest.mark.parametrize(
    ("settings", "episodes"),
    [({"every_n": 4}, 2 * 64 + 4 * 128), ({"sample": 16}, 10 * 16 + 4 * 16)],
)
def test_what_is_not_kept_is_not_expected(
    settings: dict[str, Any],
    episodes: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    kept(tmp_path, **settings).expect(EXPECTED)
    kept(tmp_path, keep="none").expect(EXPECTED)
    (said,) = caplog.messages
    assert f"({episodes} episodes of at most 1000 tokens)" in said


def test_a_disk_without_room_for_them_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = kept(tmp_path)
    with_free(monkeypatch, 10_000)
    rollouts.expect(EXPECTED)
    rollouts.save(1, groups(*[8] * 8))
    before, after = caplog.messages
    assert before == (
        f"output_dir: {tmp_path} has 10.0 kB free, and the rollouts of this run may take up to "
        "23.0 MB: free some space, or set rollouts.sample, rollouts.every_n or rollouts.keep=none"
    )
    assert "and the rollouts of this run take about" in after


# --- In a run


class Letters(Environment):
    """Rewards every letter."""

    def reward(self, episode: Any) -> float:
        return float(sum(map(str.isalpha, episode.answer)))


class Solved(Letters):
    """Says how to be rewarded."""

    def solve(self, row: Any) -> Any:
        return [{"role": "assistant", "content": "abc"}]


def train(
    tokenizer: Any,
    folder: Path,
    rows: Sequence[Any],
    environment: type[Environment] = Letters,
    **settings: Any,
) -> None:
    Trainer(
        tiny_model(),
        tokenizer,
        environment,
        rows,
        sampling=Sampling(max_new_tokens=4),
        group_size=4,
        rows_per_step=2,
        steps=2,
        learning_rate=1e-3,
        observer=None,
        output_dir=folder,
        **settings,
    ).train()


ROWS = [{"prompt": "Go."}, {"prompt": "Say."}]


def test_the_file_of_a_step_has_what_was_learned_from(tokenizer: Any, tmp_path: Path) -> None:
    train(tokenizer, tmp_path, ROWS)
    first, second = load_rollouts(tmp_path, step=1), load_rollouts(tmp_path, step=2)
    assert len(first) == len(second) == 8
    for saved in first + second:
        episode, advantages = saved.trajectory, saved.advantages
        assert advantages is not None and len(advantages) == len(episode.ids)
        assert all(a == 0 for a, m in zip(advantages, episode.action_mask, strict=True) if not m)
        assert len({a for a, m in zip(advantages, episode.action_mask, strict=True) if m}) == 1
        assert saved.text == tokenizer.decode(episode.ids)
        assert saved.tokenizer == first[0].tokenizer is not None
    best = max(first, key=lambda saved: saved.trajectory.reward)
    assert max(best.advantages or ()) > 0
    assert {span.version for saved in second for span in saved.trajectory.versions} == {1}


def test_what_is_expected_is_what_is_kept_with_the_evaluation_after_a_warm_up(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    warmup = {"demonstrations": "solve", "steps": 1}
    train(tokenizer, tmp_path, ROWS, Solved, warmup=warmup, eval_rows=ROWS)
    files = (tmp_path / "rollouts").iterdir()
    assert sum(len(read_rollouts(file)) for file in files) == 2 * 8 + 3 * 2
    (said,) = [message for message in caplog.messages if "at most" in message]
    assert f"({2 * 8 + 3 * 2} episodes of at most" in said


def test_what_is_kept_changes_nothing_of_what_is_learned(tokenizer: Any, tmp_path: Path) -> None:
    train(tokenizer, tmp_path / "all", ROWS, deterministic=True)
    train(tokenizer, tmp_path / "few", ROWS, deterministic=True, rollouts_sample=4)
    whole, few = load_rollouts(tmp_path / "all"), load_rollouts(tmp_path / "few")
    assert len(few) == len(whole) / 2
    episodes = {(saved.name, saved.group, saved.member): saved.trajectory.ids for saved in whole}
    assert all(
        episodes[saved.name, saved.group, saved.member] == saved.trajectory.ids for saved in few
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rollouts_sample": 0}, "rollouts_sample: must be >= 1, got 0"),
        ({"rollouts_every_n": 0}, "rollouts_every_n: must be >= 1, got 0"),
        ({"rollouts_keep": "some"}, "rollouts_keep: must be one of 'all' or 'none', got 'some'"),
    ],
)
def test_a_wrong_setting_is_named(
    settings: dict[str, Any], said: str, tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        train(tokenizer, tmp_path, ROWS, **settings)
    assert str(caught.value) == said
