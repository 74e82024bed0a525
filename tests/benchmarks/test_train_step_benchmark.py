"""The training-step benchmark trains both sides on what it says, and finds them to agree."""

from pathlib import Path

import pytest
import torch

import train_step
from rollout_measure import Cost
from train_step_batch import BATCHES, CONTEXT_LENGTH, MOST_TURNS, PROMPT_TOKENS, batch
from train_step_measure import Result, StepCost, measured

pytestmark = pytest.mark.slow


def test_equal_episodes_have_the_lengths_they_should() -> None:
    for group in batch("equal", 2, 3, 1000):
        assert len(group.prompt) == PROMPT_TOKENS
        for episode in group.episodes:
            assert (sum(episode.mask), len(episode.ids)) == (150, 400)


def test_the_mix_has_one_to_eight_turns_that_fit_and_stays_the_same() -> None:
    groups = batch("mix", 8, 8, 1000)
    turns = {(len(episode.parts) + 1) // 2 for group in groups for episode in group.episodes}
    assert turns == set(range(1, MOST_TURNS + 1))
    longest = max(len(episode.ids) for group in groups for episode in group.episodes)
    assert PROMPT_TOKENS + longest <= CONTEXT_LENGTH
    assert groups == batch("mix", 8, 8, 1000)


@pytest.mark.parametrize("name", BATCHES)
def test_a_trajectory_is_the_episode(name: str) -> None:
    (group,) = batch(name, 1, 2, 1000, shorter=10)
    episode = group.episodes[1]
    made = group.trajectory(1, [-0.5] * sum(episode.mask))
    assert made.ids == group.prompt + episode.ids
    assert made.action_mask == [0] * len(group.prompt) + episode.mask
    assert sum(made.logprobs) == -0.5 * sum(episode.mask)
    assert sum(span.end - span.start for span in made.turns) == sum(episode.mask)
    assert made.reward == pytest.approx(episode.reward)


def test_the_peak_is_what_was_held_at_once_above_what_was_there() -> None:
    there = torch.ones(10_000_000)  # 38 MiB
    with measured() as cost:
        for _ in range(3):
            torch.ones(20_000_000)  # 76 MiB, one at a time
    assert 70 < cost.peak_bytes / 2**20 < 120
    assert len(there) == 10_000_000


def test_sides_that_differ_are_refused(tmp_path: Path) -> None:
    def result(name: str, loss: float, gradient: float) -> Result:
        path = tmp_path / name
        torch.save({"weight": torch.full((3,), gradient)}, path)
        return Result(loss, StepCost(Cost()), [2], path)

    groups = batch("mix", 1, 4, 1000, shorter=10)
    ours = result("ours", 1.0, 1.0)
    assert "worst weight 0.0e+00" in train_step.agreement(ours, ours, groups)
    with pytest.raises(AssertionError, match="disagree"):
        train_step.agreement(ours, result("other", 1.0, 1.001), groups)
    with pytest.raises(AssertionError, match="disagree"):
        train_step.agreement(ours, result("third", 1.001, 1.0), groups)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("name", BATCHES)
def test_both_sides_agree_in_small(name: str, checkpointing: bool) -> None:
    pytest.importorskip("trl")
    options = train_step.Options(
        *(2, 4, 10),
        quick=True,
        checkpointing=checkpointing,
        threads=1,
        device="cpu",
        liger=False,
    )
    report = train_step.compare(name, options)  # asserts that they agree
    assert report.targets == []  # in small nothing is promised
    assert any(line.startswith("TRL") for line in report.lines)
