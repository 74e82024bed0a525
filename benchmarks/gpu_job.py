"""A training run of the command line, end to end, within a time limit.

    python benchmarks/gpu_job.py examples/arithmetic.yaml --seconds 60
    python benchmarks/gpu_job.py examples/tiny.yaml --device cpu --seconds 60

`gymnast train` runs in a process of its own and is interrupted as by Ctrl-C when the time is over.
The figures come from the run's metrics.jsonl, so those of a run that was cut short count its
finished steps, and say nothing of the goal.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from gpu_figures import Figure, Goal
from gpu_models import card_name
from gymnast.errors import GymnastError
from gymnast.sandboxes import open_sandbox

GOALS = {  # seconds of the whole command
    "arithmetic.yaml": Goal(60.0, at_least=False),
    "code.yaml": Goal(300.0, at_least=False),
}
SAVE_S = 10.0  # for what an interrupted run still saves, within the limit


def train(config: Path, folder: Path, device: str, seconds: float) -> tuple[int, float, bool]:
    """Run `gymnast train`.

    Args:
        config: The run's YAML.
        folder: The run's output folder.
        device: "cuda", or "cpu" to hide the GPUs from the run.
        seconds: The run is interrupted after this time, less what it may take to save.

    Returns:
        The exit code, the seconds that it took, and True if it was interrupted.
    """
    # -P: the folder `gymnast` of a checkout is not the installed package.
    command = [sys.executable, "-P", "-m", "gymnast", "train", str(config), f"output_dir={folder}"]
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    started, interrupted = time.perf_counter(), False
    with subprocess.Popen(command, env=os.environ | hidden) as process:
        try:
            process.wait(max(1.0, seconds - SAVE_S))
        except subprocess.TimeoutExpired:
            interrupted = True
            process.send_signal(signal.SIGINT)
            try:
                process.wait(SAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
    return process.returncode, time.perf_counter() - started, interrupted


def strongest_sandbox(config: Path) -> str:
    """Name the sandbox that a run of this config opens, for the note; "" if it opens none."""
    environment = yaml.safe_load(config.read_text()).get("environment", {})
    if "sandbox" not in environment:
        return ""
    try:
        with open_sandbox(environment["sandbox"]) as sandbox:
            return type(sandbox).__name__
    except GymnastError as error:
        return f"none: {error}"


def compare_with_goal(name: str, seconds: float, finished: bool, card: str) -> str:
    """Compare the seconds of a whole command with its goal; "" for a job without one.

    Args:
        name: Of the config.
        seconds: That it took.
        finished: False if it was interrupted or failed, which meets no goal.
        card: The name of the device.
    """
    goal = GOALS.get(name)
    return goal.compare(seconds if finished else None, "s", card) if goal else ""


def report(
    case: str, metrics: Sequence[dict[str, Any]], seconds: float, ending: str, goal: str
) -> None:
    """Report the figures of a run.

    Args:
        case: The name of the job.
        metrics: The lines of its metrics.jsonl.
        seconds: The seconds that it took.
        ending: The reason for which it ended.
        goal: Of the whole command.
    """
    steps = [line for line in metrics if "time/step_s" in line]
    rewards = [line["eval/reward/mean"] for line in metrics if "eval/reward/mean" in line]
    Figure(case, "whole command", round(seconds, 1), "s", ending, goal).report()
    Figure(case, "steps", len(steps)).report()
    for key, name, unit in (
        ("time/step_s", "a step", "s"),
        ("time/rollout_s", "a step, rollouts", "s"),
        ("time/train_s", "a step, training", "s"),
        ("tokens/per_s", "sampled", "tokens/s"),
    ):
        values = [line[key] for line in (steps[1:] or steps)]
        if values:
            which = "median of the steps after the first" if steps[1:] else "of the first step"
            Figure(case, name, round(statistics.median(values), 3), unit, which).report()
    held_out = {"reward before": rewards[:1], "reward after": rewards[1:][-1:]}
    for name, found in held_out.items():
        for reward in found:
            Figure(case, name, round(reward, 3), note="held-out rows").report()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and report its figures; return 1 if it failed or finished no step in time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args(arguments)
    case = f"gymnast train {options.config.parent.name}/{options.config.name}"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        code, seconds, interrupted = train(options.config, run, options.device, options.seconds)
        file = run / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
    metrics = [json.loads(line) for line in lines]
    failed = code != 0 and not interrupted
    ending = "interrupted by its time limit" if interrupted else "finished"
    ending = f"exit code {code}" if failed else ending
    sandbox = strongest_sandbox(options.config)
    finished, card = ending == "finished", card_name(options.device)
    goal = compare_with_goal(options.config.name, seconds, finished, card)
    note = f"{ending}; sandbox: {sandbox}" if sandbox else ending
    report(case, metrics, seconds, note, goal)
    finished_steps = sum("time/step_s" in line for line in metrics)
    return int(failed or not finished_steps)


if __name__ == "__main__":
    raise SystemExit(main())
