"""What a step of an episode costs: a tool call is read, checked and run, its result is written.

    python benchmarks/step.py                            all sides, a quarter of an hour
    python benchmarks/step.py --only gymnast trl         some of them
    python benchmarks/step.py --quick                    a few episodes: does everything run?
    python benchmarks/step.py --profile                  where Gymnast's time goes

All sides play the same calls: turns of 64 tokens with one call each, whose tool does nothing and
answers with 80 tokens; 8 calls an episode, prompts of 300 and of 8,000 tokens. What each does in a
step is at the top of its module. The sides take turns in three rounds, and the table has of each
side the round with the lowest median of processor time, since other work on a machine only adds.
TRL is in the `bench` extra; verifiers and GEM get an environment of their own in `--environments`,
from the package index, and what cannot be installed is said.
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
from collections.abc import Iterator, Sequence
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
PROMPT_TOKENS = (300, 8000)
EPISODES, WARMUP, QUICK = 36, 4, 18
ENVIRONMENTS = Path.home() / ".cache" / "gymnast" / "step-peers"


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


def play(side: str, work: Workload, environments: Path) -> Sequence[Spent] | str:
    """Play a side in a fresh process."""
    if side in PEERS:
        return play_peer(side, work, environments)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as process:
        return process.submit(play_here, side, work).result()


def rows(sides: Sequence[str], work: Workload, rounds: int, environments: Path) -> Iterator[str]:
    """The rows of a table: of each side the round with the lowest median of processor time."""
    found: dict[str, list[Spent] | str] = {}
    for number in range(rounds):
        for side in sides:
            played = play(side, work, environments)
            if isinstance(played, str):
                found[side] = played
            else:
                for spent in played:
                    kept = found.setdefault(spent.side, [])
                    assert isinstance(kept, list)
                    kept.append(spent)
            print(f"round {number + 1} of {rounds}: {side}", file=sys.stderr, flush=True)
    for name, of_rounds in found.items():
        if isinstance(of_rounds, str):
            yield f"| {name} | {of_rounds} |"
        else:
            best = min(of_rounds, key=lambda spent: statistics.median(spent.cpu_ms))
            yield line(best, WARMUP * len(best.wall_ms) // len(work.turns))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", nargs="+", choices=[*HERE, *PEERS], default=[*HERE, *PEERS])
    options.add_argument("--quick", action="store_true", help="in small: does everything run?")
    options.add_argument("--rounds", type=int, default=3, help="in which the sides take turns")
    options.add_argument("--profile", action="store_true", help="of Gymnast's side alone")
    options.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    chosen = options.parse_args(arguments)
    print(conditions("cpu", 1))
    episodes, rounds = (QUICK, 1) if chosen.quick else (EPISODES, chosen.rounds)
    for tokens in PROMPT_TOKENS:
        with tempfile.TemporaryDirectory() as folder:
            work = workload(episodes, tokens, Path(folder))
            if chosen.profile:
                profile(work)
                continue
            print(f"\nprompt of {tokens:,} tokens; ms a step, and tokens", flush=True)
            print("| | CPU p50 | p95 | wall p50 | p95 | read | written |")
            print("| --- | --- | --- | --- | --- | --- | --- |")
            for row in rows(chosen.only, work, rounds, chosen.environments):
                print(row, flush=True)


if __name__ == "__main__":
    main()
