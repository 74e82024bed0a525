"""Run the parts of `benchmarks/gpu.sh` within five minutes, and make one table of their figures.

Every part runs in a process group of its own and gets its share of the time that is left, so time
that one part does not use goes to those after it. A part that fails or is stopped is reported in
the table with the last lines that it printed; the others still run, and the exit code is 1.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpu_peers
from gpu_figures import Figure, parse_figure
from gpu_machine import COMMIT_FILE, WITHOUT_WEIGHTS, Setup, SetupError, source_digest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks/RESULTS_GPU.md"
TOTAL_S = 300.0
RESERVE_S = 5.0  # for the table, and for a last part that ends slowly
KILL_S = 5.0  # between a part's interrupt and its end by force
# In this order; the job's goal is 60 s. All tests take some minutes, and the job with code has a
# goal of five: `--only` gives a part all the time.
SHARES = {
    "exactness": 40.0,
    "sampling": 80.0,
    "job": 82.0,
    "training": 45.0,
    "code": 13.0,
    "tests": 30.0,
}
TAIL_LINES = 15
EXACTNESS = (
    "tests/agents/engine/test_paged_on_gpu.py",
    "tests/trainers/learner/policy/test_kernel_check.py",
)
PYTEST_OPTIONS = ("-p", "no:cacheprovider", "-p", "no:benchmark")
_COUNT = re.compile(r"(\d+) (passed|failed|error|skipped)")

_PROBE = """
import importlib.metadata, json, os, platform, torch
versions = {}
for name in ("torch", "triton", "transformers", "trl", "liger-kernel"):
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        versions[name] = "none"
cuda = torch.cuda.is_available()
card = torch.cuda.get_device_properties(0) if cuda else None
print(json.dumps({
    "card": f"{card.name} ({card.total_memory / 2**30:.0f} GiB)" if card else None,
    "cores": os.cpu_count(), "python": platform.python_version(), "versions": versions,
}))
"""


@dataclass
class PartResult:
    """The outcome of one part.

    Attributes:
        name: The part.
        command: The command that ran, for the page.
        seconds: The seconds that it took.
        figures: The figures that it reported.
        failure: The reason for which it counts as failed; "" if it did not fail.
        tail: The last lines that it printed.
    """

    name: str
    command: str
    seconds: float = 0.0
    figures: list[Figure] = field(default_factory=list)
    failure: str = ""
    tail: list[str] = field(default_factory=list)


def run_part(name: str, command: Sequence[str], env: Mapping[str, str], limit: float) -> PartResult:
    """Run one part, print its lines as they come, and collect its figures.

    Args:
        name: The part.
        command: The command.
        env: Its environment.
        limit: Seconds until it is interrupted; `KILL_S` later it is killed.
    """
    shown = shlex.join(["python", *command[1:]])
    print(f"== {name}: {shown} (at most {limit:.0f} s)", flush=True)
    result, started = PartResult(name, shown), time.monotonic()
    last: deque[str] = deque(maxlen=TAIL_LINES)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    timers = [
        threading.Timer(limit, _signal_group, (process, signal.SIGINT)),
        threading.Timer(limit + KILL_S, _signal_group, (process, signal.SIGKILL)),
    ]
    for timer in timers:
        timer.start()
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            figure = parse_figure(line)
            print(f"   {figure}" if figure else line.rstrip(), flush=True)
            if figure:
                result.figures.append(figure)
            else:
                last.append(line.rstrip()[:300])
    code = process.wait()
    for timer in timers:
        timer.cancel()
    _signal_group(process, signal.SIGKILL)  # what the part left running
    result.seconds = time.monotonic() - started
    if result.seconds >= limit:
        result.failure = f"stopped after {limit:.0f} s"
    elif code:
        result.failure = f"exit code {code}"
    if name in ("exactness", "tests"):
        result.figures += count_tests(last)
    result.tail = list(last)
    return result


def _signal_group(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, number)


def count_tests(lines: Sequence[str]) -> list[Figure]:
    """Read the counts from pytest's last line."""
    summary = next((line for line in reversed(lines) if " in " in line and _COUNT.search(line)), "")
    return [
        Figure("pytest -m gpu", kind, float(number)) for number, kind in _COUNT.findall(summary)
    ]


def part_command(
    name: str, python: str, device: str, jobs: Sequence[str], limit: float
) -> list[str]:
    """Return the command of a part.

    Args:
        name: A name of `SHARES`.
        python: The interpreter.
        device: "cuda", or "cpu" for a tiny trial.
        jobs: The YAML of the job, and that of the one with code in a sandbox.
        limit: The part's seconds; programs that can end by themselves get a little less.
    """
    own = ["--device", device, "--seconds", f"{max(1.0, 0.93 * limit - 5):.0f}"]
    tiny = ["--tiny"] if device == "cpu" else []
    job, code = jobs
    # -P: the folder `gymnast` of a checkout is not the installed package.
    pytest = [python, "-P", "-m", "pytest", "-q", "-m", "gpu", *PYTEST_OPTIONS]
    return {
        "exactness": [*pytest, *EXACTNESS],
        "tests": pytest,
        "sampling": [python, "benchmarks/gpu_sampling.py", *own, *tiny],
        "training": [python, "benchmarks/gpu_training.py", *own, *tiny],
        "job": [python, "benchmarks/gpu_job.py", job, *own],
        "code": [python, "benchmarks/gpu_job.py", code, *own],
    }[name]


def commit_name() -> str:
    """Name the commit of the tree: from git, or from what gpu_wheels.sh wrote, or "unknown"."""
    if (ROOT / ".git").exists():
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=8"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if described.returncode == 0:
            return described.stdout.strip()
    if COMMIT_FILE.exists():
        commit, digest = COMMIT_FILE.read_text().split()
        return commit if digest == source_digest() else f"{commit}, changed since"
    return "unknown"


def machine_lines(probe: Mapping[str, Any]) -> list[str]:
    """Describe the machine and the versions, for the table."""
    driver = "none"
    if probe["card"]:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            driver = subprocess.check_output(query, text=True).splitlines()[0].strip()
        except (OSError, subprocess.CalledProcessError, IndexError):
            driver = "unknown"
    versions = ", ".join(f"{name} {version}" for name, version in probe["versions"].items())
    return [
        f"{probe['card'] or 'CPU'}, driver {driver}, {probe['cores']} CPU cores, "
        f"Python {probe['python']}, {versions}.",
        f"Commit {commit_name()}.",
    ]


def make_page(machine: Sequence[str], results: Sequence[PartResult], seconds: float) -> str:
    """Return the Markdown page: the machine, one table of all figures, and the failures."""
    rows = []
    for result in results:
        for figure in result.figures:
            rows.append(
                (result.name, figure.case, figure.name, figure.shown, figure.goal, figure.note)
            )
        status = f"FAILED: {result.failure}" if result.failure else "done"
        rows.append((result.name, "whole part", "time", f"{result.seconds:.0f} s", "", status))
    heads = ("part", "case", "figure", "value", "goal", "note")
    table = [heads, ("---",) * len(heads), *rows]
    lines = [
        "# Results on a GPU",
        "",
        *machine,
        f"Written by `benchmarks/gpu.sh` in {seconds:.0f} s.",
        "",
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table),
    ]
    for result in results:
        if result.failure:
            lines += ["", f"## {result.name}: {result.failure}", "", f"`{result.command}`", ""]
            lines += ["```text", *(line.replace("```", "'''") for line in result.tail), "```"]
    lines += ["", *gpu_peers.section()]
    return "\n".join(lines) + "\n"


def write_page(page: str) -> None:
    """Write the page to its place, and into the folder `$OUT` if that is set."""
    folders = [PAGE.parent, *map(Path, filter(None, [os.environ.get("OUT")]))]
    for folder in folders:
        (folder / PAGE.name).write_text(page)
        print(f"gpu.sh: wrote {folder / PAGE.name}")


def part_seconds(left: float, names: Sequence[str]) -> float:
    """Return the share of the time that is left for the first of the parts that are to come."""
    return max(1.0, left * SHARES[names[0]] / sum(SHARES[name] for name in names))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line of gpu.sh."""
    parser = argparse.ArgumentParser(prog="gpu.sh", description="Test and measure on a GPU.")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        choices=SHARES,
        metavar="PART",
        help=f"run these parts alone: {', '.join(SHARES)}",
    )
    parser.add_argument(
        "--device",
        choices=["cuda", "cpu"],
        default="cuda",
        help="cpu: try the script with tiny measurements, without writing the page",
    )
    parser.add_argument(
        "--seconds", type=float, default=TOTAL_S, help="of everything together (300)"
    )
    options = parser.parse_args(arguments)
    if not 0 < options.seconds < float("inf"):
        parser.error(f"--seconds: must be a number above 0, got {options.seconds}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Set the machine up, run the parts, print the table and write the page."""
    started = time.monotonic()
    options = parse_options(arguments)
    names = [name for name in SHARES if name in (options.only or SHARES)]
    probed = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True)
    on_gpu = probed.returncode == 0 and json.loads(probed.stdout)["card"] is not None
    if options.device == "cuda" and not on_gpu:
        print(
            f"gpu.sh: {sys.executable} sees no CUDA device through PyTorch; nothing was measured",
            file=sys.stderr,
        )
        return 1
    try:
        setup = Setup.prepare(sys.executable)
    except SetupError as error:
        print(f"gpu.sh: {error}", file=sys.stderr)
        return 1
    probe = json.loads(subprocess.check_output([setup.python, "-c", _PROBE], text=True))
    machine = machine_lines(probe)
    print("\n".join([*machine, *setup.notes]), flush=True)
    jobs = [WITHOUT_WEIGHTS] * 2 if options.device == "cpu" else [setup.job, setup.code]
    if WITHOUT_WEIGHTS in jobs and not options.only:
        names.remove("code")  # it would be the same job again
    results: list[PartResult] = []
    for index, name in enumerate(names):
        left = options.seconds - RESERVE_S - KILL_S - (time.monotonic() - started)
        limit = part_seconds(left, names[index:])
        command = part_command(name, setup.python, options.device, jobs, limit)
        results.append(run_part(name, command, setup.env, limit))
    page = make_page([*machine, *setup.notes], results, time.monotonic() - started)
    print(f"\n{page}", flush=True)
    if options.device == "cuda":
        write_page(page)
    return int(any(result.failure for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
