"""The shares of a step's time and the speed of its training, from its measurements.

    tokens/trained_per_s   tokens of the contexts that were trained, prompts included and not
                           shared, by the learner's seconds; an epoch counts as often as it is taken
    perf/mfu               model FLOPs utilization: the FLOPs that training needed, as it shares
                           prompts and leaves out what it can, by what the devices could have
                           computed in the learner's seconds
    perf/mfu_nominal       the same with FLOPs as most trainers count them
    perf/training_share    the learner's share of the step
    perf/sampling_share    the share in which episodes were waited for, and the agent had a request
    perf/waiting_share     the share in which they were waited for, and the agent had none: episodes
                           were at their tools or environments

FLOPs are counted in `learner/flops.py`. The three shares add up to at most 1; the rest is
Gymnast's own. With `max_staleness`, what is sampled while the learner works is in none of them.
"""

from collections.abc import Mapping

import torch

from gymnast.agents.policy import PolicyAgent, allows_staleness
from gymnast.trainers.learner.flops import Computed
from gymnast.trainers.reporting.advice.speed import SpeedFacts
from gymnast.trainers.rollouts.shared import SAMPLING_S, WAITING_S
from gymnast.trainers.settings import TrainerSettings


def speed_figures(
    metrics: Mapping[str, float], computed: Computed, peak_flops: float | None
) -> dict[str, float]:
    """Return the figures listed above, as far as they were measured.

    Args:
        metrics: Of a step, its times among them.
        computed: By the learner, in all processes.
        peak_flops: Of the devices of all processes, in FLOP/s; None where it is not known.
    """
    step_s, train_s = metrics["time/step_s"], metrics["time/train_s"]
    figures = {"perf/training_share": train_s / step_s}
    if SAMPLING_S in metrics:
        figures["perf/sampling_share"] = metrics[SAMPLING_S] / step_s
        figures["perf/waiting_share"] = metrics[WAITING_S] / step_s
    if not computed.tokens:  # every advantage was zero
        return figures
    figures["tokens/trained_per_s"] = computed.tokens / train_s
    if peak_flops is not None:
        figures["perf/mfu"] = computed.actual_flops / (train_s * peak_flops)
        figures["perf/mfu_nominal"] = computed.nominal_flops / (train_s * peak_flops)
    return figures


def speed_facts(
    settings: TrainerSettings, agent: PolicyAgent, device: torch.device, episodes: int
) -> SpeedFacts:
    """Return what advice about a run's speed depends on.

    Args:
        settings: Of the run.
        agent: That samples.
        device: That trains.
        episodes: Of a step, in this process.
    """
    samples_on = getattr(getattr(agent, "model", None), "device", None)  # servers have no model
    names = {"cuda": "GPU", "cpu": "CPU"}
    size = settings.learning.tokens_per_microbatch
    default = type(settings.learning).model_fields["tokens_per_microbatch"].default
    return SpeedFacts(
        device="agent" if samples_on is None else names.get(samples_on.type, samples_on.type),
        trains_on_gpu=device.type == "cuda",
        concurrency=settings.rollouts.episodes_at_once(episodes, device),
        step_episodes=episodes,
        max_staleness=settings.staleness.max_staleness,
        can_be_stale=(
            allows_staleness(agent)
            and not settings.run.deterministic
            and settings.rows.curriculum is None
        ),
        tokens_per_microbatch=None if size == default else size,
        deterministic=settings.run.deterministic,
    )
