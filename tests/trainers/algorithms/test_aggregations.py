"""Aggregations by hand on four sequences, and that shares of a batch add up."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.algorithms.aggregations import (
    AGGREGATIONS,
    constant,
    sequence_mean,
    token_mean,
)

LENGTHS = torch.tensor([1, 2, 3, 4])


def test_the_token_mean_counts_every_token_alike() -> None:
    weights = token_mean(LENGTHS)
    assert weights.tokens.tolist() == [1.0] * 4
    assert weights.normaliser == 10


def test_the_sequence_mean_counts_every_sequence_alike() -> None:
    weights = sequence_mean(LENGTHS)
    torch.testing.assert_close(weights.tokens, torch.tensor([1, 1 / 2, 1 / 3, 1 / 4]))
    assert weights.normaliser == 4


def test_the_constant_does_not_depend_on_lengths() -> None:
    weights = constant(LENGTHS, tokens_per_sequence=100)
    assert weights.tokens.tolist() == [1.0] * 4
    assert weights.normaliser == 400


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9), st.integers(0, 9))
def test_a_batch_is_the_sum_of_its_shares(name: str, lengths: list[int], cut: int) -> None:
    aggregation = AGGREGATIONS[name]
    whole = aggregation(torch.tensor(lengths))
    shares = [aggregation(torch.tensor(part)) for part in (lengths[:cut], lengths[cut:]) if part]
    assert sum(share.normaliser for share in shares) == whole.normaliser
    torch.testing.assert_close(torch.cat([share.tokens for share in shares]), whole.tokens)
