"""Each way to give credit teaches a tabular policy to open four doors in order, paid at the end."""

from typing import Any

import pytest
import torch

from gymnast.trainers import make_algorithm
from reward_batches import reward_batch

DOORS, KEYS, TURNS = 4, 3, 6


def play(policy: torch.Tensor, draws: torch.Generator) -> tuple[list[Any], list[tuple[int, int]]]:
    """An episode's turns (reward, tokens, state), and what was chosen in which room."""
    turns, chosen, room = list[Any](), list[tuple[int, int]](), 0
    while room < DOORS and len(turns) < TURNS:
        key = int(torch.multinomial(policy[room].softmax(-1), 1, generator=draws))
        chosen.append((room, key))
        opened = room + (key == room % KEYS)
        turns.append((float(opened == DOORS), 1, room))
        room = opened
    return turns, chosen


@pytest.mark.parametrize(
    "name", ["turn_level", "gigpo", "state_baseline", "reinforce_pp_tokens", "gdpo_tokens"]
)
def test_a_policy_learns_what_is_paid_at_the_end(name: str) -> None:
    draws, policy, solved = torch.Generator().manual_seed(0), torch.zeros(DOORS, KEYS), []
    estimate = make_algorithm(name).estimator
    for _ in range(25):
        groups = [[play(policy, draws) for _ in range(8)] for _ in range(3)]
        batch = reward_batch([[turns for turns, _ in group] for group in groups])
        solved.append(batch.rewards.mean().item())
        step = torch.zeros_like(policy)
        played = [chosen for group in groups for _, chosen in group]
        for values, chosen in zip(estimate(batch), played, strict=True):
            for value, (room, key) in zip(values.tolist(), chosen, strict=True):
                step[room] += value * (torch.eye(KEYS)[key] - policy[room].softmax(-1))
        policy += 5.0 * step / sum(map(len, played))
    assert sum(solved[:2]) / 2 < 0.3 and sum(solved[-5:]) / 5 > 0.8, solved
