"""One batch of trajectories: from groups to new weights, in one or several optimisation steps.

    rewards -> advantages                  over the batches of all processes     (credit.py)
    groups  -> minibatches -> micro-batches                                      (shares.py)
    for each epoch and minibatch:
        loss = sum over tokens of weight * token loss / normaliser               (algorithms.py)
        one step of the optimizer

The normaliser is that of all micro-batches and processes. Trajectories without any advantage are
in it and are not computed: their loss and gradient are zero.

A step whose loss or gradient is not finite is skipped, in all processes. What `update` returns,
besides the advantages' (`credit.py`):

    loss                        mean over the optimisation steps that were taken; if none, over all
    grad_norm                   likewise, before it is clipped
    grad_clipped                the share of optimisation steps whose gradient was longer than
                                `max_grad_norm`
    learning_rate               of the last optimisation step that was taken
    updates/taken, updates/skipped   how many optimisation steps
    updates/skipped_total       since the run began
    tokens/trained              action tokens in the normaliser
    episodes/with_gradient      how many, and not masked
    episodes/masked             how many ended in a way that `masked_stop_reasons` names
    clipped                     the share of tokens whose gradient the loss's clip changed
    kl                          of the policy and the reference, a token; where there is a `Kl`
    entropy                     of a token's distribution; where there is a bonus on it

and, of the tokens computed in the first optimisation step, whose weights are those that sampled,
with `difference` = trainer's - engine's log-probability:

    engine/logprob_difference, engine/logprob_difference_max     of |difference|
    engine/importance_ratio, engine/importance_ratio_max         of exp(difference)
    engine/kl                   the mean of exp(difference) - 1 - difference, which estimates
                                KL(engine || trainer) (k3, see `kl.py`)
    engine/capped               the share of tokens that `importance_cap` capped
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from gymnast.trainers.algorithms import Algorithm
from gymnast.trainers.batch import Sample
from gymnast.trainers.credit import Groups, advantage_metrics, with_advantages
from gymnast.trainers.divergence import diverged
from gymnast.trainers.freed_memory import give_back_freed_memory
from gymnast.trainers.kl import Kl, Reference, k3
from gymnast.trainers.optimizer import Optimizer, not_finite
from gymnast.trainers.rollout import PART
from gymnast.trainers.shares import (
    Scored,
    Share,
    largest_over_processes,
    make_share,
    sum_over_processes,
    with_logprobs,
)
from gymnast.types import Trajectory

# The part of the reward that a divergence in it becomes.
KL_PART = "kl"


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
    optimizer: Optimizer,
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
        Metrics, over all processes; see the top of this file.
    """
    algorithm = settings.algorithm
    policy.eval()
    before: dict[str, float] = {}
    weights = dict(settings.reward_weights)
    if (kl := algorithm.kl_in("reward")) and reference is not None:
        groups, before["kl"] = penalised(groups, kl, reference, settings, accelerator)
        weights[KL_PART] = kl.coefficient
    samples = with_advantages(groups, algorithm.estimator, weights)
    kept = [
        [s for s in group if s.trajectory.stop_reason not in algorithm.masked_stop_reasons]
        for group in samples
    ]
    shares = _minibatches(policy, kept, settings, accelerator, reference)
    steps: list[dict[str, float]] = []
    for share in shares * algorithm.epochs:
        if share.batches:  # else nothing is better than the rest, in any process
            steps.append(_step(policy, optimizer, share, settings, accelerator))
            if steps[-1]["updates/skipped"] and diverged(optimizer):
                break
    masked = sum(len(group) for group in samples) - sum(len(group) for group in kept)
    return {
        "tokens/trained": sum(share.tokens for share in shares),
        "episodes/with_gradient": sum(share.episodes for share in shares),
        "episodes/masked": float(masked),
        **before,
        **advantage_metrics(samples),
        **_merged(steps),
        "learning_rate": optimizer.last_learning_rate,
        "updates/skipped_total": float(optimizer.skipped),
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
    parts, `KL_PART` becomes one of them: the divergence, whose weight is the coefficient.

    Returns:
        The groups with other rewards, and the mean divergence of a token.
    """
    idle = [[Sample(t, torch.zeros(len(t.turns))) for t in group] for group in groups]
    share = _share(idle, settings, accelerator, also_idle=True)
    share = with_logprobs(share, reference=reference.logprobs)
    mine: list[Sequence[torch.Tensor]] = []  # for each micro-batch, [A] of each trajectory
    for scored in share.batches:
        assert scored.reference_logprobs is not None
        apart = kl(scored.batch.sampled_logprobs, scored.reference_logprobs)
        mine.append(apart.cpu().split(torch.bincount(scored.batch.sequences).tolist()))
    everybodys = gather_object([mine])
    # In the order of the trajectories: processes took the micro-batches in turn.
    found = [apart for row in zip(*everybodys, strict=True) for batch in row for apart in batch]
    found = found[: sum(len(group) for group in groups)]  # behind them, what only fills up
    total = sum(apart.sum().item() for apart in found)
    in_order = iter(found)
    changed = [[_with_costs(t, next(in_order), kl.coefficient) for t in g] for g in groups]
    return changed, total / max(share.tokens, 1)


def _with_costs(trajectory: Trajectory, apart: torch.Tensor, coefficient: float) -> Trajectory:
    """The divergence [A] of its action tokens taken from the rewards of its turns."""
    by_turn = [part.sum().item() for part in apart.split([b - a for a, b in trajectory.turns])]
    pairs = zip(trajectory.turn_rewards, by_turn, strict=True)
    rewards = [reward - coefficient * divergence for reward, divergence in pairs]
    metrics = dict(trajectory.metrics)
    if any(name.startswith(PART) for name in metrics):
        metrics[PART + KL_PART] = -sum(by_turn)
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
    optimizer: Optimizer,
    share: Share,
    settings: UpdateSettings,
    accelerator: Accelerator,
) -> dict[str, float]:
    """Take one optimisation step; returns its metrics."""
    sums = torch.zeros(len(SUMS), device=accelerator.device)
    largest = torch.zeros(len(LARGEST), device=accelerator.device)
    policy.train()  # dropout of adapters, where there is any
    for scored in share.batches:
        last = scored is share.batches[-1]
        with nullcontext() if last else accelerator.no_sync(policy):
            found = _backward(policy, scored, share.normaliser, settings.algorithm, accelerator)
        sums += found[0]
        largest = torch.maximum(largest, found[1])
    policy.eval()
    give_back_freed_memory(accelerator.device)
    totals = dict(zip(SUMS, sum_over_processes(accelerator, sums.tolist()), strict=True))
    computed = max(totals.pop("computed"), 1)
    metrics = {name: total / computed for name, total in totals.items()}
    metrics |= zip(LARGEST, largest_over_processes(accelerator, largest.tolist()), strict=True)
    metrics["loss"] = loss = totals["loss"] / share.normaliser
    metrics["grad_norm"] = length = optimizer.step_if_finite(loss, settings.max_grad_norm)
    finite = not not_finite(loss, length)  # both are those of all processes
    metrics["grad_clipped"] = float(finite and length > settings.max_grad_norm)
    metrics["updates/taken"], metrics["updates/skipped"] = float(finite), float(not finite)
    return _worth_telling(metrics, settings.algorithm)


# What `_backward` adds up over tokens, and what it takes the largest of.
SUMS = (
    "loss",
    "computed",
    "clipped",
    "engine/logprob_difference",
    "engine/importance_ratio",
    "engine/kl",
    "engine/capped",
    "kl",
    "entropy",
)
LARGEST = ("engine/logprob_difference_max", "engine/importance_ratio_max")


def _backward(
    policy: torch.nn.Module,
    scored: Scored,
    normaliser: float,
    algorithm: Algorithm,
    accelerator: Accelerator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add one micro-batch's gradients; returns `SUMS` and `LARGEST`."""
    batch = scored.batch
    zeros = torch.zeros_like(batch.advantages)
    if algorithm.entropy_bonus:
        logprobs, entropies = policy(batch, entropy=True)
    else:
        logprobs, entropies = policy(batch), zeros
    give_back_freed_memory(accelerator.device)
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
    ours, engines = logprobs.detach(), batch.sampled_logprobs
    difference, ratio = (ours - engines).abs(), torch.exp(ours - engines)
    capped = importance == algorithm.importance_cap if algorithm.importance_cap else zeros
    told = (
        *(result.clipped, difference, ratio, k3(engines, ours), capped),
        *(divergence.detach(), entropies.detach()),
    )
    sums = [total.detach(), real.sum(), *((values * real).sum() for values in told)]
    return torch.stack(sums), torch.stack([(v * real).amax() for v in (difference, ratio)])


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
    counts = ("updates/taken", "updates/skipped")
    if not steps:  # every advantage is zero: there is nothing to learn from this batch
        return dict.fromkeys(("loss", "grad_norm", *counts), 0.0)
    told = [step for step in steps if step["updates/taken"]] or steps
    merged = {name: sum(step[name] for step in told) / len(told) for name in steps[0]}
    merged |= {name: sum(step[name] for step in steps) for name in counts}
    return merged | {name: v for name, v in steps[0].items() if name.startswith("engine/")}
