"""Batches of rewards, as an estimator is given them."""

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from gymnast.trainers import RewardBatch

rewards = st.sampled_from([-1.0, 0.0, 0.25, 0.3, 1.0, 7.0])
turns = st.tuples(rewards, st.integers(0, 3), st.sampled_from("abc"))  # reward, tokens, state
episodes = st.lists(turns, min_size=1, max_size=4)
groups = st.lists(st.lists(episodes, min_size=1, max_size=4), min_size=1, max_size=3)


def reward_batch(given: Sequence[Sequence[Sequence[tuple[float, int, Any]]]]) -> RewardBatch:
    """The batch of groups of episodes of turns, each (reward, tokens, state)."""
    each = [(number, episode) for number, group in enumerate(given) for episode in group]
    return RewardBatch(
        rewards=torch.tensor([float(sum(turn[0] for turn in episode)) for _, episode in each]),
        group=torch.tensor([number for number, _ in each]),
        turn_rewards=[[turn[0] for turn in episode] for _, episode in each],
        action_tokens=[[turn[1] for turn in episode] for _, episode in each],
        token_rewards=[torch.tensor(_by_token(episode)) for _, episode in each],
        states=[[turn[2] for turn in episode] for _, episode in each],
    )


def _by_token(episode: Sequence[tuple[float, int, Any]]) -> list[float]:
    """The reward of a turn at its last token; that of a turn without tokens is nowhere."""
    rewards: list[float] = []
    for reward, tokens, _ in episode:
        rewards += [0.0] * (tokens - 1) + [reward] * bool(tokens)
    return rewards
