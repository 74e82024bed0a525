"""What a multi-turn rollout costs: Gymnast beside TRL, on the same conversations.

    python benchmarks/rollout.py                      all scenarios, about a quarter of an hour
    python benchmarks/rollout.py --only turns mix     some of them
    python benchmarks/rollout.py --quick              a small smoke test, without targets
    python benchmarks/rollout.py --plot rollout.png   cost against turns

Every scenario runs in a process of its own, where both sides take turns, and prints medians. TRL
and matplotlib are in the `bench` extra. `rollout_gymnast.py` and `rollout_trl.py` drive the sides
and say what is timed; `rollout_script.py` makes the conversations.
"""

import argparse
import multiprocessing
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

import torch

import rollout_engine
import rollout_loop
import rollout_peers
import rollout_rounds
from rollout_plot import save_plot
from rollout_report import Report

Scenario = Callable[[bool, str], Report]
SCENARIOS: dict[str, Scenario] = {
    "turns": rollout_peers.turns,
    "slow_tool": rollout_peers.slow_tool,
    "mix": rollout_peers.mix,
    "growth": rollout_engine.growth,
    "decode": rollout_engine.decode,
    "smollm2": rollout_engine.smollm2,
    "overhead": rollout_loop.overhead,
    "rounds": rollout_rounds.rounds,
}


def run(name: str, quick: bool, device: str, threads: int) -> Report:
    """Run one scenario in this process."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", FutureWarning)  # TRL's and Transformers' own
    torch.manual_seed(0)
    return SCENARIOS[name](quick, device)


def conditions(device: str, threads: int) -> str:
    """The conditions that the figures depend on."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers", "trl"))
    load = os.getloadavg()[0]
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return (
        f"{where}; {os.cpu_count()} cores, {threads} torch threads, load before: "
        f"{load:.1f}; Python {platform.python_version()}, {versions}"
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    options.add_argument("--quick", action="store_true", help="in small: does everything run?")
    options.add_argument("--plot", type=Path, help="where to write the plot (PNG)")
    options.add_argument("--device", default="cpu", help="cpu or cuda")
    options.add_argument(
        "--threads",
        type=int,
        default=torch.get_num_threads(),
        help="torch threads of both sides; 1 on a busy machine, where threads wait for each other",
    )
    chosen = options.parse_args(arguments)
    print(conditions(chosen.device, chosen.threads))
    reports = []
    for name in chosen.only:
        started = time.perf_counter()
        # A fresh process for each: nothing is warmed up or left behind for the next scenario.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            report = process.submit(run, name, chosen.quick, chosen.device, chosen.threads).result()
        reports.append(report)
        print(f"\n[{name}, {time.perf_counter() - started:.0f} s] {report}", flush=True)
    targets = [target for report in reports for target in report.targets]
    print(f"\n{sum(target.met for target in targets)} of {len(targets)} targets met")
    points = [point for report in reports for point in report.points]
    if chosen.plot and points:
        save_plot(points, chosen.plot)


if __name__ == "__main__":
    main()
