"""Estimators by token, against the formulas of papers and verl written out on padded rows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers import RewardBatch, advantages
from reward_batches import groups, reward_batch


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and mask, [N, longest]."""
    longest = max(map(len, rows), default=0)
    values, mask = torch.zeros(len(rows), longest), torch.zeros(len(rows), longest)
    for number, row in enumerate(rows):
        values[number, : len(row)], mask[number, : len(row)] = row, 1.0
    return values.double(), mask.double()


def whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Over the mask, with the variance of a sample, as verl whitens."""
    count = mask.sum()
    mean = (values * mask).sum() / count
    variance = ((values - mean) ** 2 * mask).sum() / (count - 1)
    return (values - mean) / (variance + 1e-8) ** 0.5 * mask


def check(found: list[torch.Tensor], expected: torch.Tensor) -> None:
    for number, values in enumerate(found):
        row = expected[number]
        torch.testing.assert_close(values, row[: len(values)].float(), atol=2e-4, rtol=2e-4)
        assert not row[len(values) :].any()


def has_spread(values: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether whitening does not divide by what is only rounding."""
    chosen = values[mask > 0]
    return len(chosen) > 1 and bool(chosen.max() - chosen.min() > 1e-3)


@given(groups, st.sampled_from([0.0, 0.9, 1.0]))
def test_reinforce_pp_tokens_whitens_the_returns_of_all_tokens(given: Any, gamma: float) -> None:
    batch = reward_batch(given)
    rewards, mask = padded(list(batch.token_rewards))
    returns, following = torch.zeros_like(rewards), torch.zeros(len(rewards)).double()
    for t in reversed(range(rewards.shape[1])):
        following = (rewards[:, t] + gamma * following) * mask[:, t]
        returns[:, t] = following
    found = advantages.reinforce_pp_tokens(batch, gamma=gamma)
    assert [len(values) for values in found] == [sum(tokens) for tokens in batch.action_tokens]
    if has_spread(returns, mask):
        check(found, whitened(returns, mask))


def test_reinforce_pp_tokens_by_hand() -> None:
    batch = reward_batch([[[(1.0, 2, 0), (2.0, 1, 0)]], [[(0.0, 1, 0)]]])
    # Returns 3, 3, 2 | 0: mean 2, variance (1 + 1 + 0 + 4) / 3
    found = torch.cat(advantages.reinforce_pp_tokens(batch))
    torch.testing.assert_close(found, torch.tensor([1.0, 1.0, 0.0, -2.0]) / 2**0.5)


@given(groups, st.sampled_from([1.0, 0.5]), st.randoms(use_true_random=False))
def test_gdpo_tokens_whitens_the_weighted_sum_over_tokens(
    given: Any, weight: float, random: Any
) -> None:
    batch = reward_batch(given)
    other = torch.tensor([random.choice([0.0, 1.0, 3.0]) for _ in batch.rewards])
    batch = replace(batch, parts={"a": batch.rewards, "b": other}, weights={"b": weight})
    total = torch.zeros(len(batch.rewards)).double()
    for values, share in ((batch.rewards, 1.0), (other, weight)):
        for number in batch.group.unique():
            members = batch.group == number
            of_group = values[members].double()
            if len(of_group) > 1:
                total[members] += share * (of_group - of_group.mean()) / (of_group.std() + 1e-4)
    _, mask = padded(list(batch.token_rewards))
    sums = total[:, None] * mask
    if has_spread(sums, mask):
        check(advantages.gdpo_tokens(batch), whitened(sums, mask))


def test_long_episodes_count_by_their_length() -> None:
    """The figures of docs/algorithms.md: episodes once each, and over tokens."""
    group = [[(r, n, 0)] for r, n in ((1.0, 10), (1.0, 10), (-1.0, 100), (-1.0, 100))]
    batch = reward_batch([group])
    once = torch.stack([values[0] for values in advantages.reinforce_pp(batch)])
    assert once.tolist() == pytest.approx([0.87, 0.87, -0.87, -0.87], abs=0.01)
    found = [values[0].item() for values in advantages.reinforce_pp_tokens(batch)]
    assert found == pytest.approx([3.16, 3.16, -0.32, -0.32], abs=0.01)


@pytest.mark.parametrize("estimate", [advantages.reinforce_pp_tokens, advantages.gdpo_tokens])
def test_a_batch_of_one_token_or_none_has_no_advantage(estimate: Any) -> None:
    def batch(tokens: int) -> RewardBatch:
        return reward_batch([[[(1.0, tokens, 0)], [(2.0, 0, 0)]]])

    assert [values.tolist() for values in estimate(batch(1))] == [[0.0], []]
    assert [values.tolist() for values in estimate(batch(0))] == [[], []]
