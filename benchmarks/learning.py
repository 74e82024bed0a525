"""How fast models learn: toolsets that they cannot use at first, credit, sampling, algorithms.

    python benchmarks/learning.py                        all jobs, one after another, and the tables
    python benchmarks/learning.py --resume               only those without a result
    python benchmarks/learning.py --only shop-warmup-0 trl-0
    python benchmarks/learning.py --table                the tables and plots of what is there
    python benchmarks/learning.py --quick --only main-0  two small steps: does it run?

`learning_jobs.py` lists the jobs; what compares with TRL runs only by name. They train
SmolLM2-135M, and those named `letters-...` a tiny model of random weights. Each job has a process
of its own and leaves NAME.json in `--output`; those of benchmarks/learning/ are what RESULTS.md
shows. Evaluations are not timed. On two cores a job takes some minutes, TRL's a good part of an
hour, and all of them without TRL some four hours.
"""

import argparse
import importlib.util
import json
import multiprocessing
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from learning_curve import Curve
from learning_job import make_job
from learning_jobs import DEFAULT, JOBS, ROOT, Settings
from learning_report import save_plots, tables
from rollout import conditions

RESULTS = Path(__file__).parent / "learning"
QUICK = {
    "trainer.steps": 2,
    "trainer.rows_per_step": 2,
    "algorithm.group_size": 2,
    "evaluation.rows": 2,
}


def run(name: str, threads: int, quick: bool = False) -> Curve:
    """Do one job in this process."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # TRL's and Transformers' own
    measured, job = commit(), JOBS[name]
    side = importlib.import_module(job.side)
    with tempfile.TemporaryDirectory() as folder:
        settings = {**job.settings, **(QUICK if quick else {}), "output_dir": f"{folder}/run"}
        if quick and make_job(given(settings), job.config).config.warmup is not None:
            settings |= {"warmup.steps": 1, "warmup.rows_per_step": 2}
        curve: Curve = side.run(make_job(given(settings), job.config))
    return replace(curve, commit=measured, conditions=conditions("cpu", threads))


def given(settings: Settings) -> list[str]:
    """Settings as the command line takes them."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def commit() -> str:
    """The last commit that changed code, "+" behind it where code has changed since."""
    code = ["--", ".", ":!benchmarks/learning", ":!docs", ":!*.md"]

    def git(*command: str) -> str:
        done = subprocess.run(["git", *command, *code], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("log", "-1", "--format=%h") + ("+" if changed else "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the jobs, and print the tables."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", nargs="+", choices=list(JOBS), default=DEFAULT, metavar="JOB")
    options.add_argument("--resume", action="store_true", help="skip jobs that have a result")
    options.add_argument("--table", action="store_true", help="run nothing")
    options.add_argument("--quick", action="store_true", help="in small: does everything run?")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--output", type=Path, default=RESULTS)
    chosen = options.parse_args(arguments)
    print(conditions("cpu", chosen.threads))
    for name in [] if chosen.table else chosen.only:
        path = chosen.output / f"{name}.json"
        if chosen.resume and path.exists():
            continue
        print(f"\n{name}", flush=True)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            process.submit(run, name, chosen.threads, chosen.quick).result().save(path)
    curves = {
        name: Curve.load(path) for name in JOBS if (path := chosen.output / f"{name}.json").exists()
    }
    print(f"\n{tables(curves)}")
    if importlib.util.find_spec("matplotlib"):
        for path in save_plots(curves, chosen.output):
            print(f"plot: {path}")


if __name__ == "__main__":
    main()
