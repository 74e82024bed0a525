"""What playing ahead of training saves, and what it costs: reward against steps and wall time.

    python benchmarks/staleness.py                        all jobs, one after another, and a figure
    python benchmarks/staleness.py --resume               only those without a result
    python benchmarks/staleness.py --only 1-0 2-0         staleness 1 and 2, seed 0
    python benchmarks/staleness.py --table                the table and figure of what is there
    python benchmarks/staleness.py --quick --only 0-0     a tiny model, three steps: does it run?
    python benchmarks/staleness.py --agent http://127.0.0.1:8000    sampled by a vLLM server
    python benchmarks/staleness.py --set trainer.steps=15 trainer.learning_rate=2e-4 --output DIR

Jobs are named STALENESS-SEED. Each trains SmolLM2-135M on examples/arithmetic.yaml with tools that
take 0.5 s (`tasks/waiting.py`), eight steps instead of 15, sampled by a copy of the model on the
CPU or by a vLLM server, in a process of its own, and leaves NAME.json in `--output`. Evaluations,
one before and one after, are not timed.
"""

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from learning import commit, given
from learning_curve import Curve
from learning_gymnast import run as train
from learning_job import make_job
from rollout import conditions

HERE = Path(__file__).parent
RESULTS = HERE / "staleness"
STALENESS, SEEDS = (0, 1, 2), (0, 1, 2)
JOBS = [f"{staleness}-{seed}" for staleness in STALENESS for seed in SEEDS]
TOOL_S, STEPS, LEARNING_RATE = 0.5, 8, 4e-4
QUICK: Mapping[str, Any] = {
    "model.name": "tiny:",
    "trainer.steps": 3,
    "trainer.rows_per_step": 2,
    "algorithm.group_size": 2,
    "sampling.max_new_tokens": 8,
    "evaluation.rows": 2,
}
HEAD = ("staleness", "seed", "reward before", "after", "seconds", "CPU seconds", "last steps' mean")


def settings_of(name: str, agent: str, *, quick: bool) -> dict[str, Any]:
    """What is changed in examples/arithmetic.yaml.

    Args:
        name: Of the job.
        agent: A device for a copy of the model, or the URL of a vLLM server.
        quick: In small.
    """
    staleness, seed = map(int, name.split("-"))
    copy = {"backend": "transformers", "device": agent}
    served = {"backend": "vllm", "urls": [agent]}
    return {
        "environment.id": f"{HERE / 'tasks/waiting.py'}:WaitingArithmetic",
        "environment.tool_s": TOOL_S,
        "agent": served if "://" in agent else copy,
        "trainer.steps": STEPS,
        "trainer.learning_rate": LEARNING_RATE,
        "trainer.max_staleness": staleness,
        "evaluation.every_steps": 0,
        "seed": seed,
        **(QUICK if quick else {}),
    }


def run(settings: Mapping[str, Any], threads: int) -> Curve:
    """Do one job in this process."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # Transformers' own
    with tempfile.TemporaryDirectory() as folder:
        curve = train(make_job(given({**settings, "output_dir": f"{folder}/run"})))
    steps, rate, agent = map(settings.get, ("trainer.steps", "trainer.learning_rate", "agent"))
    told = f"{conditions('cpu', threads)}; {steps} steps at {rate:g}; {agent}"
    return replace(curve, commit=commit(), conditions=told)


def table(curves: Mapping[str, Curve]) -> str:
    """A line for each job."""
    lines = [HEAD, ["---"] * len(HEAD)]
    for name, curve in curves.items():
        end, last = curve.steps[-1], [step.reward or 0.0 for step in curve.steps[-3:]]
        times = (f"{end.wall_s:.0f}", f"{end.cpu_s:.0f}", f"{mean(last):.3f}")
        lines.append([*name.split("-"), f"{curve.before:.3f}", f"{curve.after:.3f}", *times])
    text = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([*text, "", *sorted({f"{c.commit}; {c.conditions}" for c in curves.values()})])


def save_figure(curves: Mapping[str, Curve], path: Path) -> None:
    """Reward against steps and against wall time: a colour for each staleness."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, (by_step, by_time) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    seen = set()
    for name, curve in curves.items():
        staleness = name.partition("-")[0]
        label = None if staleness in seen else f"max_staleness {staleness}"
        seen.add(staleness)
        rewards = [step.reward for step in curve.steps]
        style = {"color": f"C{staleness}", "alpha": 0.8, "marker": ".", "label": label}
        by_step.plot(range(1, len(rewards) + 1), rewards, **style)
        by_time.plot([step.wall_s / 60 for step in curve.steps], rewards, **style)
    by_step.set(xlabel="step", ylabel="mean reward of a step", ylim=(-0.02, 1.02))
    by_time.set(xlabel=f"minutes of training, tools of {TOOL_S:g} s", ylim=(-0.02, 1.02))
    by_step.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the jobs; print the table, and draw the figure."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", nargs="+", choices=JOBS, default=JOBS, metavar="JOB")
    options.add_argument("--resume", action="store_true", help="skip jobs that have a result")
    options.add_argument("--table", action="store_true", help="run nothing")
    options.add_argument("--quick", action="store_true", help="in small: does everything run?")
    options.add_argument("--agent", default="cpu", help="a device, or the URL of a vLLM server")
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of the YAML")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--output", type=Path, default=RESULTS)
    chosen = options.parse_args(arguments)
    for name in [] if chosen.table else chosen.only:
        path = chosen.output / f"{name}.json"
        if chosen.resume and path.exists():
            continue
        print(f"\n{name}", flush=True)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            settings = settings_of(name, chosen.agent, quick=chosen.quick)
            changed = (each.partition("=") for each in chosen.set)
            settings |= {key: json.loads(value) for key, _, value in changed}
            process.submit(run, settings, chosen.threads).result().save(path)
    paths = {name: chosen.output / f"{name}.json" for name in JOBS}
    curves = {name: Curve.load(path) for name, path in paths.items() if path.exists()}
    print(f"\n{table(curves)}")
    if curves and importlib.util.find_spec("matplotlib"):
        save_figure(curves, chosen.output / "staleness.png")
        print(f"figure: {chosen.output / 'staleness.png'}")


if __name__ == "__main__":
    main()
