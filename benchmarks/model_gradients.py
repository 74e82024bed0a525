"""The gradient that a policy gives, beside that of the model's own forward.

Two groups with a prompt each and a trajectory of its own go through a `Policy` in one micro-batch,
and one by one through the model alone. The prompts begin alike; all are longer than the tiny
models' windows (8 tokens) and chunks (16).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch

from gymnast.agents.models.double_precision import in_float64
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Span, StopReason, Trajectory
from model_contract import tokens

# How far a gradient may be from the model's own, relative to its length.
TOLERANCE = 1e-5
# Prompts as seeds and lengths of their two parts, and how many tokens are sampled in two turns.
EPISODES = [
    ((0, 19), (1, 8), (9, 22)),
    ((0, 19), (1, 8), (3, 2)),
    ((0, 19), (2, 3), (14, 7)),
    ((0, 19), (2, 3), (1, 12)),
    ((3, 5), (4, 6), (5, 11)),
]
Gradient = dict[str, torch.Tensor]


def episodes() -> list[CreditedTrajectory]:
    """What is learned from: two turns each, and an observation between them."""
    return [_episode(number, *parts) for number, parts in enumerate(EPISODES)]


def _episode(
    number: int, start: tuple[int, int], end: tuple[int, int], turns: tuple[int, int]
) -> CreditedTrajectory:
    prompt, observation = tokens(*start) + tokens(*end), tokens(9, 4)
    first, second = tokens(10 + number, turns[0]), tokens(20 + number, turns[1])
    ids = prompt + first + observation + second
    middle = len(prompt) + len(first)
    spans = [Span(len(prompt), middle), Span(middle + len(observation), len(ids))]
    mask = [int(any(start <= at < end for start, end in spans)) for at in range(len(ids))]
    trajectory = Trajectory(
        ids=ids,
        action_mask=mask,
        logprobs=[0.0] * len(ids),
        prompt_length=len(prompt),
        turns=spans,
        turn_rewards=[0.0, 0.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )
    return CreditedTrajectory(trajectory, torch.tensor([1.0 - number, 0.5 + number]))


def difference(model: Any, policy: Policy) -> float:
    """How far the policy's gradient is from the model's own, relative to its length.

    In float32, and where that is too coarse to tell in float64.
    """
    found = _difference(model, policy, nullcontext())
    if found < TOLERANCE:
        return found
    # A backward pass leaves float64, so the head's chunks cannot be computed again in it.
    with patch("gymnast.trainers.learner.policy.head.checkpoint", _kept):
        return _difference(model, policy, in_float64(model))


def _kept(function: Callable[..., torch.Tensor], *inputs: Any, **_: Any) -> torch.Tensor:
    return function(*inputs)


def _difference(model: Any, policy: Policy, precision: AbstractContextManager[None]) -> float:
    with precision:
        ours = of_policy(model, policy.train())
        policy.eval()  # without checkpoints
        theirs = of_model(model)
    return distance(ours, theirs)


def distance(ours: Gradient, theirs: Gradient) -> float:
    """How far one gradient is from another, relative to the length of that."""
    assert set(ours) == set(theirs)
    squares = sum(((ours[name] - theirs[name]) ** 2).sum().item() for name in theirs)
    length: float = sum((theirs[name] ** 2).sum().item() for name in theirs)
    return float((squares / length) ** 0.5)


def of_policy(model: Any, policy: Policy) -> Gradient:
    """Of a policy-gradient loss, all trajectories in one micro-batch."""
    batch = micro_batch(episodes(), model.device)
    return _gradient(model, (policy(batch) * batch.advantages).sum())


def of_model(model: Any) -> Gradient:
    """Of the same loss, trajectory by trajectory, by the model's own forward."""
    losses = []
    for episode in episodes():
        ids = torch.tensor(episode.trajectory.ids, device=model.device)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        logprobs = torch.log_softmax(logits, dim=-1).gather(-1, ids[1:, None])[:, 0]
        actions = torch.tensor(episode.trajectory.action_mask[1:]).bool()
        losses.append((logprobs[actions] * episode.token_advantages).sum())
    return _gradient(model, torch.stack(losses).sum())


def _gradient(model: Any, loss: torch.Tensor) -> Gradient:
    model.zero_grad(set_to_none=True)
    loss.backward()
    named = model.named_parameters()
    return {name: weight.grad.double() for name, weight in named if weight.grad is not None}
