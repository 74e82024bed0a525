"""Optimisation steps of the trainer on a GPU, next to TRL's `GRPOTrainer` with Liger's kernels.

    python benchmarks/gpu_training.py                        all sides
    python benchmarks/gpu_training.py --seconds 60           every side cut to its share of a minute
    python benchmarks/gpu_training.py --device cpu --tiny    a smoke test, TRL without Liger

The batch is `equal` of train_step_batch.py: 8 groups of 8 episodes, prompts of 300 tokens,
completions of 400 (150 of them actions), on Qwen3-0.6B with random bfloat16 weights. Gymnast keeps
float32 master weights; TRL trains the bfloat16 weights themselves, and computes each layer again in
the backward pass, as is its default.

A figure is the median of the steps after the first, which warms up. Tokens a second and "MFU" count
every token of every episode, prompts included, so that both sides are compared by the same work;
"MFU, packed" is what Gymnast computes: a group's prompt once, and the head for actions alone. They
are `perf/mfu_nominal` and `perf/mfu` of a run (`trainers/learner/flops.py`). The peak of memory
includes weights and optimizer states.
"""

import argparse
import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator

from gpu_figures import SECONDS_HELP, Figure, deadline_after, report_case
from gpu_models import TINY, random_model, release_memory, synchronize
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.trainers import make_algorithm
from gymnast.trainers.learner.flops import Computed, ModelFlops, count, peak_flops
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.types import Trajectory
from train_step_batch import Group, batch
from train_step_trl import TRLSide

MODEL = "Qwen3-0.6B"
GROUPS, GROUP_SIZE = 8, 8
STEPS = 4
LEARNING_RATE = 1e-6
STEP = "a step"


@dataclass(frozen=True)
class Side:
    """One trainer with its micro-batches.

    Attributes:
        trainer: "Gymnast" or "TRL".
        groups_per_microbatch: Groups in one forward and backward pass; None for the default of the
            trainer's `tokens_per_microbatch`.
    """

    trainer: str
    groups_per_microbatch: int | None

    @property
    def title(self) -> str:
        """The side as the table names it."""
        number = self.groups_per_microbatch
        if number is None:
            return f"{self.trainer}, default micro-batches"
        return f"{self.trainer}, {number} group{'s' * (number > 1)} a micro-batch"


# Liger replaces functions of Transformers' modules, for all models of the process: TRL comes last.
SIDES = [Side("Gymnast", None), Side("Gymnast", 4), Side("TRL", 1), Side("TRL", 4)]


def measure(side: Side, name: str, groups: list[Group], device: str, seconds: float) -> None:
    """Train one side for `STEPS` steps, fewer if `seconds` are over, and report its figures."""
    deadline = time.perf_counter() + seconds
    release_memory(device)
    model = random_model(name, device)
    work = work_of(groups, model)  # before a trainer changes the model
    steps = gymnast_steps if side.trainer == "Gymnast" else trl_steps
    times = steps(model, side, groups, device, lambda: time.perf_counter() >= deadline)
    peak = peak_flops(model.device, model.dtype)
    report(side, work, times, device, peak)


def gymnast_steps(
    model: Any,
    side: Side,
    groups: list[Group],
    device: str,
    ended: Callable[[], bool],
) -> list[float]:
    """Take steps of Gymnast's trainer; return the seconds of each."""
    policy = Policy(model, activations="keep")
    optimizer = MasterOptimizer(model.parameters(), learning_rate=LEARNING_RATE)
    defaults = LearnerSettings()
    number = side.groups_per_microbatch
    settings = UpdateSettings(
        algorithm=make_algorithm("grpo"),
        max_grad_norm=1.0,
        tokens_per_microbatch=(
            defaults.tokens_per_microbatch if number is None else number * packed_tokens(groups[0])
        ),
    )
    trajectories = trajectories_of(groups, model)
    accelerator = Accelerator(cpu=device == "cpu")
    times: list[float] = []
    while len(times) < STEPS and not (times and ended()):
        synchronize(device)
        started = time.perf_counter()
        update(policy, optimizer, trajectories, settings, accelerator)
        synchronize(device)
        times.append(time.perf_counter() - started)
    return times


def trl_steps(
    model: Any,
    side: Side,
    groups: list[Group],
    device: str,
    ended: Callable[[], bool],
) -> list[float]:
    """Take steps of TRL's trainer; return the seconds of each."""
    trl = TRLSide(groups, device, liger=device == "cuda")
    trainer = trl.trainer(
        model,
        tiny_tokenizer(),
        checkpointing=True,
        clip=1.0,
        learning_rate=LEARNING_RATE,
        steps=STEPS,
        groups_per_microbatch=side.groups_per_microbatch or 1,
        ended=ended,
    )
    trainer.train()
    return [cost.cost.wall_s for cost in trl.costs]


def trajectories_of(groups: list[Group], model: Any) -> list[list[Trajectory]]:
    """The episodes as the trainer takes them."""
    uniform = -math.log(model.config.vocab_size)  # about what random weights give every token
    return [
        [
            group.trajectory(member, [uniform] * sum(episode.mask))
            for member, episode in enumerate(group.episodes)
        ]
        for group in groups
    ]


def work_of(groups: list[Group], model: Any) -> Computed:
    """What a step computes, in Gymnast's count: every group packed by itself."""
    flops = ModelFlops.of(model, packed=True)
    batches = [
        micro_batch(
            [CreditedTrajectory(each, torch.ones(each.steps)) for each in group],
            torch.device("cpu"),
        )
        for group in trajectories_of(groups, model)
    ]
    return count(batches, flops)


def packed_tokens(group: Group) -> int:
    """The tokens of a group whose prompt is computed once."""
    return len(group.prompt) + sum(len(episode.ids) for episode in group.episodes)


def report(side: Side, work: Computed, times: list[float], device: str, peak: float | None) -> None:
    """Report the figures of one side.

    Args:
        side: What was measured.
        work: Of a step.
        times: Seconds of each step; the first one is left out if there are others.
        device: Where it was measured.
        peak: The device's FLOP/s, where they are known.
    """
    step_s = statistics.median(times[1:] or times)
    note = f"median of {len(times) - 1} after the first" if times[1:] else "the first step alone"
    Figure(side.title, STEP, round(step_s, 4), "s", note).report()
    Figure(side.title, "rate", round(work.tokens / step_s, 1), "tokens/s").report()
    if peak is not None:
        counted = {"MFU": work.nominal_flops}
        counted |= {"MFU, packed": work.actual_flops} if side.trainer == "Gymnast" else {}
        for name, flops in counted.items():
            share = flops / step_s / peak
            Figure(side.title, name, round(share, 4), note=f"of {peak:.3g} FLOP/s").report()
    if device == "cuda":
        gib = torch.cuda.max_memory_allocated() / 2**30
        Figure(side.title, "peak memory", round(gib, 2), "GiB").report()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all sides and report their figures; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=float("inf"), help=SECONDS_HELP)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny batch: does everything run?")
    options = parser.parse_args(arguments)
    deadline = deadline_after(options.seconds)
    name, shorter = (TINY, 10) if options.tiny else (MODEL, 1)
    number, size = (4, 4) if options.tiny else (GROUPS, GROUP_SIZE)
    vocabulary = 900 if options.tiny else 150_000  # below that of the model
    groups = batch("equal", number, size, vocabulary, shorter=shorter)
    failed = False
    for left, side in zip(range(len(SIDES), 0, -1), SIDES, strict=True):
        if side.trainer == "TRL" and importlib.util.find_spec("trl") is None:
            Figure(side.title, STEP, None, "s", "TRL is not installed").report()
            continue
        seconds = (deadline - time.perf_counter()) / left
        if seconds <= 0:
            Figure(side.title, STEP, None, "s", "no time was left").report()
            continue
        run = partial(measure, side, name, groups, options.device, seconds)
        failed |= not report_case(side.title, STEP, "s", run)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
