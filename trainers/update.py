"""One optimisation step: from groups of trajectories to new weights.

The loss is summed over the action tokens of all micro-batches and all processes and divided by
their number. Tokens of trajectories without any advantage count in that number and are not
computed: their loss and gradient are zero.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from accelerate import Accelerator

from gymnast.trainers import losses
from gymnast.trainers.advantages import Estimator, RewardBatch
from gymnast.trainers.batch import MicroBatch, Sample, micro_batch, split
from gymnast.trainers.optimizer import MasterAdamW
from gymnast.trainers.rollout import PART
from gymnast.types import Span, StopReason, Trajectory

Groups = Sequence[Sequence[Trajectory]]


@dataclass(frozen=True)
class UpdateSettings:
    """What one optimisation step needs besides data.

    Attributes:
        estimator: From rewards to advantages.
        clip_low: See `losses.clipped`.
        clip_high: See `losses.clipped`.
        max_grad_norm: Longer gradients are scaled down to this norm.
        tokens_per_microbatch: How many packed tokens one forward and backward pass takes.
    """

    estimator: Estimator
    clip_low: float
    clip_high: float
    max_grad_norm: float
    tokens_per_microbatch: int


def with_advantages(groups: Groups, estimator: Estimator) -> list[list[Sample]]:
    """Give every turn its advantage; the groups keep their shape."""
    trajectories = [trajectory for group in groups for trajectory in group]
    if not trajectories:
        return []
    rewards = torch.tensor([trajectory.reward for trajectory in trajectories])
    batch = RewardBatch(
        rewards=rewards,
        group=torch.tensor([number for number, group in enumerate(groups) for _ in group]),
        turn_rewards=[trajectory.turn_rewards for trajectory in trajectories],
        parts=_parts(trajectories),
    )
    samples = iter(
        Sample(trajectory, advantages)
        for trajectory, advantages in zip(trajectories, estimator(batch), strict=True)
    )
    return [[next(samples) for _ in group] for group in groups]


def _parts(trajectories: Sequence[Trajectory]) -> dict[str, torch.Tensor]:
    """The named rewards that environments gave beside their sum, [N] each."""
    names = sorted({name for t in trajectories for name in t.metrics if name.startswith(PART)})
    return {
        name.removeprefix(PART): torch.tensor([t.metrics.get(name, 0.0) for t in trajectories])
        for name in names
    }


def update(
    policy: torch.nn.Module,
    optimizer: MasterAdamW,
    groups: Groups,
    settings: UpdateSettings,
    accelerator: Accelerator,
) -> dict[str, float]:
    """Take one optimisation step; every process calls it, also one without trajectories.

    Args:
        policy: A `Policy`, wrapped by accelerate where there are several processes.
        optimizer: Over the policy's weights.
        groups: Of all processes, the same in each; each computes its share of micro-batches.
        settings: See there.
        accelerator: Sums gradients and counts over processes.

    Returns:
        Metrics of the step, over all processes.
    """
    samples = with_advantages(groups, settings.estimator)
    everybodys = split(samples, settings.tokens_per_microbatch)
    batches = everybodys[accelerator.process_index :: accelerator.num_processes]
    tokens = sum(s.trajectory.action_tokens for group in samples for s in group)
    most = math.ceil(len(everybodys) / accelerator.num_processes)
    sums = torch.zeros(4, device=accelerator.device)
    policy.train()  # dropout of adapters, where there is any
    for number in range(most):
        chosen = batches[number] if number < len(batches) else [_placeholder()]
        batch = micro_batch(chosen, accelerator.device)
        last = number == most - 1
        with nullcontext() if last else accelerator.no_sync(policy):
            sums += _backward(policy, batch, tokens, settings, accelerator)
    policy.eval()
    metrics = {
        "tokens/trained": float(tokens),
        "episodes/with_gradient": float(sum(len(batch) for batch in everybodys)),
        "grad_norm": 0.0,
        "updates/skipped": 0.0,
    }
    if most == 0:  # every advantage is zero: there is nothing to learn from this step
        return metrics | {"loss": 0.0}
    norm = optimizer.gather_gradients()
    loss, trained, clipped, mismatch = _sum(accelerator, sums.tolist())
    metrics["grad_norm"] = norm.item()
    metrics["loss"] = loss / tokens
    metrics["clipped"] = clipped / max(trained, 1)
    metrics["engine/logprob_difference"] = mismatch / max(trained, 1)
    if math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"]):
        optimizer.step(norm, settings.max_grad_norm)
    else:
        optimizer.zero_grad()
        metrics["updates/skipped"] = 1.0
    return metrics


def _backward(
    policy: torch.nn.Module,
    batch: MicroBatch,
    tokens: int,
    settings: UpdateSettings,
    accelerator: Accelerator,
) -> torch.Tensor:
    """Add one micro-batch's gradients; returns sums over its tokens: loss, count, clips, ..."""
    logprobs = policy(batch)
    result = losses.clipped(
        logprobs,
        batch.sampled_logprobs,
        batch.advantages,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
    )
    # Data parallelism averages gradients over processes; the loss is a sum over all of them.
    accelerator.backward(result.losses.sum() * (accelerator.num_processes / tokens))
    real = batch.advantages != 0
    difference = (logprobs.detach() - batch.sampled_logprobs).abs()
    return torch.stack(
        [
            result.losses.detach().sum(),
            real.sum().float(),
            (result.clipped & real).sum().float(),
            (difference * real).sum(),
        ]
    )


def _placeholder() -> Sample:
    """A sample without gradient, for a process that has fewer micro-batches than another."""
    trajectory = Trajectory(
        ids=[1, 1],
        action_mask=[0, 1],
        logprobs=[0.0, 0.0],
        prompt_length=1,
        turns=[Span(1, 2)],
        turn_rewards=[0.0],
        stop_reason=StopReason.error,
        terminated=False,
        truncated=True,
    )
    return Sample(trajectory, torch.zeros(1))


def _sum(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    ours = torch.tensor(values, dtype=torch.float32, device=accelerator.device)
    total: torch.Tensor = accelerator.reduce(ours, reduction="sum")
    return total.tolist()
