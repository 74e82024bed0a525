"""One optimisation step: the passes of a share, their loss, and what is reported about them.

`trainers/learner/update.py` says which share is learned from when, and what the numbers mean.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from accelerate import Accelerator

from gymnast.trainers.algorithms.algorithm import Algorithm
from gymnast.trainers.algorithms.kl import k3
from gymnast.trainers.algorithms.losses import log_ratio
from gymnast.trainers.learner.demonstrated import BY_LIKELIHOOD, Demonstrated
from gymnast.trainers.learner.gradient_sums import run_passes
from gymnast.trainers.learner.memory.heap import give_back_freed_memory
from gymnast.trainers.learner.optimizers.not_finite import why_not_finite
from gymnast.trainers.learner.optimizers.optimizer import Optimizer
from gymnast.trainers.learner.policy.head import TeacherStates
from gymnast.trainers.learner.policy.micro_batches import MicroBatch
from gymnast.trainers.learner.policy.shares import (
    Scored,
    Share,
    largest_over_processes,
    sum_over_processes,
)


@dataclass(frozen=True)
class Taken:
    """What is known of a step, which may have been skipped.

    Attributes:
        metrics: Over all processes.
        logprobs: Of each micro-batch of this process, [A], before the step.
    """

    metrics: dict[str, float]
    logprobs: Sequence[torch.Tensor]


@dataclass(frozen=True)
class _Work:
    """One micro-batch, and what its loss is.

    Attributes:
        scored: The micro-batch.
        normaliser: What its sum of losses is divided by.
        algorithm: Whose loss it is.
    """

    scored: Scored
    normaliser: float
    algorithm: Algorithm


@dataclass(frozen=True)
class _Pass:
    """What one micro-batch gives besides its gradient.

    Attributes:
        sums: [len(SUMS)].
        largest: [len(LARGEST) + len(SMALLEST)]; the last ones are negative.
        logprobs: [A].
    """

    sums: torch.Tensor
    largest: torch.Tensor
    logprobs: torch.Tensor


# What a pass adds up over tokens, and what it takes the largest and the smallest of.
SUMS = (
    "loss",
    "computed",
    "clipped",
    "clipped/low",
    "clipped/high",
    "engine/logprob_difference",
    "engine/importance_ratio",
    "engine/importance_ratio_far",
    "engine/kl",
    "engine/capped",
    "engine/masked",
    "kl",
    "entropy",
    "teacher/kl",
    "teacher/logprob",
    "taught",
)
LARGEST = ("engine/logprob_difference_max", "engine/importance_ratio_max", "ratio/max")
SMALLEST = ("engine/importance_ratio_min", "ratio/min")

# Beyond this factor, in either direction, engine and trainer are far apart: their rounding alone
# moves a ratio by some hundredths in bfloat16, and by less elsewhere.
FAR = 2.0


def unmeasured(batch: MicroBatch) -> AbstractContextManager[None]:
    """Do nothing around a pass."""
    return nullcontext()


def take_step(
    policy: torch.nn.Module,
    optimizer: Optimizer,
    share: Share,
    algorithm: Algorithm,
    accelerator: Accelerator,
    *,
    max_grad_norm: float,
    demonstrated: Demonstrated | None = None,
    around_pass: Callable[[MicroBatch], AbstractContextManager[None]] = unmeasured,
) -> Taken:
    """Take one optimisation step, or skip it; a collective call.

    Args:
        policy: A `Policy`, wrapped by accelerate where there are several processes.
        optimizer: Over its weights.
        share: What is learned from; empty only beside demonstrations.
        algorithm: What is learned by.
        accelerator: Of this process.
        max_grad_norm: Longer gradients are scaled down to this norm.
        demonstrated: What is learned from beside it, in the same step.
        around_pass: Entered around the pass of each micro-batch.
    """

    def backward(work: _Work) -> _Pass:
        with around_pass(work.scored.batch):
            return _backward(policy, work.scored, work.normaliser, work.algorithm, accelerator)

    work = [_Work(scored, share.normaliser, algorithm) for scored in share.batches]
    if demonstrated is not None:
        normaliser = demonstrated.share.normaliser / demonstrated.weight
        work += [_Work(s, normaliser, BY_LIKELIHOOD) for s in demonstrated.share.batches]
    policy.train()  # dropout of adapters, where there is any
    passes = run_passes(backward, work, policy, optimizer, accelerator)
    policy.eval()
    give_back_freed_memory(accelerator.device)
    own, beside = passes[: len(share.batches)], passes[len(share.batches) :]
    metrics = _measured(own, share.normaliser, accelerator) if own else {"loss": 0.0}
    loss = metrics["loss"]
    if demonstrated is not None:
        summed = sum(each.sums[0].item() for each in beside)
        (total,) = sum_over_processes(accelerator, [summed])
        metrics["demonstrations/loss"] = total / demonstrated.share.normaliser
        loss += demonstrated.weight * metrics["demonstrations/loss"]
    metrics["grad_norm"] = length = optimizer.step_if_finite(loss, max_grad_norm)
    finite = not why_not_finite(loss, length)  # both are those of all processes
    metrics["grad_clipped"] = float(finite and length > max_grad_norm)
    metrics["updates/taken"], metrics["updates/skipped"] = float(finite), float(not finite)
    return Taken(_worth_telling(metrics, algorithm), [each.logprobs for each in own])


def _measured(
    passes: Sequence[_Pass], normaliser: float, accelerator: Accelerator
) -> dict[str, float]:
    """What the passes of a share found, over all processes."""
    sums = torch.stack([each.sums for each in passes]).sum(0)
    largest = torch.stack([each.largest for each in passes]).amax(0)
    totals = dict(zip(SUMS, sum_over_processes(accelerator, sums.tolist()), strict=True))
    computed = max(totals.pop("computed"), 1)
    tokens_taught = max(totals.pop("taught"), 1)
    metrics = {
        name: total / (tokens_taught if name.startswith("teacher/") else computed)
        for name, total in totals.items()
    }
    extremes = largest_over_processes(accelerator, largest.tolist())
    metrics |= zip(LARGEST, extremes, strict=False)
    metrics |= zip(SMALLEST, [-value for value in extremes[len(LARGEST) :]], strict=True)
    metrics["loss"] = totals["loss"] / normaliser
    return metrics


def _backward(
    policy: torch.nn.Module,
    scored: Scored,
    normaliser: float,
    algorithm: Algorithm,
    accelerator: Accelerator,
) -> _Pass:
    """Add one micro-batch's gradients."""
    batch = scored.batch
    zeros = torch.zeros_like(batch.advantages)
    from_teacher, of_teacher, taught = zeros, zeros, zeros
    states = _of_teacher(policy, scored)
    if states is not None:
        logprobs, entropies, from_teacher, of_teacher = policy(batch, teacher=states)
        taught = states.taught
    else:
        entropy = "trained" if algorithm.entropy_bonus else "measured"
        logprobs, entropies = policy(batch, entropy=entropy)
    give_back_freed_memory(accelerator.device)
    ours = logprobs.detach() if scored.old_logprobs is None else scored.old_logprobs
    compared = batch.sampled_logprobs if algorithm.old_logprobs == "engine" else ours
    ratio = torch.exp(log_ratio(ours, batch.sampled_logprobs))
    result = algorithm.loss(logprobs, compared, batch.advantages, batch.sequences)
    losses, capped, masked = result.losses, zeros, zeros
    if algorithm.importance is not None:
        importance, capped, masked = algorithm.importance(
            ours, batch.sampled_logprobs, batch.sequences
        )
        losses = losses * importance
    if algorithm.entropy_bonus:
        losses = losses - algorithm.entropy_bonus * entropies
    divergence = zeros
    if (kl := algorithm.kl_in("loss")) and scored.reference_logprobs is not None:
        divergence = kl(logprobs, scored.reference_logprobs)
        losses = losses + kl.coefficient * divergence
    if algorithm.teacher is not None and states is not None:
        losses = losses + algorithm.teacher.weight * from_teacher
    total = (losses * scored.weights).sum()
    # Data parallelism averages gradients over processes; the loss is a sum over all of them.
    accelerator.backward(total * (accelerator.num_processes / normaliser))
    real = scored.weights > 0
    difference = (ours - batch.sampled_logprobs).abs()
    below, far = result.ratio < 1, (ratio > FAR) | (ratio < 1 / FAR)
    told = (
        *(result.clipped, result.clipped * below, result.clipped * ~below, difference, ratio, far),
        *(k3(batch.sampled_logprobs, ours), capped, masked),
        *(divergence.detach(), entropies.detach()),
        *(from_teacher.detach(), of_teacher.detach(), taught),
    )
    sums = [total.detach(), real.sum(), *((values * real).sum() for values in told)]
    signed = (difference, ratio, result.ratio, -ratio, -result.ratio)
    largest = [values.masked_fill(~real, -math.inf).amax() for values in signed]
    return _Pass(torch.stack(sums), torch.stack(largest), logprobs.detach())


def _of_teacher(policy: torch.nn.Module, scored: Scored) -> TeacherStates | None:
    """What an exact teacher makes of a micro-batch; it may be the policy, and has no dropout."""
    if scored.teacher is None:
        return None
    policy.eval()
    states = scored.teacher()
    policy.train()
    give_back_freed_memory(scored.batch.targets.device)
    return states


def _worth_telling(metrics: dict[str, float], algorithm: Algorithm) -> dict[str, float]:
    """Without what is not computed."""
    importance = algorithm.importance
    told = {
        "engine/capped": importance is not None and importance.cap is not None,
        "engine/masked": importance is not None and importance.bounds is not None,
        "kl": algorithm.kl_in("loss") is not None,
        "teacher/kl": algorithm.taught_exactly,
        "teacher/logprob": algorithm.taught_exactly,
    }
    return {name: value for name, value in metrics.items() if told.get(name, True)}
