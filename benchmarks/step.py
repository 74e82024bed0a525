"""What a step of an episode costs: a tool call is read, checked and run, its result is written.

    python benchmarks/step.py                            all sides, some minutes
    python benchmarks/step.py --only gymnast trl         some of them
    python benchmarks/step.py --quick                    a few episodes: does everything run?
    python benchmarks/step.py --profile                  where Gymnast's time goes

All sides play the same calls: turns of 64 tokens with one call each, whose tool does nothing and
answers with 80 tokens; 8 calls an episode, prompts of 300 and of 8,000 tokens. What each does in a
step is at the top of its module. TRL is in the `bench` extra; verifiers and GEM get an environment
of their own in `--environments`, from the package index, and what cannot be installed is said.
"""

import argparse
import cProfile
import json
import multiprocessing
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

import torch

from rollout import conditions
from step_calls import Spent, Workload, workload

HERE = ("gymnast", "trl")
PEERS = {
    "gem": ["gem-llm==0.1.0", "tokenizers"],
    "verifiers": ["verifiers==0.4.0", "renderers==0.1.12", "uv"],
}
PROMPT_TOKENS = {"short": 300, "long": 8000}
EPISODES, WARMUP, QUICK = 68, 4, 20
ENVIRONMENTS = Path.home() / ".cache" / "gymnast" / "step-peers"
TARGET_MS = 1.0


def play_here(side: str, work: Workload) -> Sequence[Spent]:
    """Play a side in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # TRL's and Transformers' own
    found: Sequence[Spent] = import_module(f"step_{side}").play(work)
    return found


def play_peer(side: str, work: Workload, environments: Path) -> Sequence[Spent] | str:
    """Play a side in an environment of its own; a sentence where that cannot be done."""
    folder = environments / side
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *PEERS[side]]
        installed = subprocess.run(install, capture_output=True, text=True)
        if installed.returncode:
            return f"cannot be installed: {last_line(installed.stderr)}"
        (folder / "installed").touch()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "workload.json")
        work.save(path)
        program = shutil.copy(Path(__file__).with_name(f"step_{side}.py"), temporary)
        ended = subprocess.run(
            [str(python), str(program), str(path)],
            capture_output=True,
            text=True,
            env=os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"},
        )
    if ended.returncode:
        return f"does not run: {last_line(ended.stderr)}"
    return [Spent(**one) for one in json.loads(last_line(ended.stdout))]


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def quantiles(values: Sequence[float]) -> str:
    """Median and 95th percentile."""
    p95 = statistics.quantiles(values, n=20, method="inclusive")[-1]
    return f"{statistics.median(values):.2f} | {p95:.2f}"


def line(spent: Spent, skipped: int) -> str:
    """A side's row of the table, without its first steps."""
    tokens = f"{spent.read:.0f} | {spent.written:.0f}" if spent.read else "text | text"
    cpu, wall = quantiles(spent.cpu_ms[skipped:]), quantiles(spent.wall_ms[skipped:])
    return f"| {spent.side} | {cpu} | {wall} | {tokens} |"


def profile(work: Workload) -> None:
    """Print the functions that take most of Gymnast's time."""
    profiler = cProfile.Profile()
    profiler.runcall(play_here, "gymnast", work)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", nargs="+", choices=[*HERE, *PEERS], default=[*HERE, *PEERS])
    options.add_argument("--quick", action="store_true", help="in small: does everything run?")
    options.add_argument("--profile", action="store_true", help="of Gymnast's side alone")
    options.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    chosen = options.parse_args(arguments)
    print(conditions("cpu", 1))
    episodes = QUICK if chosen.quick else EPISODES
    for name, tokens in PROMPT_TOKENS.items():
        with tempfile.TemporaryDirectory() as folder:
            work = workload(episodes, tokens, Path(folder))
            if chosen.profile:
                profile(work)
                continue
            print(f"\nprompt of {tokens:,} tokens ({name}); ms a step, and tokens")
            print("| | CPU p50 | p95 | wall p50 | p95 | read | written |")
            print("| --- | --- | --- | --- | --- | --- | --- |")
            for side in chosen.only:
                played: Sequence[Spent] | str
                if side in PEERS:
                    played = play_peer(side, work, chosen.environments)
                else:  # a fresh process for each
                    spawn = multiprocessing.get_context("spawn")
                    with ProcessPoolExecutor(1, spawn) as process:
                        played = process.submit(play_here, side, work).result()
                if isinstance(played, str):
                    print(f"| {side} | {played} |", flush=True)
                    continue
                for spent in played:
                    skipped = WARMUP * len(spent.wall_ms) // episodes
                    print(line(spent, skipped), flush=True)


if __name__ == "__main__":
    sys.exit(main())
