"""One batch of trajectories: from groups to new weights, in one or several optimisation steps.

    rewards -> advantages                  over the batches of all processes            (credit.py)
    groups  -> minibatches -> micro-batches                                      (policy/shares.py)
    for each epoch and minibatch:                                       (optimisation_step.py)
        loss = sum over tokens of weight * token loss / normaliser   (algorithms/algorithm.py)
        one step of the optimizer

The normaliser is that of all micro-batches and processes. Trajectories without any advantage are
in it and are not computed: their loss and gradient are zero.

Ratios compare the policy with the trainer's own log-probabilities before the first of these steps,
unless the algorithm asks for the engine's. The first step computes those of its tokens anyway;
those of the other minibatches take a forward pass of their own. Where adapters have dropout, all of
them do, without dropout.

A step whose loss or gradient is not finite is skipped, in all processes. What `update` returns,
besides the advantages' (`credit.py`):

    loss                        mean over the optimisation steps that were taken; if none, over all
    grad_norm                   likewise, before it is clipped
    grad_clipped                the share of optimisation steps whose gradient was longer than
                                `max_grad_norm`
    learning_rate               of the last optimisation step that was taken
    learning_rate/adapters      of adapters, where theirs is another than that of other weights
    updates/taken, updates/skipped   how many optimisation steps
    updates/skipped_total       since the run began
    tokens/trained              action tokens in the normaliser
    episodes/with_gradient      how many, and not masked
    episodes/masked             how many ended in a way that `masked_stop_reasons` names
    clipped                     the share of tokens whose gradient the loss's clip changed
    clipped/low, clipped/high   of these, those that are less and more likely than they were
    ratio/min, ratio/max        the extremes of the ratios that the loss is made of, of the policy
                                and the one that sampled
    kl                          of the policy and the reference, a token; where there is a `Kl`
    demonstrations/loss         the mean negative log-likelihood of a demonstration's token; with
                                `demonstration_weight`, which `loss` does not contain
    entropy                     of a token's distribution

with a teacher also what `teaching.py` lists; and, of the tokens computed in the first optimisation
step, whose weights are those that sampled or, with `max_staleness`, newer ones, with `difference` =
trainer's - engine's log-probability, without dropout:

    engine/logprob_difference, engine/logprob_difference_max     of |difference|
    engine/importance_ratio, engine/importance_ratio_min, engine/importance_ratio_max
                                of exp(difference)
    engine/importance_ratio_far the share of tokens where it is above 2 or below 1/2
    engine/kl                   the mean of exp(difference) - 1 - difference, which estimates
                                KL(engine || trainer) (k3, see `algorithms/kl.py`)
    engine/capped               the share of tokens whose weight `importance_cap` capped
    engine/masked               the share of tokens that `importance_bounds` left out
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator

from gymnast.trainers.algorithms.algorithm import Algorithm
from gymnast.trainers.learner.credit import Groups, advantage_metrics, with_advantages
from gymnast.trainers.learner.demonstrated import (
    BY_LIKELIHOOD,
    Demonstrated,
    share_of_demonstrations,
)
from gymnast.trainers.learner.flops import Computed, ModelFlops, count, over_processes
from gymnast.trainers.learner.kl_in_reward import KL_PART, penalised
from gymnast.trainers.learner.optimisation_step import take_step, unmeasured
from gymnast.trainers.learner.optimizers.not_finite import ends_run
from gymnast.trainers.learner.optimizers.optimizer import Optimizer
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, MicroBatch
from gymnast.trainers.learner.policy.policy import unwrapped
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.policy.shares import (
    Share,
    make_share,
    with_logprobs,
    with_old_logprobs,
)
from gymnast.trainers.learner.teaching import Teaching, taught, with_teacher
from gymnast.types import Trajectory


@dataclass(frozen=True)
class Learned:
    """What came of learning from a batch.

    Attributes:
        metrics: Over all processes; see the top of this file.
        groups: What was given, with the advantages that were learned from.
        computed: What went through the model with a gradient, in all processes.
    """

    metrics: dict[str, float]
    groups: list[list[CreditedTrajectory]]
    computed: Computed = field(default_factory=Computed)


@dataclass(frozen=True)
class UpdateSettings:
    """What learning from a batch needs besides data.

    Attributes:
        algorithm: What is learned by.
        max_grad_norm: Longer gradients are scaled down to this norm.
        tokens_per_microbatch: How many tokens one forward and backward pass takes.
        reward_weights: Of the parts of the reward, by name.
        around_pass: Entered around each forward and backward pass of a step.
        flops: Those of the model, to be counted; None counts tokens alone.
    """

    algorithm: Algorithm
    max_grad_norm: float
    tokens_per_microbatch: int
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    around_pass: Callable[[MicroBatch], AbstractContextManager[None]] = unmeasured
    flops: ModelFlops | None = None


def update(
    policy: torch.nn.Module,
    optimizer: Optimizer,
    groups: Groups,
    settings: UpdateSettings,
    accelerator: Accelerator,
    reference: Reference | None = None,
    teaching: Teaching | None = None,
    demonstrations: Sequence[Trajectory] = (),
    *,
    scale_by_teaching: bool = False,
) -> Learned:
    """Learn from a batch; every process calls it.

    Args:
        policy: A `Policy`, wrapped by accelerate where there are several processes.
        optimizer: Over the policy's weights.
        groups: Of all processes, the same in each; each computes its share of micro-batches.
        settings: What is learned by, and in which portions.
        accelerator: Sums gradients and counts over processes.
        reference: What `algorithm.kl` compares the policy with.
        teaching: The teacher that `algorithm.teacher` describes.
        demonstrations: Of all processes; each optimisation step learns from all of them too, with
            `algorithm.demonstration_weight`.
        scale_by_teaching: Multiply the learning rate by the share of episodes that have an
            advantage, or are demonstrations. A teacher that is in the loss teaches in all of them.
    """
    algorithm = settings.algorithm
    policy.eval()
    before: dict[str, float] = {}
    weights = dict(settings.reward_weights)
    if (kl := algorithm.kl_in("reward")) and reference is not None:
        tokens = settings.tokens_per_microbatch
        groups, before["kl"] = penalised(
            groups, kl, reference, accelerator, tokens_per_microbatch=tokens
        )
        weights[KL_PART] = kl.coefficient
    credited = with_advantages(groups, algorithm.estimator, weights)
    if teaching is not None and not teaching.teacher.is_exact:
        tokens = settings.tokens_per_microbatch
        credited, told = taught(credited, teaching, accelerator, tokens_per_microbatch=tokens)
        before |= told
    elif teaching is not None:
        before |= teaching.counts(credited)
    kept = [
        [e for e in group if e.trajectory.stop_reason not in algorithm.masked_stop_reasons]
        for group in credited
    ]
    if scale_by_teaching and not algorithm.taught_exactly:
        optimizer.scheduled *= _teaching_share(credited, len(demonstrations))
    shares = _minibatches(policy, kept, settings, accelerator, reference)
    if teaching is not None and teaching.teacher.is_exact:
        shares = [with_teacher(share, teaching) for share in shares]
    demonstrated = None
    if demonstrations and algorithm.demonstration_weight:
        share = share_of_demonstrations(
            policy, demonstrations, accelerator, settings.tokens_per_microbatch
        )
        demonstrated = Demonstrated(share, algorithm.demonstration_weight)
    steps, computed = _steps(policy, optimizer, shares, settings, accelerator, demonstrated)
    masked = sum(map(len, credited)) - sum(map(len, kept))
    metrics = {
        "tokens/trained": sum(share.tokens for share in shares),
        "episodes/with_gradient": float(sum(share.episodes for share in shares)),
        "episodes/masked": float(masked),
        **before,
        **advantage_metrics(credited),
        **_merged(steps),
        **optimizer.learning_rates(),
        "updates/skipped_total": float(optimizer.skipped),
    }
    return Learned(metrics, credited, over_processes(computed, accelerator))


def _teaching_share(groups: Sequence[Sequence[CreditedTrajectory]], demonstrations: int) -> float:
    """The share of episodes that have an advantage or are demonstrations.

    An optimizer that divides by second moments makes its first steps equally long, whatever the
    batch: a few episodes would move the policy as far as all of them.
    """
    teach = [episode.trains for group in groups for episode in group]
    return (sum(teach) + demonstrations) / max(1, len(teach) + demonstrations)


def _minibatches(
    policy: torch.nn.Module,
    groups: Sequence[Sequence[CreditedTrajectory]],
    settings: UpdateSettings,
    accelerator: Accelerator,
    reference: Reference | None,
) -> list[Share]:
    """What each step of an epoch learns from, with the log-probabilities that it needs."""
    algorithm, every = settings.algorithm, settings.algorithm.minibatches

    @torch.no_grad()
    def of_policy(batch: MicroBatch) -> torch.Tensor:
        logprobs: torch.Tensor = policy(batch)
        return logprobs

    shares = [
        make_share(
            groups[number::every],
            algorithm.aggregation,
            accelerator,
            divide=unwrapped(policy).split,
            tokens_per_microbatch=settings.tokens_per_microbatch,
            also_idle=algorithm.all_tokens_train,
        )
        for number in range(every)
    ]
    first = next((number for number, share in enumerate(shares) if share.batches), 0)
    dropout, of_trainer = unwrapped(policy).has_dropout, algorithm.old_logprobs == "trainer"
    of_reference = reference.logprobs if reference and algorithm.kl_in("loss") else None
    return [
        with_logprobs(
            share,
            # The first step's are those of its own pass, unless dropout is in it.
            old=of_policy if (dropout if number == first else of_trainer) else None,
            reference=of_reference,
        )
        for number, share in enumerate(shares)
    ]


def _steps(
    policy: torch.nn.Module,
    optimizer: Optimizer,
    shares: Sequence[Share],
    settings: UpdateSettings,
    accelerator: Accelerator,
    demonstrated: Demonstrated | None,
) -> tuple[list[dict[str, float]], Computed]:
    """Take the optimisation steps of all epochs.

    Returns:
        The metrics of each, and what this process computed in all of them.
    """
    left, steps, computed = list(shares), list[dict[str, float]](), Computed()
    for number in list(range(len(shares))) * settings.algorithm.epochs:
        share = left[number]
        if not share.batches and demonstrated is None:
            continue  # nothing is better than the rest, in any process
        taken = take_step(
            policy,
            optimizer,
            share,
            settings.algorithm,
            accelerator,
            max_grad_norm=settings.max_grad_norm,
            demonstrated=demonstrated,
            around_pass=settings.around_pass,
        )
        if not steps:  # in the next epoch, these are the old ones
            left[number] = with_old_logprobs(share, taken.logprobs)
        steps.append(taken.metrics)
        batches = [*share.batches, *(demonstrated.share.batches if demonstrated else ())]
        computed += count((scored.batch for scored in batches), settings.flops)
        if taken.metrics["updates/skipped"] and ends_run(optimizer):
            break
    return steps, computed


def _merged(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of some optimisation steps as those of one."""
    counts = ("updates/taken", "updates/skipped")
    if not steps:  # every advantage is zero: there is nothing to learn from this batch
        return dict.fromkeys(("loss", "grad_norm", *counts), 0.0)
    told = [step for step in steps if step["updates/taken"]] or steps
    measured = {name: [s[name] for s in told if name in s] for s in told for name in s}
    merged = {name: sum(values) / len(values) for name, values in measured.items()}
    merged |= {name: sum(step[name] for step in steps) for name in counts}
    for name, extreme in (("ratio/min", min), ("ratio/max", max)):
        merged |= {name: extreme(measured[name])} if name in measured else {}
    first = next((step for step in steps if "clipped" in step), {})  # not of demonstrations alone
    return merged | {name: v for name, v in first.items() if name.startswith("engine/")}


def imitate(
    policy: torch.nn.Module,
    optimizer: Optimizer,
    demonstrations: Sequence[Trajectory],
    settings: UpdateSettings,
    accelerator: Accelerator,
) -> dict[str, float]:
    """Take one optimisation step towards demonstrations alone; every process calls it.

    Args:
        policy: A `Policy`, wrapped by accelerate where there are several processes.
        optimizer: Over the policy's weights.
        demonstrations: Of all processes, the same in each.
        settings: The algorithm in them is not asked.
        accelerator: Sums gradients and counts over processes.

    Returns:
        Metrics of an update; `loss` is the mean negative log-likelihood of a token.
    """
    share = share_of_demonstrations(
        policy, demonstrations, accelerator, settings.tokens_per_microbatch
    )
    taken = take_step(
        policy,
        optimizer,
        Share([], 0.0, 0.0, []),
        BY_LIKELIHOOD,
        accelerator,
        max_grad_norm=settings.max_grad_norm,
        demonstrated=Demonstrated(share),
        around_pass=settings.around_pass,
    )
    metrics = dict(taken.metrics)
    metrics["loss"] = metrics.pop("demonstrations/loss")
    return {
        **metrics,
        "tokens/trained": share.tokens,
        "updates/skipped_total": float(optimizer.skipped),
        **optimizer.learning_rates(),
    }
