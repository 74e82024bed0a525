"""Advantages, by hand on four numbers and as properties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers import advantages
from gymnast.trainers.advantages import ESTIMATORS, RewardBatch

REWARDS = torch.tensor([0.0, 0.0, 1.0, 3.0])
finite = st.floats(-10, 10, width=32)


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
    assert kernel(torch.full((4,), 0.6)).abs().max() < 1e-4


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


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
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
