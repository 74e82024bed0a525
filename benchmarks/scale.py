"""Episodes in flight, 1 to 10,000, on the cores of one machine: CPU, memory and threads.

    python benchmarks/scale.py --measure [CASE ...]   plays, and writes benchmarks/scale.json
    python benchmarks/scale.py                        prints the table, and checks the figures
    python benchmarks/scale.py --plan                 works the examples of docs/scaling.md out

Agent and tools only wait (`scale_play.py`), so that what is left is Gymnast's own work. Each case
is played in a process of its own. Memory is the anonymous resident memory of the process, with all
episodes in flight with their whole contexts, less what it was before; "beyond ids" leaves out 8
bytes for each token, the list that the agent gets. With Ray workers CPU is that of the driver, the
workers and the cluster's own processes. "Wall beyond waits" is the time beyond the longest sum of
waits of an episode. With ten times the episodes, CPU a turn may grow by `TOLERANCE`.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from learning import commit
from peak_memory import in_own_process
from scale_plan import plan
from scale_play import CALLS, measure

RESULTS = Path(__file__).with_suffix(".json")
SIZES = (1, 100, 1_000, 10_000)
RAY_EPISODES = 1_000
TOLERANCE = 1.5
MOST_CPU_MS, MOST_KB = 2.0, 50.0  # a turn, and an episode beyond its ids, at 10,000 async
BYTES_AN_ID = 8


def cases() -> dict[str, dict[str, Any]]:
    """All cases by name."""
    here = {
        f"{tools}-{size}": {"tools": tools, "episodes": size, "workers": 0}
        for tools in ("async", "sync")
        for size in SIZES
    }
    ray = {
        f"ray-{n}": {"tools": "async", "episodes": RAY_EPISODES, "workers": n} for n in (1, 2, 4)
    }
    return here | ray


def cpu_ms(found: dict[str, Any]) -> float:
    """CPU milliseconds a turn."""
    return float(1000 * found["cpu_s"] / (found["episodes"] * (CALLS + 1)))


def kb_beyond_ids(found: dict[str, Any]) -> float:
    """Kilobytes an episode beyond a list of its ids."""
    return float(found["bytes"] / found["episodes"] - BYTES_AN_ID * found["tokens"]) / 1000


def table(results: dict[str, dict[str, Any]]) -> str:
    """A line a case."""
    lines = [
        "| case | CPU ms a turn | kB an episode | beyond ids | threads | wall s | beyond waits | "
        "collector s | longest pause s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in results.items():
        many = "bytes" in found and found["episodes"] >= 100
        memory = (
            f"{found['bytes'] / found['episodes'] / 1000:.0f} | {kb_beyond_ids(found):.0f}"
            if many
            else " | "
        )
        lines.append(
            f"| {name} | {cpu_ms(found):.2f} | {memory} | {found.get('threads', '')} | "
            f"{found['wall_s']:.1f} | {found['wall_s'] - found['waits_s']:.1f} | "
            f"{found['collector_s']:.1f} | {found['longest_pause_s']:.2f} |"
        )
    return "\n".join(lines)


def misses(results: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as it should be: growth that is not linear, and targets that are missed."""
    wrong = []
    for tools in ("async", "sync"):
        for size in SIZES[1:-1]:
            some, many = results.get(f"{tools}-{size}"), results.get(f"{tools}-{10 * size}")
            if some and many and cpu_ms(many) > TOLERANCE * cpu_ms(some):
                wrong.append(f"{tools}: CPU a turn grows from {size} to {10 * size} episodes")
    most = results.get(f"async-{SIZES[-1]}")
    if most and cpu_ms(most) > MOST_CPU_MS:
        wrong.append(f"{cpu_ms(most):.2f} ms of CPU a turn, more than {MOST_CPU_MS:g}")
    if most and kb_beyond_ids(most) > MOST_KB:
        wrong.append(
            f"{kb_beyond_ids(most):.0f} kB an episode beyond its ids, more than {MOST_KB:g}"
        )
    return wrong


def main() -> None:
    """Measure, or print what was measured, or the plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs="*", metavar="CASE", choices=list(cases()))
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--case", help="one case as JSON, in this process")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(json.loads(options.case))))
        return
    if options.plan:
        print(plan())
        return
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.measure is not None:
        for name in options.measure or cases():
            found = in_own_process(__file__, cases()[name], "--case")
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            conditions = {"cores": os.cpu_count(), "load": os.getloadavg()[1]}
            results[name] = found | {"commit": commit()} | conditions
            results = {each: results[each] for each in cases() if each in results}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            print(name, found, flush=True)
    print(table(results))
    if wrong := misses(results):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
