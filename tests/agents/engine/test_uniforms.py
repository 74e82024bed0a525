"""Random numbers of sampled tokens: Philox, its streams, and the seeds of completions."""

import numpy as np
import pytest
import torch

from gymnast.agents.engine.sampling import philox4x32, seed_of, uniforms
from gymnast.types import Sampling


def words(digits: str) -> list[int]:
    return [int(word, 16) for word in digits.split()]


# Counter, key and result of "philox4x32 10" in the Random123 library's kat_vectors.
KNOWN_ANSWERS = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter: str, key: str, expected: str) -> None:
    assert philox4x32(words(counter), words(key)).tolist() == words(expected)


def test_philox_computes_arrays_as_it_does_numbers() -> None:
    counters, keys = (np.array([words(each[i]) for each in KNOWN_ANSWERS]).T for i in (0, 1))
    expected = np.array([words(each[2]) for each in KNOWN_ANSWERS]).T
    assert (philox4x32(list(counters), list(keys)) == expected).all()


@pytest.mark.parametrize(
    ("seed", "index"), [(0, 0), (1, 0), (2**64 - 1, 0), (3, 5), (2**40 + 7, 2**33 + 1)]
)
def test_uniforms_are_the_first_53_bits(seed: int, index: int) -> None:
    low, high, _, _ = philox4x32(
        [index % 2**32, index >> 32, 0, 0], [seed % 2**32, seed >> 32]
    ).tolist()
    assert uniforms(np.uint64(seed), np.int64(index)) == ((high << 32 | low) >> 11) / 2**53


def test_uniforms_broadcast_over_rows_and_tokens() -> None:
    seeds = np.array([5, 2**63, 9], dtype=np.uint64)
    indices = np.array([0, 40, 7])
    ahead = uniforms(seeds[:, None], indices[:, None] + np.arange(4))
    assert ahead.shape == (3, 4) and ahead.dtype == np.float64
    for step in range(4):
        assert (ahead[:, step] == uniforms(seeds, indices + step)).all()


def p_value(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """Pearson's chi-square test of all counts."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom, twice = torch.tensor([counts.size - 1, statistic], dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, twice / 2))


@pytest.mark.parametrize("first_seed", [0, 2**32 - 500, 2**63])
def test_adjacent_seeds_and_indices_are_independent(first_seed: int) -> None:
    seeds = np.arange(1000, dtype=np.uint64) + np.uint64(first_seed)
    drawn = uniforms(seeds[:, None], np.arange(1000))
    assert drawn.min() >= 0 and drawn.max() < 1
    bins = (drawn * 16).astype(int)
    assert p_value(np.bincount(bins.ravel()), bins.size / 16) > 1e-3
    for one, other in [
        (bins[:-1], bins[1:]),  # the next seed
        (bins[:, :-1], bins[:, 1:]),  # the next index
        (bins[:-1, 1:], bins[1:, :-1]),  # one of each
    ]:
        pairs = np.bincount((one * 16 + other).ravel(), minlength=256)
        assert p_value(pairs, pairs.sum() / 256) > 1e-3
    correlations = np.corrcoef(drawn[:200])[np.triu_indices(200, 1)]
    assert abs(correlations).max() < 6 / np.sqrt(1000)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, np.int64(7)])
def test_seeds_of_64_bits_stay_as_they_are(seed: int) -> None:
    assert seed_of(Sampling(seed=seed)) == seed


def test_other_integers_have_seeds_of_their_own() -> None:
    near = [*range(-50, 0), *(2**64 + i for i in range(50)), *(-(2**64) - i for i in range(50))]
    far = [10**100, -(10**100), 2**128, -(2**127), 2**200 + 1]
    found = [seed_of(Sampling(seed=seed)) for seed in [*near, *far, *range(50)]]
    assert len(set(found)) == len(found)
    assert all(0 <= seed < 2**64 for seed in found)
    assert found == [seed_of(Sampling(seed=seed)) for seed in [*near, *far, *range(50)]]


def test_completions_without_a_seed_differ() -> None:
    assert len({seed_of(Sampling()) for _ in range(100)}) == 100
