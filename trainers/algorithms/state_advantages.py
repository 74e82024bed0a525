"""Advantages that compare the turns of a group which acted in equal states.

Members of a group begin alike and part; wherever two of their turns acted in one state, what came
of each tells the better action. An environment says what a turn acts in by its hook `turn_state`,
any `gymnasium.Env` by `info["state"]`. A state of None is equal to no other.
"""

from collections.abc import Callable, Hashable
from typing import Annotated, Literal

import torch
from pydantic import Field

from gymnast.errors import ConfigError
from gymnast.trainers.algorithms.estimators import (
    RewardBatch,
    by_turn,
    centred,
    compares_members,
    compares_states,
    discounted,
    estimator,
    in_groups,
    standardised,
)

Place = tuple[int, int]  # a trajectory's number in the batch, and a turn's in it
Scale = Literal["std", "none"]
_SCALED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"std": standardised, "none": centred}


@estimator
@by_turn
@compares_members
@compares_states
def gigpo(
    batch: RewardBatch,
    *,
    omega: Annotated[float, Field(ge=0)] = 1.0,
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.95,
    scale: Scale = "std",
) -> list[torch.Tensor]:
    """The episode compared with its group, plus each turn compared with turns in equal states.

        A_E = (R - mean) / F, over the rewards R of the group's episodes
        R_t = r_t + gamma * R_(t+1)
        A_S = (R_t - mean) / F, over the turns of the group's episodes that acted in turn t's state
        A_t = A_E + omega * A_S

    F is the standard deviation + 1e-4, or 1. GiGPO (Feng et al. 2025, arXiv:2505.10978), section 4;
    the last line is its eq. 8. Turns of one episode that came back to a state are compared with one
    another too, as there. A turn whose state no other turn acted in has A_S = 0.

    Args:
        batch: N trajectories, with states.
        omega: The weight of A_S.
        gamma: What a reward one turn later is worth now, in R_t.
        scale: "std": F is the standard deviation. "none": F is 1.

    Returns:
        N tensors, [turns] each.

    Raises:
        ConfigError: A trajectory of the batch has no states.
    """
    scaled = _SCALED[scale]
    episodes = in_groups(scaled, batch.rewards * 1.0, batch.group)
    returns = [discounted(rewards, gamma) for rewards in batch.turn_rewards]
    turns = [torch.zeros_like(values) for values in returns]
    for places in _equal_states(batch, "gigpo"):
        values = scaled(torch.stack([returns[i][t] for i, t in places]))
        for (i, t), value in zip(places, values, strict=True):
            turns[i][t] = value
    pairs = zip(episodes, turns, strict=True)
    return [episode + omega * of_turns for episode, of_turns in pairs]


@estimator
@by_turn
@compares_members
@compares_states
def state_baseline(
    batch: RewardBatch, *, gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
) -> list[torch.Tensor]:
    """Each turn's return minus the mean return of the group's turns in an equal state.

        R_t = r_t + gamma * R_(t+1)
        A_t = R_t - mean of R over the turns of the group's episodes that acted in turn t's state

    The mean is a Monte Carlo estimate of the state's value, as in VinePPO (Kazemnejad et al. 2024,
    arXiv:2410.01679, section 4), from the episodes that there are rather than from further ones. A
    turn whose state no other turn acted in is compared with all turns of the group, as in
    `turn_level`: compared with itself it would have no advantage, and late turns are mostly alone.

    Args:
        batch: N trajectories, with states.
        gamma: What a reward one turn later is worth now.

    Returns:
        N tensors, [turns] each.

    Raises:
        ConfigError: A trajectory of the batch has no states.
    """
    states = _equal_states(batch, "state_baseline")
    returns = [discounted(rewards, gamma) for rewards in batch.turn_rewards]
    advantages = [torch.zeros_like(values) for values in returns]
    groups = batch.group.tolist()
    for number in set(groups):
        members = [i for i, group in enumerate(groups) if group == number]
        pooled = centred(torch.cat([returns[i] for i in members]))
        parts = pooled.split([len(returns[i]) for i in members])
        for i, part in zip(members, parts, strict=True):
            advantages[i] = part.clone()
    for places in states:
        values = centred(torch.stack([returns[i][t] for i, t in places]))
        for (i, t), value in zip(places, values, strict=True):
            advantages[i][t] = value
    return advantages


def _equal_states(batch: RewardBatch, name: str) -> list[list[Place]]:
    """The turns of each state that two turns and more of a group acted in.

    Raises:
        ConfigError: A trajectory of the batch has no states.
    """
    if batch.states is None:
        raise ConfigError(
            f"algorithm.estimator: {name} compares turns that acted in equal states, and the "
            "environment does not say what its turns act in; override its hook `turn_state`, put "
            'a "state" into the info of reset and step, or choose turn_level, which needs none'
        )
    places: dict[tuple[int, Hashable], list[Place]] = {}
    for i, (group, states) in enumerate(zip(batch.group.tolist(), batch.states, strict=True)):
        for t, state in enumerate(states):
            if state is not None:
                places.setdefault((group, state), []).append((i, t))
    return [turns for turns in places.values() if len(turns) > 1]
