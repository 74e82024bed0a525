"""Estimators that compare equal states: by hand on three episodes, and as properties."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.errors import ConfigError
from gymnast.trainers import RewardBatch, advantages, make_algorithm
from reward_batches import groups, reward_batch

# One group. All begin at the door; two come to the hall, one of them a second time.
THREE = reward_batch(
    [
        [
            [(0.0, 1, "door"), (0.0, 1, "hall"), (1.0, 1, "hall")],
            [(0.0, 1, "door"), (0.5, 1, "hall")],
            [(0.0, 1, "door"), (0.0, 1, "cellar")],
        ]
    ]
)


def flat(values: list[torch.Tensor]) -> list[float]:
    return torch.cat(values).tolist()


def test_gigpo_without_scale_by_hand() -> None:
    # R = 1, 0.5, 0, mean 0.5. With gamma 0.5 the returns are
    #   door 0.25, hall 0.5, hall 1.0 | door 0.25, hall 0.5 | door 0, cellar 0
    # door: mean 1/6; hall: mean 2/3; the cellar has one turn.
    found = advantages.gigpo(THREE, gamma=0.5, omega=2.0, scale="none")
    expected = [
        *(0.5 + 2 * (1 / 4 - 1 / 6), 0.5 + 2 * (1 / 2 - 2 / 3), 0.5 + 2 * (1 - 2 / 3)),
        *(0.0 + 2 * (1 / 4 - 1 / 6), 0.0 + 2 * (1 / 2 - 2 / 3)),
        *(-0.5 + 2 * (0 - 1 / 6), -0.5),
    ]
    assert flat(found) == pytest.approx(expected)


def test_gigpo_divides_both_by_their_standard_deviations() -> None:
    found = advantages.gigpo(THREE, gamma=0.5)
    episode = 0.5 / (0.5 + 1e-4)  # of 1, 0.5 and 0, divided by n - 1
    door = (1 / 12) / (((1 / 12) ** 2 * 2 + (1 / 6) ** 2) / 2) ** 0.5
    assert found[0][0].item() == pytest.approx(episode + door, rel=2e-3)
    assert found[1][0].item() == pytest.approx(door, rel=2e-3)
    assert found[2][0].item() == pytest.approx(-episode - 2 * door, rel=2e-3)
    assert found[2][1].item() == pytest.approx(-episode), "no other turn was in the cellar"


def test_state_baseline_by_hand() -> None:
    # Returns 1, 1, 1 | 0.5, 0.5 | 0, 0: the door's mean is 0.5, the hall's 5/6, that of all 4/7.
    found = flat(advantages.state_baseline(THREE))
    assert found == pytest.approx([0.5, 1 / 6, 1 / 6, 0.0, -1 / 3, -0.5, -4 / 7])


def test_a_state_of_none_is_equal_to_no_other() -> None:
    turns = [[(1.0, 1, None)], [(0.0, 1, None)]]
    alone = reward_batch([turns])
    assert flat(advantages.gigpo(alone, scale="none")) == [0.5, -0.5]
    together = reward_batch([[[(r, 1, "x")] for ((r, _, _),) in turns]])
    assert flat(advantages.gigpo(together, scale="none")) == [1.0, -1.0]


@pytest.mark.parametrize("name", ["gigpo", "state_baseline"])
def test_without_states_the_error_says_how_to_give_them(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} compares turns .* its hook `turn_state`"):
        make_algorithm(name).estimator(replace(THREE, states=None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"omega": -1.0}, "algorithm.omega: must be >= 0, got -1"),
        ({"gamma": 1.5}, "algorithm.gamma: must be <= 1, got 1.5"),
        ({"scale": "mean"}, "algorithm.scale: must be one of 'std' or 'none', got 'mean'"),
    ],
)
def test_options_of_gigpo_have_ranges(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_algorithm("gigpo", **settings)


# --- Properties


def written_out(batch: RewardBatch, omega: float, gamma: float) -> list[float]:
    """GiGPO's sums as loops over the definition, without a scale."""
    of_group, of_state, results = defaultdict(list), defaultdict(list), []
    assert batch.states is not None
    returns = [
        [sum(gamma ** (k - t) * turns[k] for k in range(t, len(turns))) for t in range(len(turns))]
        for turns in batch.turn_rewards
    ]
    for i, group in enumerate(batch.group.tolist()):
        of_group[group].append(sum(batch.turn_rewards[i]))
        for t, state in enumerate(batch.states[i]):
            of_state[group, state].append(returns[i][t])
    for i, group in enumerate(batch.group.tolist()):
        episode = sum(batch.turn_rewards[i]) - sum(of_group[group]) / len(of_group[group])
        for t, state in enumerate(batch.states[i]):
            alike = of_state[group, state]
            results.append(episode + omega * (returns[i][t] - sum(alike) / len(alike)))
    return results


@given(groups, st.sampled_from([0.0, 0.5, 2.0]), st.sampled_from([0.0, 0.9, 1.0]))
def test_gigpo_is_its_definition(given: Any, omega: float, gamma: float) -> None:
    batch = reward_batch(given)
    found = flat(advantages.gigpo(batch, omega=omega, gamma=gamma, scale="none"))
    assert found == pytest.approx(written_out(batch, omega, gamma), abs=1e-4)


@given(groups)
def test_without_weight_on_states_gigpo_is_grpo(given: Any) -> None:
    batch = reward_batch(given)
    by_group = make_algorithm("grpo").estimator(batch)
    assert flat(advantages.gigpo(batch, omega=0.0)) == flat(by_group)
    centred = make_algorithm("dr_grpo").estimator(batch)
    assert flat(advantages.gigpo(batch, omega=0.0, scale="none")) == flat(centred)


@given(groups)
def test_advantages_of_the_turns_in_a_state_sum_to_zero(given: Any) -> None:
    batch = reward_batch(given)
    found = advantages.state_baseline(batch, gamma=0.5)
    assert batch.states is not None
    sums: dict[Any, float] = defaultdict(float)
    counts: dict[Any, int] = defaultdict(int)
    for group, states, values in zip(batch.group.tolist(), batch.states, found, strict=True):
        for state, value in zip(states, values.tolist(), strict=True):
            sums[group, state] += value
            counts[group, state] += 1
    assert all(abs(sums[key]) < 1e-4 for key, count in counts.items() if count > 1)
