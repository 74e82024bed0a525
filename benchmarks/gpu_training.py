"""Optimisation steps of the learner on a GPU, next to TRL's `GRPOTrainer` with Liger's kernels.

    python benchmarks/gpu_training.py                        all cases
    python benchmarks/gpu_training.py --cases equal mix      some of the cases below
    python benchmarks/gpu_training.py --seconds 60           every side cut to its share of a minute
    python benchmarks/gpu_training.py --device cpu --tiny    a smoke test, TRL without Liger

`equal`, `mix` and `no_tools` are the batches of train_step_batch.py: 8 groups of 8 episodes on
Qwen3-0.6B. Gymnast takes them with its defaults ("fast": the sizes are chosen by the memory that is
free) and with `activations: recompute` ("lean"). TRL computes each layer again in the backward
pass, as is its default, and takes one group or four in a micro-batch: goals are compared with the
faster of both. Gymnast keeps float32 master weights and moments; TRL trains the bfloat16 weights,
with moments in bfloat16. So the memory of the lean side may exceed TRL's by 8 bytes a weight.

`lora` is Qwen3-4B with adapters of rank 16 on 2 sequences of 16,384 tokens, `long` is Qwen3-0.6B on
one sequence of 65,536 tokens, as a step of a warm-up takes them: every token but the prompt's is an
action.

Weights are random, in bfloat16. A figure is the median of the steps after the first one, which
warms up. Tokens a second count every token of every episode, prompts included. How FLOPs are
counted stands in `trainers/learner/flops.py`. The peak of memory includes weights and optimizer.
"""

import argparse
import gc
import importlib.util
import logging
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator

from gpu_figures import SECONDS_HELP, Figure, Goal, deadline_after, report_case
from gpu_models import TINY, card_name, random_model, release_memory, synchronize
from gymnast.agents.loading.adapters import adapter_settings, with_adapters
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.trainers import make_algorithm
from gymnast.trainers.learner.flops import Computed, ModelFlops, count, peak_flops
from gymnast.trainers.learner.learner import Learner
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.types import Trajectory
from train_step_batch import BATCHES, Episode, Group, batch
from train_step_trl import TRLSide

MODEL = "Qwen3-0.6B"
GROUPS, GROUP_SIZE = 8, 8
STEPS = 4
LEARNING_RATE = 1e-6
STEP, MEMORY, MFU = "a step", "peak memory", "MFU, nominal"
SIZES = "tokens a micro-batch, at most"
TRL_MICROBATCHES = (1, 4)  # groups
MOMENTS_AND_MASTERS_BYTES = 8  # a weight, of Gymnast and not of TRL


@dataclass(frozen=True)
class Side:
    """One trainer with its settings.

    Attributes:
        title: As the table names it.
        settings: Of Gymnast's learner; None for TRL.
        groups_per_microbatch: Of TRL.
    """

    title: str
    settings: LearnerSettings | None
    groups_per_microbatch: int = 1


FAST = Side("Gymnast, fast", LearnerSettings(learning_rate=LEARNING_RATE))
LEAN = Side("Gymnast, lean", LearnerSettings(learning_rate=LEARNING_RATE, activations="recompute"))
TRL = [
    Side(f"TRL with Liger, {number} group{'s' * (number > 1)} a micro-batch", None, number)
    for number in TRL_MICROBATCHES
]


@dataclass(frozen=True)
class Case:
    """One batch on one model.

    Attributes:
        name: On the command line.
        model: A name of `gpu_models.SHAPES`.
        lengths: Tokens of the episodes of a batch without groups; () takes the batch `name` of
            `train_step_batch.py`.
        lora_rank: Of adapters; 0 trains all weights.
        step_s: The goal of the fast side, in seconds.
        lean_s: The goal of the lean side, in seconds.
        of_trl: The goal of the fast side, as a share of TRL's time.
        rate: The goal of tokens a second.
        mfu: The goal of the MFU.
    """

    name: str
    model: str = MODEL
    lengths: tuple[int, ...] = ()
    lora_rank: int = 0
    step_s: float | None = None
    lean_s: float | None = None
    of_trl: float | None = None
    rate: float | None = None
    mfu: float | None = None

    @property
    def sides(self) -> list[Side]:
        """The sides that take it; TRL's are last, since Liger changes the whole process."""
        return [FAST] if self.lengths else [FAST, LEAN, *TRL]


CASES = [
    Case("equal", step_s=0.26, lean_s=0.33),
    Case("mix", of_trl=0.45),
    Case("no_tools", of_trl=0.75),
    Case("lora", "Qwen3-4B", (16_384, 16_384), lora_rank=16, rate=7_500, mfu=0.26),
    Case("long", MODEL, (65_536,), mfu=0.27),
]


@dataclass(frozen=True)
class Measured:
    """The time and memory of a side.

    Attributes:
        step_s: Seconds of a steady step.
        memory_gib: The peak; 0 on a CPU.
        weights: How many were trained.
        card: The name of the device.
    """

    step_s: float
    memory_gib: float
    weights: int
    card: str


def measure(
    case: Case,
    side: Side,
    found: dict[tuple[str, str], Measured],
    device: str,
    seconds: float,
    *,
    tiny: bool,
) -> None:
    """Train one side for `STEPS` steps, fewer if `seconds` are over, and report its figures."""
    deadline = time.perf_counter() + seconds
    release_memory(device)
    model = random_model(TINY if tiny else case.model, device)
    if case.lora_rank:
        model = with_adapters(model, adapter_settings({"rank": case.lora_rank}), seed=0)
        model.to(model.dtype)
    groups = make_batch(case, tiny=tiny)
    work = work_of(groups, model)  # before a trainer changes the model
    steps = trl_steps if side.settings is None else gymnast_steps
    times = steps(case, model, side, groups, device, lambda: time.perf_counter() >= deadline)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    weights = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    step_s = statistics.median(times[1:] or times)
    measured = Measured(step_s, peak, weights, card_name(device))
    found[case.name, side.title] = measured
    report(case, side, work, measured, len(times), peak_flops(model.device, model.dtype))


def make_batch(case: Case, *, tiny: bool) -> list[Group]:
    """Return the episodes of a case, with random tokens and rewards."""
    vocabulary = 900 if tiny else 150_000  # below that of the model
    number, size = (4, 4) if tiny else (GROUPS, GROUP_SIZE)
    if case.name in BATCHES:
        return batch(case.name, number, size, vocabulary, shorter=10 if tiny else 1)
    draw, prompt = random.Random(case.name), 16

    def tokens(count: int) -> list[int]:
        return [draw.randrange(10, vocabulary) for _ in range(count)]

    lengths = [length // 256 for length in case.lengths] if tiny else case.lengths
    return [Group(tokens(prompt), [Episode([tokens(each - prompt)], 1.0)]) for each in lengths]


def gymnast_steps(
    case: Case,
    model: Any,
    side: Side,
    groups: list[Group],
    device: str,
    ended: Callable[[], bool],
) -> list[float]:
    """Take steps of Gymnast's learner; return the seconds of each."""
    assert side.settings is not None
    learner = Learner(
        model,
        Accelerator(cpu=device == "cpu"),
        make_algorithm("grpo"),
        side.settings,
        reward_weights={},
        temperature=1.0,
        seed=0,
    )
    trajectories = trajectories_of(groups, model)
    lengths = [len(each.ids) for group in trajectories for each in group]
    choice = learner.prepare(max(lengths), sum(lengths))
    Figure(f"{case.name}, {side.title}", SIZES, choice.tokens, "", choice.activations).report()
    times: list[float] = []
    with learner.joined():
        while len(times) < STEPS and not (len(times) > 1 and ended()):
            synchronize(device)
            started = time.perf_counter()
            if len(groups[0].episodes) > 1:
                metrics = learner.update(trajectories, len(times)).metrics
            else:  # an episode alone has no advantage
                metrics = learner.imitate([each for (each,) in trajectories], len(times))
            synchronize(device)
            times.append(time.perf_counter() - started)
            if not metrics["updates/taken"]:
                raise RuntimeError(f"no step was taken: {metrics}")
    return times


def trl_steps(
    case: Case,
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
        groups_per_microbatch=side.groups_per_microbatch,
        ended=ended,
    )
    trainer.train()
    return [cost.cost.wall_s for cost in trl.costs]


def trajectories_of(groups: list[Group], model: Any) -> list[list[Trajectory]]:
    """Return the episodes as Gymnast's learner takes them."""
    uniform = -math.log(model.config.vocab_size)  # about what random weights give every token
    return [
        [
            group.trajectory(member, [uniform] * sum(episode.mask))
            for member, episode in enumerate(group.episodes)
        ]
        for group in groups
    ]


def work_of(groups: list[Group], model: Any) -> Computed:
    """Count what a step computes by Gymnast, every group packed by itself."""
    batches = [
        micro_batch(
            [CreditedTrajectory(each, torch.ones(each.steps)) for each in group],
            torch.device("cpu"),
        )
        for group in trajectories_of(groups, model)
    ]
    return count(batches, ModelFlops.of(model, packed=True))


def report(
    case: Case, side: Side, work: Computed, measured: Measured, steps: int, peak: float | None
) -> None:
    """Report the figures of one side.

    Args:
        case: What was measured.
        side: By what.
        work: Of a step.
        measured: What it took.
        steps: How many steps were taken.
        peak: The FLOP/s of the device, where they are known.
    """
    title, step_s = f"{case.name}, {side.title}", measured.step_s
    goals = {FAST: case.step_s, LEAN: case.lean_s}
    note = f"median of {steps - 1} after the first" if steps > 1 else "the first step alone"
    goal = _compare(goals.get(side), step_s, "s", measured.card, at_least=False)
    Figure(title, STEP, round(step_s, 4), "s", note, goal).report()
    rate = work.tokens / step_s
    goal = _compare(case.rate, rate, "tokens/s", measured.card)
    Figure(title, "rate", round(rate, 1), "tokens/s", "", goal).report()
    if peak is not None:
        note, share = f"of {peak:.3g} FLOP/s", work.nominal_flops / step_s / peak
        goal = _compare(case.mfu, share, "", measured.card)
        Figure(title, MFU, round(share, 4), "", note, goal).report()
        if side.settings is not None:
            share = work.actual_flops / step_s / peak
            Figure(title, "MFU, of what is computed", round(share, 4), "", note).report()
    if measured.memory_gib:
        Figure(title, MEMORY, round(measured.memory_gib, 2), "GiB").report()


def report_ratios(case: Case, found: dict[tuple[str, str], Measured], device: str) -> None:
    """Report Gymnast's time and memory as shares of TRL's, where both were measured."""
    card = card_name(device)
    theirs = [found[case.name, side.title] for side in TRL if (case.name, side.title) in found]
    if not theirs:
        return
    fastest = min(theirs, key=lambda each: each.step_s)
    for side in (FAST, LEAN):
        ours = found.get((case.name, side.title))
        if ours is None:
            continue
        title, share = f"{case.name}, {side.title}", ours.step_s / fastest.step_s
        goal = _compare(case.of_trl if side is FAST else None, share, "", card, at_least=False)
        Figure(title, "time / TRL's", round(share, 3), "", "", goal).report()
        if side is LEAN and device == "cuda":
            least = min(each.memory_gib for each in theirs)
            allowed = least + MOMENTS_AND_MASTERS_BYTES * ours.weights / 2**30
            share = ours.memory_gib / allowed
            note = f"TRL's {least:.2f} GiB and {MOMENTS_AND_MASTERS_BYTES} bytes a weight"
            goal = _compare(1.0, share, "", card, at_least=False)
            Figure(title, "peak memory / allowed", round(share, 3), "", note, goal).report()


def _compare(
    goal: float | None, value: float, unit: str, card: str, *, at_least: bool = True
) -> str:
    return "" if goal is None else Goal(goal, at_least=at_least).compare(value, unit, card)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all sides of all cases and report their figures; return 1 if one failed."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE")
    parser.add_argument("--seconds", type=float, default=float("inf"), help=SECONDS_HELP)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny batch: does everything run?")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("gymnast").setLevel(logging.INFO)  # kernels, and the sizes that are chosen
    deadline = deadline_after(options.seconds)
    cases = [case for case in CASES if case.name in options.cases]
    pairs = [(case, side) for case in cases for side in case.sides]
    pairs.sort(key=lambda pair: pair[1].settings is None)  # TRL last: see `Case.sides`
    found: dict[tuple[str, str], Measured] = {}
    failed = False
    for left, (case, side) in zip(range(len(pairs), 0, -1), pairs, strict=True):
        title = f"{case.name}, {side.title}"
        if side.settings is None and importlib.util.find_spec("trl") is None:
            Figure(title, STEP, None, "s", "TRL is not installed").report()
            continue
        seconds = (deadline - time.perf_counter()) / left
        if seconds <= 0:
            Figure(title, STEP, None, "s", "no time was left").report()
            continue
        run = partial(measure, case, side, found, options.device, seconds, tiny=options.tiny)
        failed |= not report_case(title, STEP, "s", run)
        gc.collect()
    for case in cases:
        report_ratios(case, found, options.device)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
