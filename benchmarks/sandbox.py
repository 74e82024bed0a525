"""What a box costs: a call, taking one, many at once, and whether anything is left behind.

    python benchmarks/sandbox.py                        every backend that works here, and the peers
    python benchmarks/sandbox.py --only docker          one of them
    python benchmarks/sandbox.py --quick                a smoke test in small, without targets

Docker's boxes and the peers on Docker use `$GYMNAST_SANDBOX_IMAGE`. What does not work here is said
with its reason. Times are wall time, as a rollout waits for it: median and 95th percentile. The
peers: `sandbox_peers.py`; what counts as left behind: `sandbox_leaks.py`.
"""

import argparse
import logging
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes import Sandbox, SandboxPool, SandboxSpec, open_sandbox
from gymnast.sandboxes.docker.sandbox import default_image
from rollout import conditions
from rollout_report import Report, Target
from sandbox_leaks import held, settled
from sandbox_peers import CODE, PEERS, check

BACKENDS = ("docker", "landlock", "bubblewrap", "local")
ISOLATING = ("docker", "landlock")
SPEC = SandboxSpec(memory_bytes=128 << 20, start_timeout_s=300.0)
HEAD = f"{'':26} | {'median ms':>10} {'p95 ms':>10} {'times':>7}"


@dataclass(frozen=True)
class Counts:
    """How often each thing is done."""

    calls: int = 1000
    peer_calls: int = 50
    takes: int = 30
    boxes: int = 64
    long_calls: int = 10_000
    episodes: int = 500


QUICK = Counts(calls=20, peer_calls=3, takes=3, boxes=4, long_calls=50, episodes=5)


def timed(work: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of some calls, after one that is not counted."""
    work()
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return found


def line(name: str, seconds: Sequence[float]) -> str:
    """A line of a table."""
    middle, late = statistics.median(seconds), sorted(seconds)[int(0.95 * (len(seconds) - 1))]
    return f"{name:26} | {middle * 1000:10.3f} {late * 1000:10.3f} {len(seconds):7}"


def run_python(box: Sandbox) -> None:
    """One call of the session."""
    result = box.python(CODE)
    check(result.stdout)


def calls(backend: str, counts: Counts) -> Report:
    """What calls of one box cost."""
    report = Report(f"[{backend}: calls of a box]", [HEAD])
    opened = timed(lambda: open_sandbox(backend, spec=SPEC).close(), max(1, counts.takes // 3))
    with open_sandbox(backend, spec=SPEC) as box:
        box.write_file("small.txt", b"x" * 1000)
        pythons = timed(partial(run_python, box), counts.calls)
        works: dict[str, Callable[[], object]] = {
            "exec true": partial(box.exec, ["true"]),
            "exec sh -c": partial(box.exec, "echo 2"),
            "read_file, 1 kB": partial(box.read_file, "small.txt"),
            "write_file, 1 kB": partial(box.write_file, "small.txt", b"x" * 1000),
            "write_file, 1 MiB": partial(box.write_file, "large.bin", b"x" * (1 << 20)),
        }
        report.lines.append(line("python", pythons))
        for name, work in works.items():
            report.lines.append(line(name, timed(work, max(3, counts.calls // 10))))
    report.lines.append(line("open and close", opened))
    if backend in ISOLATING:
        target = Target(
            f"{backend}: python call, median ms", statistics.median(pythons) * 1000, "<=", 1.0
        )
        report.targets.append(target)
    return report


def takes(backend: str, counts: Counts) -> Report:
    """What taking a warm box costs."""
    report = Report(f"[{backend}: taking a box from a pool]", [HEAD])
    seconds = []
    with SandboxPool(backend, spec=SPEC, warm=4) as pool:
        pool.take().close()
        for _ in range(counts.takes):
            while pool.statistics().warm == 0:  # so that it is warm that is measured
                time.sleep(0.005)
            begun = time.perf_counter()
            box = pool.take()
            seconds.append(time.perf_counter() - begun)
            box.close()
    report.lines.append(line("take, warm", seconds))
    median = statistics.median(seconds) * 1000
    report.targets.append(Target(f"{backend}: taking a warm box, median ms", median, "<=", 5.0))
    return report


def at_once(backend: str, counts: Counts) -> Report:
    """Many boxes that live and answer at the same time."""
    report = Report(f"[{backend}: {counts.boxes} boxes at once]")
    with SandboxPool(backend, spec=SPEC, warm=4, max_boxes=counts.boxes) as pool:
        with ThreadPoolExecutor(counts.boxes) as threads:
            begun = time.perf_counter()
            boxes = list(threads.map(lambda _: pool.take(), range(counts.boxes)))
            opened_s = time.perf_counter() - begun
            begun = time.perf_counter()
            told = list(threads.map(lambda box: box.python(CODE).stdout.strip(), boxes))
            asked_s = time.perf_counter() - begun
            list(threads.map(lambda box: box.close(), boxes))
        answered = told.count("2")
    report.lines.append(
        f"opened in {opened_s:.1f} s ({opened_s / counts.boxes * 1000:.0f} ms a box); one Python "
        f"call in each, all at the same time: {asked_s * 1000:.0f} ms"
    )
    bound = float(counts.boxes)
    report.targets.append(Target(f"{backend}: boxes that answered", answered, ">=", bound))
    return report


def nothing_left(backend: str, counts: Counts) -> Report:
    """Many calls and many episodes, and what they leave."""
    report = Report(
        f"[{backend}: {counts.long_calls} calls and {counts.episodes} episodes, a box each]"
    )
    open_sandbox(backend, spec=SPEC).close()  # what a first use makes for good
    before = held()
    begun = time.perf_counter()
    with SandboxPool(backend, spec=SPEC, warm=4, max_boxes=8) as pool:
        with pool.take() as box:
            for _ in range(counts.long_calls):
                run_python(box)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(partial(_episode, pool), range(counts.episodes)))
    seconds = time.perf_counter() - begun
    left = settled(before).more_than(before)
    report.lines.append(f"in {seconds:.0f} s; before: {before}")
    report.lines.append(f"left behind: {left or 'nothing'}")
    report.targets.append(Target(f"{backend}: left behind", sum(left.values()), "<=", 0.0))
    return report


def _episode(pool: SandboxPool, number: int) -> None:
    """A box that must be empty, and is left with a file, a variable and a process."""
    with pool.take() as box:
        seen = box.python("import os; print(sorted(os.listdir('.')), 'x' in globals())")
        assert seen.stdout.strip() == "[] False", f"episode {number} found {seen.stdout!r}"
        box.python("x = 1; open('file', 'w').write('x')")
        box.python("import subprocess; subprocess.Popen(['sleep', '1000'])")


def peers(counts: Counts, names: Sequence[str]) -> Report:
    """What the others' calls cost."""
    report = Report("[peers: one call]", [HEAD])
    for name in names:
        try:
            with PEERS[name](default_image()) as once:
                report.lines.append(line(name, timed(once, counts.peer_calls)))
        except Exception as error:  # whatever keeps a peer from running here is told, not raised
            report.lines.append(f"{name:26} | not run: {type(error).__name__}: {error!s:.150}")
    return report


def works(backend: str) -> bool:
    """Whether boxes can be had; says why where not."""
    try:
        open_sandbox(backend, spec=SPEC).close()
    except SandboxUnavailable as error:
        print(f"\n[{backend}] not here: {error!s:.300}")
        return False
    return True


SCENARIOS = {
    "calls": calls,
    "takes": takes,
    "at_once": at_once,
    "nothing_left": nothing_left,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", nargs="+", choices=(*BACKENDS, *PEERS), default=None)
    options.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    options.add_argument("--quick", action="store_true", help="in small: does everything run?")
    chosen = options.parse_args(arguments)
    logging.getLogger("gymnast").setLevel(logging.ERROR)
    counts = QUICK if chosen.quick else Counts()
    names = chosen.only or (*BACKENDS, *PEERS)
    print(f"{conditions('cpu', 0)}; image {os.environ.get('GYMNAST_SANDBOX_IMAGE')}")
    reports = []
    for backend in [name for name in BACKENDS if name in names and works(name)]:
        for scenario in chosen.scenarios:
            reports.append(SCENARIOS[scenario](backend, counts))
            print(f"\n{reports[-1]}", flush=True)
    if others := [name for name in PEERS if name in names]:
        print(f"\n{peers(counts, others)}", flush=True)
    if not chosen.quick:
        targets = [target for report in reports for target in report.targets]
        print(f"\n{sum(target.met for target in targets)} of {len(targets)} targets met")


if __name__ == "__main__":
    main()
