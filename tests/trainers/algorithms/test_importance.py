"""Importance weights: by hand, and as properties of every level."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.algorithms.importance import Importance, Level

LEVELS: list[Level] = ["token", "sequence", "sequence_mean"]
TRAINER = torch.tensor([4.0, 0.25, 1.0, 2.0]).log()
ENGINE = torch.zeros(4)
SEQUENCES = torch.tensor([0, 0, 0, 1])


def weights_of(**settings: Any) -> list[list[float]]:
    return [values.tolist() for values in Importance(**settings)(TRAINER, ENGINE, SEQUENCES)]


def test_a_level_takes_the_ratio_of_tokens_or_of_their_trajectory() -> None:
    weights, capped, masked = weights_of(cap=3.0)
    assert weights == pytest.approx([3.0, 0.25, 1.0, 2.0])
    assert (capped, masked) == ([1, 0, 0, 0], [0, 0, 0, 0])
    assert weights_of(level="sequence", cap=1.5)[0] == pytest.approx([1.0, 1.0, 1.0, 1.5])
    shifted = Importance("sequence_mean", cap=9.0)(TRAINER + 0.5, ENGINE, SEQUENCES)
    assert shifted.weights[:3].tolist() == pytest.approx([torch.tensor(0.5).exp().item()] * 3)


def test_what_is_out_of_bounds_is_left_out_and_not_capped() -> None:
    weights, capped, masked = weights_of(bounds=[0.5, 3.0], cap=1.5)
    assert weights == pytest.approx([0.0, 0.0, 1.0, 1.5])
    assert (capped, masked) == ([0, 0, 0, 1], [1, 1, 0, 0])
    by_sequence = weights_of(level="sequence", bounds=[0.5, 1.5])
    assert by_sequence[0] == pytest.approx([1.0, 1.0, 1.0, 0.0])


numbers = st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.integers(0, 2)), max_size=8)


@given(numbers, st.sampled_from(LEVELS), st.sampled_from([None, 0.5, 2.0]))
def test_weights_are_within_what_is_set(tokens: Any, level: Level, cap: float | None) -> None:
    ours, engine = (torch.tensor([float(t[i]) for t in tokens]) for i in (0, 1))
    sequences = torch.tensor([t[2] for t in tokens], dtype=torch.long)
    weights, capped, masked = Importance(level, cap, [0.25, 4.0])(ours, engine, sequences)
    assert bool((weights <= (cap or 4.0)).all()) and bool((weights >= 0).all())
    assert torch.equal(weights == 0, masked) and not bool((capped & masked).any())
    if level != "token":
        for number in set(sequences.tolist()):
            assert len(weights[sequences == number].unique()) == 1


@given(numbers)
def test_an_engine_that_agrees_leaves_every_weight_at_one(tokens: Any) -> None:
    ours = torch.tensor([float(t[0]) for t in tokens])
    sequences = torch.tensor([t[2] for t in tokens], dtype=torch.long)
    for level in LEVELS:
        weights, _, masked = Importance(level, None, [0.5, 2.0])(ours, ours, sequences)
        assert weights.tolist() == [1.0] * len(tokens) and not bool(masked.any())
