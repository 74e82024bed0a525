"""One batch of trajectories: from groups to new weights, in one or several optimisation steps.

    rewards -> advantages                  over the batches of all processes     (credit.py)
    groups  -> minibatches -> micro-batches                                      (shares.py)
    for each epoch and minibatch:
        loss = sum over tokens of weight * token loss / normaliser               (algorithms.py)
        one step of the optimizer

The normaliser is that of all micro-batches and processes. Trajectories without any advantage are
in it and are not computed: their loss and gradient are zero.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from gymnast.trainers.algorithms import Algorithm
from gymnast.trainers.batch import Sample
from gymnast.trainers.credit import Groups, with_advantages
from gymnast.trainers.kl import Kl, Reference
from gymnast.trainers.optimizer import MasterAdamW
from gymnast.trainers.rollout import PART
from gymnast.trainers.shares import (
    Scored,
    Share,
    make_share,
    sum_over_processes,
    with_logprobs,
)
from gymnast.types import Trajectory


@dataclass(frozen=True)
class UpdateSettings:
    """What learning from a batch needs besides data.

    Attributes:
        algorithm: What is learned by.
        max_grad_norm: Longer gradients are scaled down to this norm.
        tokens_per_microbatch: How many packed tokens one forward and backward pass takes.
        reward_weights: Of the parts of the reward, by name.
    """

    algorithm: Algorithm
    max_grad_norm: float
    tokens_per_microbatch: int
    reward_weights: Mapping[str, float] = field(default_factory=dict)


def update(
    policy: torch.nn.Module,
    optimizer: MasterAdamW,
    groups: Groups,
    settings: UpdateSettings,
    accelerator: Accelerator,
    reference: Reference | None = None,
) -> dict[str, float]:
    """Learn from a batch; every process calls it.

    Args:
        policy: A `Policy`, wrapped by accelerate where there are several processes.
        optimizer: Over the policy's weights.
        groups: Of all processes, the same in each; each computes its share of micro-batches.
        settings: See there.
        accelerator: Sums gradients and counts over processes.
        reference: What `algorithm.kl` compares the policy with.

    Returns:
        Metrics, over all processes; means over the optimisation steps, and of the first alone for
        `engine/...`, when the weights were those that sampled.
    """
    algorithm = settings.algorithm
    policy.eval()
    before: dict[str, float] = {}
    if (kl := algorithm.kl_in("reward")) and reference is not None:
        groups, before["kl"] = penalised(groups, kl, reference, settings, accelerator)
    samples = with_advantages(groups, algorithm.estimator, settings.reward_weights)
    kept = [
        [s for s in group if s.trajectory.stop_reason not in algorithm.masked_stop_reasons]
        for group in samples
    ]
    shares = _minibatches(policy, kept, settings, accelerator, reference)
    steps = [
        _step(policy, optimizer, share, settings, accelerator)
        for _ in range(algorithm.epochs)
        for share in shares
        if share.batches  # else nothing is better than the rest, in any process
    ]
    masked = sum(len(group) for group in samples) - sum(len(group) for group in kept)
    return {
        "tokens/trained": sum(share.tokens for share in shares),
        "episodes/with_gradient": sum(share.episodes for share in shares),
        "episodes/masked": float(masked),
        **before,
        **_merged(steps),
    }


def _minibatches(
    policy: torch.nn.Module,
    samples: Sequence[Sequence[Sample]],
    settings: UpdateSettings,
    accelerator: Accelerator,
    reference: Reference | None,
) -> list[Share]:
    """What each step of an epoch learns from, with the log-probabilities that it needs."""
    algorithm = settings.algorithm
    old = partial(_without_gradient, policy) if algorithm.needs_old_logprobs else None
    in_loss = reference if algorithm.kl_in("loss") is not None else None
    of_reference = in_loss.logprobs if in_loss is not None else None
    every = algorithm.minibatches
    shares = [_share(samples[first::every], settings, accelerator) for first in range(every)]
    return [with_logprobs(share, old=old, reference=of_reference) for share in shares]


def penalised(
    groups: Groups,
    kl: Kl,
    reference: Reference,
    settings: UpdateSettings,
    accelerator: Accelerator,
) -> tuple[list[list[Trajectory]], float]:
    """Take the divergence of each turn's tokens from its reward; see `Kl.place`.

    The policy's log-probabilities are those that the agent sampled with. Where the reward has named
    parts, "kl" becomes one of them.

    Returns:
        The groups with other rewards, and the mean divergence of a token.
    """
    idle = [[Sample(t, torch.zeros(len(t.turns))) for t in group] for group in groups]
    share = _share(idle, settings, accelerator, also_idle=True)
    share = with_logprobs(share, reference=reference.logprobs)
    mine: list[Sequence[torch.Tensor]] = []  # for each micro-batch, [tokens] of each trajectory
    for scored in share.batches:
        assert scored.reference_logprobs is not None
        costs = kl.coefficient * kl(scored.batch.sampled_logprobs, scored.reference_logprobs)
        mine.append(costs.cpu().split(torch.bincount(scored.batch.sequences).tolist()))
    everybodys = gather_object([mine])
    # In the order of the trajectories: processes took the micro-batches in turn.
    found = [costs for row in zip(*everybodys, strict=True) for batch in row for costs in batch]
    found = found[: sum(len(group) for group in groups)]  # behind them, what only fills up
    total = sum(costs.sum().item() for costs in found)
    in_order = iter(found)
    changed = [[_with_costs(t, next(in_order)) for t in group] for group in groups]
    return changed, total / max(share.tokens, 1) / kl.coefficient


def _with_costs(trajectory: Trajectory, costs: torch.Tensor) -> Trajectory:
    """Costs [A] of its action tokens taken from the rewards of its turns."""
    by_turn = [part.sum().item() for part in costs.split([b - a for a, b in trajectory.turns])]
    rewards = [r - cost for r, cost in zip(trajectory.turn_rewards, by_turn, strict=True)]
    metrics = dict(trajectory.metrics)
    if any(name.startswith(PART) for name in metrics):
        metrics[f"{PART}kl"] = -sum(by_turn)
    return replace(trajectory, turn_rewards=rewards, metrics=metrics)


def _share(
    groups: Sequence[Sequence[Sample]],
    settings: UpdateSettings,
    accelerator: Accelerator,
    *,
    also_idle: bool = False,
) -> Share:
    algorithm = settings.algorithm
    return make_share(
        groups,
        algorithm.aggregation,
        accelerator,
        tokens_per_microbatch=settings.tokens_per_microbatch,
        also_idle=also_idle or algorithm.all_tokens_train,
    )


@torch.no_grad()
def _without_gradient(policy: torch.nn.Module, batch: object) -> torch.Tensor:
    logprobs: torch.Tensor = policy(batch)
    return logprobs


def _step(
    policy: torch.nn.Module,
    optimizer: MasterAdamW,
    share: Share,
    settings: UpdateSettings,
    accelerator: Accelerator,
) -> dict[str, float]:
    """Take one optimisation step; returns its metrics."""
    sums = torch.zeros(len(SUMS), device=accelerator.device)
    policy.train()  # dropout of adapters, where there is any
    for scored in share.batches:
        last = scored is share.batches[-1]
        with nullcontext() if last else accelerator.no_sync(policy):
            sums += _backward(policy, scored, share.normaliser, settings.algorithm, accelerator)
    policy.eval()
    norm = optimizer.gather_gradients()
    totals = dict(zip(SUMS, sum_over_processes(accelerator, sums.tolist()), strict=True))
    computed = max(totals.pop("computed"), 1)
    metrics = {name: total / computed for name, total in totals.items()}
    metrics["loss"] = totals["loss"] / share.normaliser
    metrics["grad_norm"] = norm.item()
    finite = math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])
    if finite:
        optimizer.step(norm, settings.max_grad_norm)
    else:
        optimizer.zero_grad()
    metrics["updates/skipped"] = float(not finite)
    return _worth_telling(metrics, settings.algorithm)


# What `_backward` adds up over tokens.
SUMS = (
    "loss",
    "computed",
    "clipped",
    "engine/logprob_difference",
    "engine/capped",
    "kl",
    "entropy",
)


def _backward(
    policy: torch.nn.Module,
    scored: Scored,
    normaliser: float,
    algorithm: Algorithm,
    accelerator: Accelerator,
) -> torch.Tensor:
    """Add one micro-batch's gradients; returns `SUMS`."""
    batch = scored.batch
    zeros = torch.zeros_like(batch.advantages)
    if algorithm.entropy_bonus:
        logprobs, entropies = policy(batch, entropy=True)
    else:
        logprobs, entropies = policy(batch), zeros
    before, importance = _sampled_by(scored, logprobs, algorithm.importance_cap)
    result = algorithm.loss(logprobs, before, batch.advantages, batch.sequences)
    losses = result.losses * importance - algorithm.entropy_bonus * entropies
    divergence = zeros
    if (kl := algorithm.kl_in("loss")) and scored.reference_logprobs is not None:
        divergence = kl(logprobs, scored.reference_logprobs)
        losses = losses + kl.coefficient * divergence
    total = (losses * scored.weights).sum()
    # Data parallelism averages gradients over processes; the loss is a sum over all of them.
    accelerator.backward(total * (accelerator.num_processes / normaliser))
    real = scored.weights > 0
    difference = (logprobs.detach() - batch.sampled_logprobs).abs()
    capped = importance == algorithm.importance_cap if algorithm.importance_cap else zeros
    told = (result.clipped, difference, capped, divergence.detach(), entropies.detach())
    return torch.stack([total.detach(), real.sum(), *((values * real).sum() for values in told)])


def _sampled_by(
    scored: Scored, logprobs: torch.Tensor, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor | float]:
    """What the loss compares with, [A], and the weight of each token's loss.

    Truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings
    you off-policy RL training"): min(exp(old - engine), cap), old being the trainer's own
    log-probabilities before the first step of the batch; in that step, those of this pass.
    """
    engine = scored.batch.sampled_logprobs
    if cap is None:
        return engine, 1.0
    old = logprobs.detach() if scored.old_logprobs is None else scored.old_logprobs
    return old, torch.exp(old - engine).clamp(max=cap)


def _worth_telling(metrics: dict[str, float], algorithm: Algorithm) -> dict[str, float]:
    """Without what is not computed."""
    told = {
        "engine/capped": algorithm.importance_cap is not None,
        "kl": algorithm.kl_in("loss") is not None,
        "entropy": algorithm.entropy_bonus != 0,
    }
    return {name: value for name, value in metrics.items() if told.get(name, True)}


def _merged(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of some optimisation steps as those of one."""
    if not steps:  # every advantage is zero: there is nothing to learn from this batch
        return {"loss": 0.0, "grad_norm": 0.0, "updates/skipped": 0.0}
    merged = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
    merged["updates/skipped"] = sum(step["updates/skipped"] for step in steps)
    return merged | {name: v for name, v in steps[0].items() if name.startswith("engine/")}
