"""The README's main job by several algorithms and seeds, and by TRL's `GRPOTrainer`.

    python benchmarks/learning.py                        all runs, one after another, and the table
    python benchmarks/learning.py --only grpo-0 trl-0    some; none with a result is run again
    python benchmarks/learning.py --table                the table and the plot of these results
    python benchmarks/learning.py --quick --only grpo-0  two small steps: does it run?

A run is `ALGORITHM-SEED`. SmolLM2-135M, the same training rows in the same order, the same prompts
token by token, hyperparameters and reward on both sides (`learning_trl.py` says how); evaluations
before and after, both by Gymnast, are not timed. Each run has a process of its own and leaves
RUN.json in `--output`. On two cores a run of Gymnast takes some minutes, one of TRL a good part of
an hour.
"""

import argparse
import importlib.util
import multiprocessing
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from learning_job import Curve, make_job
from learning_report import save_plot, table
from rollout import conditions

ALGORITHMS = ("grpo", "rloo", "dr_grpo", "gspo", "trl")
SEEDS = (0, 1, 2)
RUNS = [f"{algorithm}-{seed}" for seed in SEEDS for algorithm in ALGORITHMS]
QUICK = (
    "trainer.steps=2",
    "trainer.rows_per_step=2",
    "algorithm.group_size=2",
    "evaluation.rows=2",
)


def run(name: str, threads: int, quick: bool) -> Curve:
    """Do one run in this process."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # TRL's and Transformers' own
    algorithm, seed = name.split("-")
    side = importlib.import_module("learning_trl" if algorithm == "trl" else "learning_gymnast")
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(
            [
                f"algorithm.name={'grpo' if algorithm == 'trl' else algorithm}",
                f"seed={seed}",
                f"output_dir={folder}/run",
                "evaluation.every_steps=0",
                *(QUICK if quick else ()),
            ]
        )
        curve: Curve = side.run(job)
        return curve


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the runs that have no result yet, and print the table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", nargs="+", choices=RUNS, default=RUNS, metavar="RUN")
    options.add_argument("--table", action="store_true", help="run nothing")
    options.add_argument("--quick", action="store_true", help="in small: does everything run?")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--output", type=Path, default=Path("runs/learning"))
    chosen = options.parse_args(arguments)
    print(conditions("cpu", chosen.threads))
    for name in [] if chosen.table else chosen.only:
        path = chosen.output / f"{name}.json"
        if path.exists():
            continue
        print(f"\n{name}", flush=True)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            process.submit(run, name, chosen.threads, chosen.quick).result().save(path)
    curves = {
        name: Curve.load(path) for name in RUNS if (path := chosen.output / f"{name}.json").exists()
    }
    print(f"\n{table(curves)}")
    if importlib.util.find_spec("matplotlib"):
        save_plot(curves, chosen.output / "learning.png")
        print(f"plot: {chosen.output / 'learning.png'}")


if __name__ == "__main__":
    main()
