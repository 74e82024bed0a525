"""The README's first command with other programs on its cores: a table of wall and CPU seconds.

    python benchmarks/busy_machine.py [--loops 2] [--limit 120] [KEY=VALUE ...]

The command is shortened: one step of 1 row by 8 episodes, and an evaluation of 8 rows before and
after it. It runs

- with the wait policy of the `gymnast` command, and with threads that spin as GNU OpenMP's own
  default has it;
- alone, and next to busy loops, one for each core by default.

Next to loops, a run that takes longer than `--limit` seconds is ended, and its row begins with ">".
The machine should have nothing else to do. The first run, which may have to fetch the model, is not
counted. On two cores it takes about five minutes.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHORT = ("trainer.steps=1", "trainer.rows_per_step=1", "evaluation.rows=8")
# A wait policy of the user's wins, so this is what torch does by itself.
POLICIES = {
    "sleeping soon (the command's)": {},
    "spinning (OpenMP's)": {"GOMP_SPINCOUNT": "300000"},
}
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Keep cores busy within the block."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(
    settings: list[str], variables: dict[str, str], limit_s: float
) -> tuple[bool, float, float]:
    """Run the command; returns whether it came to its end, its wall and its CPU seconds."""
    given = {name: value for name, value in os.environ.items() if name not in OWN} | variables
    config = str(ROOT / "examples/arithmetic.yaml")
    with tempfile.TemporaryDirectory() as folder:
        output = f"output_dir={folder}/run"
        command = [sys.executable, "-m", "gymnast", "train", config, "-q", *settings, output]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        process = subprocess.Popen(command, env=given, stdout=subprocess.DEVNULL)
        try:
            ended = process.wait(limit_s) == 0
            if not ended:
                raise SystemExit(f"{' '.join(command)}: failed")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = False
    wall_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended, wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("settings", nargs="*", default=[])
    options.add_argument("--loops", type=int, default=os.cpu_count())
    options.add_argument("--limit", type=float, default=120.0)
    given = options.parse_args()
    settings = [*SHORT, *given.settings]
    measure([*settings, "trainer.rows_per_step=1", "evaluation.rows=1"], {}, 3600.0)
    busy = f"{given.loops} loops: wall s"
    print(f"| threads that wait | alone: wall s | CPU s | {busy} | CPU s | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, variables in POLICIES.items():
        _, alone_s, alone_cpu_s = measure(settings, variables, 3600.0)
        with busy_loops(given.loops):
            ended, busy_s, busy_cpu_s = measure(settings, variables, given.limit)
        more = "" if ended else "> "
        print(
            f"| {name} | {alone_s:.1f} | {alone_cpu_s:.1f} | {more}{busy_s:.1f} | "
            f"{more}{busy_cpu_s:.1f} | {more}{busy_s / alone_s:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
