"""Advantages, by hand on four numbers and as properties."""

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.errors import ConfigError
from gymnast.trainers import advantages
from gymnast.trainers.algorithms.advantages import ESTIMATORS as REGISTERED
from gymnast.trainers.algorithms.advantages import RewardBatch
from reward_batches import groups, reward_batch

ESTIMATORS = dict(REGISTERED)  # other tests add their own
REWARDS = torch.tensor([0.0, 0.0, 1.0, 3.0])
finite = st.floats(-10, 10, width=32)
episodes = st.lists(st.lists(finite, min_size=1, max_size=3), min_size=1, max_size=8)


def test_grpo_standardises_within_the_group() -> None:
    # mean 1, sample standard deviation sqrt(6 / 3)
    expected = torch.tensor([-1.0, -1.0, 0.0, 2.0]) / (2**0.5 + 1e-4)
    torch.testing.assert_close(advantages.grpo(REWARDS), expected)


def test_rloo_subtracts_the_mean_of_the_others() -> None:
    expected = torch.tensor([0 - 4 / 3, 0 - 4 / 3, 1 - 1.0, 3 - 1 / 3])
    torch.testing.assert_close(advantages.rloo(REWARDS), expected)


@pytest.mark.parametrize("kernel", [advantages.grpo, advantages.rloo])
def test_a_group_of_one_or_of_equals_has_no_advantage(kernel: advantages.Kernel) -> None:
    assert kernel(torch.tensor([5.0])).tolist() == [0.0]
    assert kernel(torch.full((4,), 0.6)).tolist() == [0.0] * 4


@pytest.mark.parametrize(("given", "shape"), [(3.0, "[]"), (torch.zeros(3), "[3]")])
def test_a_kernel_gives_each_member_an_advantage(given: Any, shape: str) -> None:
    def kernel(rewards: torch.Tensor) -> Any:
        return given

    kernel.__name__ = "wrong_kernel"
    advantages.per_group(kernel)
    estimate = REGISTERED.pop("wrong_kernel")
    batch = RewardBatch(torch.zeros(2), torch.zeros(2), turn_rewards=[[0.0], [0.0]])
    message = f"wrong_kernel gave a tensor of shape {shape} for a group of 2; it must give one "
    with pytest.raises(ConfigError, match=re.escape(message)):
        estimate(batch)


def test_rewards_may_be_whole_numbers() -> None:
    assert advantages.rloo(torch.tensor([0, 1])).tolist() == [-1.0, 1.0]


@given(st.lists(finite, min_size=2, max_size=9))
def test_advantages_of_a_group_sum_to_zero(rewards: list[float]) -> None:
    for kernel in (advantages.grpo, advantages.rloo):
        values = kernel(torch.tensor(rewards, dtype=torch.float64))
        assert abs(values.sum().item()) < 1e-6 * max(1.0, values.abs().max().item())


@given(st.lists(finite, min_size=2, max_size=9))
def test_rloo_is_the_leave_one_out_baseline(rewards: list[float]) -> None:
    values = advantages.rloo(torch.tensor(rewards, dtype=torch.float64))
    for i, reward in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        assert values[i].item() == pytest.approx(reward - sum(others) / len(others), abs=1e-9)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_estimators_keep_groups_apart_and_give_each_turn_its_trajectory_value(name: str) -> None:
    kernel = getattr(advantages, name)
    batch = RewardBatch(
        rewards=torch.tensor([0.0, 5.0, 1.0, 5.0, 3.0]),
        group=torch.tensor([0, 1, 0, 1, 0]),
        turn_rewards=[[0.0, 0.0], [5.0], [0.5, 0.0, 0.5], [5.0], [3.0]],
    )
    values = ESTIMATORS[name](batch)
    assert [len(turns) for turns in values] == [2, 1, 3, 1, 1]
    expected = kernel(torch.tensor([0.0, 1.0, 3.0]))
    torch.testing.assert_close(torch.stack([values[0][0], values[2][0], values[4][0]]), expected)
    assert values[2].unique().numel() == 1
    assert values[1].item() == values[3].item() == 0.0


@given(reward=finite, size=st.integers(2, 17))
def test_equals_have_no_advantage_however_their_mean_is_rounded(reward: float, size: int) -> None:
    """Six times 0.3 has another mean, and AdamW takes a whole step along what is only rounding."""
    batch = reward_batch([[[(reward, 1, "start")]] * size])
    for name in set(ESTIMATORS) - {"rejection"}:  # which compares none with another
        found = torch.cat(ESTIMATORS[name](batch))
        assert found.tolist() == [0.0] * size, name


@given(st.lists(finite, min_size=5, max_size=5))
def test_a_group_of_equals_has_no_advantage_whatever_the_other_groups_have(
    others: list[float],
) -> None:
    batch = reward_batch([[[(0.3, 1, "start")]] * 6, [[(r, 1, "start")] for r in others]])
    # These standardise over the batch, or over its tokens, or compare with nothing.
    known = {"reinforce_pp", "reinforce_pp_tokens", "gdpo_tokens", "rejection"}
    for name in set(ESTIMATORS) - known:
        assert torch.cat(ESTIMATORS[name](batch)[:6]).tolist() == [0.0] * 6, name


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@settings(max_examples=30)
@given(groups, st.randoms(use_true_random=False))
def test_the_order_of_members_and_groups_does_not_matter(
    name: str, given: Any, random: Any
) -> None:
    numbered = list(enumerate(given))
    random.shuffle(numbered)
    orders = [random.sample(range(len(group)), len(group)) for _, group in numbered]
    shuffled = [
        [group[i] for i in order] for (_, group), order in zip(numbered, orders, strict=True)
    ]
    before = iter(ESTIMATORS[name](reward_batch(given)))
    by_place = {(g, i): next(before) for g, group in enumerate(given) for i in range(len(group))}
    after = iter(ESTIMATORS[name](reward_batch(shuffled)))
    for (g, _), order in zip(numbered, orders, strict=True):
        for i in order:
            torch.testing.assert_close(next(after), by_place[g, i], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"rejection"}))
@settings(max_examples=30)
@given(groups, st.sampled_from([-2.0, 0.5, 4.0]))
def test_what_every_episode_gets_more_at_its_end_changes_nothing(
    name: str, given: Any, more: float
) -> None:
    """Of episodes with a last turn that has tokens, and returns that are not discounted."""
    ends = [
        [[*episode[:-1], (episode[-1][0], 1 + episode[-1][1], episode[-1][2])] for episode in group]
        for group in given
    ]
    shifted = [
        [[*episode[:-1], (episode[-1][0] + more, *episode[-1][1:])] for episode in group]
        for group in ends
    ]
    options = {"gamma": 1.0} if "gamma" in ESTIMATORS[name].options else {}
    before = torch.cat(ESTIMATORS[name](reward_batch(ends), **options))
    after = torch.cat(ESTIMATORS[name](reward_batch(shifted), **options))
    torch.testing.assert_close(before, after, atol=2e-2, rtol=2e-2)


# --- Without comparing


@given(st.lists(finite, min_size=1, max_size=6), finite)
def test_rejection_keeps_what_reaches_the_threshold(rewards: list[float], least: float) -> None:
    batch = batch_of(rewards, [0] * len(rewards))
    found = torch.cat(advantages.rejection(batch, threshold=least)).tolist()
    assert found == [float(reward >= least) for reward in batch.rewards.tolist()]


def test_rejection_gives_every_turn_of_an_episode_the_same() -> None:
    batch = RewardBatch(torch.tensor([1.0, 0.5]), torch.tensor([0, 0]), [[0.0, 0.0, 1.0], [0.5]])
    kept, rejected = advantages.rejection(batch)
    assert kept.tolist() == [1.0, 1.0, 1.0] and rejected.tolist() == [0.0]


# --- Over the whole batch, by parts and by turns


def batch_of(rewards: list[float], group: list[int], **more: Any) -> RewardBatch:
    return RewardBatch(torch.tensor(rewards), torch.tensor(group), [[r] for r in rewards], **more)


def values_of(found: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(found)


def test_dr_grpo_only_subtracts_the_mean() -> None:
    torch.testing.assert_close(advantages.dr_grpo(REWARDS), torch.tensor([-1.0, -1.0, 0.0, 2.0]))


def test_reinforce_pp_standardises_over_the_batch() -> None:
    batch = batch_of([0.0, 0.0, 1.0, 3.0], [0, 0, 1, 1])
    torch.testing.assert_close(values_of(advantages.reinforce_pp(batch)), advantages.grpo(REWARDS))


def test_reinforce_pp_baseline_subtracts_the_groups_mean_first() -> None:
    batch = batch_of([0.0, 2.0, 5.0, 9.0], [0, 0, 1, 1])
    # -1, 1, -2, 2; mean 0, sample standard deviation sqrt(10 / 3)
    expected = torch.tensor([-1.0, 1.0, -2.0, 2.0]) / ((10 / 3) ** 0.5 + 1e-4)
    torch.testing.assert_close(values_of(advantages.reinforce_pp_baseline(batch)), expected)


def test_gdpo_standardises_each_part_within_the_group_and_the_sum_over_the_batch() -> None:
    parts = {"a": torch.tensor([0.0, 1.0, 0.0, 0.0]), "b": torch.tensor([0.0, 10.0, 10.0, 0.0])}
    batch = batch_of([0.0, 11.0, 10.0, 0.0], [0, 0, 1, 1], parts=parts, weights={"b": 0.5})
    small, large = 0.5**0.5 / (0.5**0.5 + 1e-4), 50**0.5 / (50**0.5 + 1e-4)
    unit = 0.5**0.5  # (1 - 0.5) / sqrt(0.5)
    both, one = small + large / 2, large / 2
    total = unit * torch.tensor([-both, both, one, -one])
    expected = total / (total.std() + 1e-4)
    torch.testing.assert_close(values_of(advantages.gdpo(batch)), expected)
    heavier = values_of(advantages.gdpo(batch, weights={"b": 2.0}))
    assert (heavier[2] / heavier[1]).item() > (expected[2] / expected[1]).item()


def test_gdpo_warns_once_of_weights_of_parts_that_there_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rewards = torch.tensor([0.0, 1.0])
    parts = {"brevity": rewards, "environment": rewards}
    batch = RewardBatch(rewards, torch.tensor([0, 0]), [[0.0], [1.0]], parts)
    advantages.gdpo(batch, weights={"brevity": 2.0})
    assert not caplog.records
    for _ in range(3):  # in every step
        advantages.gdpo(batch, weights={"brevty": 2.0})
    assert caplog.messages == [
        "algorithm.weights: names 'brevty', but no episode of this step has a part of the reward "
        "of that name; the parts are: brevity, environment"
    ]


def test_gdpo_tells_apart_what_has_the_same_sum() -> None:
    """Two rewards that add up alike have unlike advantages, which is what it is for."""
    parts = {
        "easy": torch.tensor([1.0, 0.0, 1.0, 1.0]),
        "hard": torch.tensor([0.0, 1.0, 0.0, 0.0]),
    }
    batch = batch_of([1.0, 1.0, 1.0, 1.0], [0, 0, 0, 0], parts=parts, weights={"hard": 2.0})
    assert values_of(ESTIMATORS["grpo"](batch)).abs().max() == 0
    found = values_of(advantages.gdpo(batch))
    assert found[1] > 0 > found[0]


def test_gdpo_without_parts_takes_the_reward_itself() -> None:
    batch = batch_of([0.0, 0.0, 1.0, 3.0], [0, 0, 0, 0])
    expected = advantages.grpo(advantages.grpo(REWARDS))
    torch.testing.assert_close(values_of(advantages.gdpo(batch)), expected)


def test_turn_level_by_hand_on_four_turns() -> None:
    batch = RewardBatch(
        rewards=torch.tensor([3.0, 1.0]),
        group=torch.tensor([0, 0]),
        turn_rewards=[[1.0, 0.0, 2.0], [1.0]],
    )
    # Returns 1 + 0.5, 1, 2 and 1: mean 1.375
    returns = torch.tensor([1.5, 1.0, 2.0, 1.0])
    expected = (returns - 1.375) / (returns.std() + 1e-4)
    found = advantages.turn_level(batch, gamma=0.5)
    assert [len(turns) for turns in found] == [3, 1]
    torch.testing.assert_close(values_of(found), expected)


@given(st.lists(finite, min_size=2, max_size=9))
def test_turn_level_of_single_turns_is_grpo(rewards: list[float]) -> None:
    batch = batch_of(rewards, [0] * len(rewards))
    torch.testing.assert_close(
        values_of(advantages.turn_level(batch, gamma=0.3)), advantages.grpo(torch.tensor(rewards))
    )


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@settings(max_examples=30)
@given(groups)
def test_every_estimator_gives_finite_advantages_by_turn_or_by_token(name: str, given: Any) -> None:
    batch = reward_batch(given)
    found = ESTIMATORS[name](batch)
    counts = {"turn": list(map(len, batch.turn_rewards))}
    counts["token"] = list(map(sum, batch.action_tokens))
    assert [len(values) for values in found] == counts[ESTIMATORS[name].mark("gives")]
    assert all(values.isfinite().all() for values in found)
