"""Many episodes of what adapters play with, by a script: none lost, and nothing left behind.

    python benchmarks/adapters.py                    all, a thousand episodes each
    python benchmarks/adapters.py --only mcp-shared  one of them
    python benchmarks/adapters.py --quick            a smoke test in small

An episode is lost if it does not finish, has to be tried again, or its results are not those that
the script earns. Left behind is what there is more of than before: processes below this one, and
descriptors, threads and asyncio's tasks in it. The small server of the MCP subjects is
`tests/envs/odd_server.py`; what is not installed is said.
"""

import argparse
import asyncio
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from gymnast.agents import ScriptedAgent
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Renderer, call, make
from gymnast.errors import ConfigError, SandboxUnavailable, TooManyFailures
from gymnast.sandboxes.pool.pool import close_shared_pools
from gymnast.trainers import collect
from gymnast.types import Message, Sampling
from rollout import conditions
from rollout_report import Report, Target

SERVER = Path(__file__).parent.parent / "tests" / "envs" / "odd_server.py"
SMALL = [sys.executable, "-S", str(SERVER)]
IN_A_BOX = ["python3", "-S", "-c", SERVER.read_text()]
TIME = ["mcp-server-time", "--local-timezone", "UTC"]
CONVERT = call(
    "convert_time", source_timezone="Asia/Tokyo", time="14:30", target_timezone="Asia/Dubai"
)
DONE: Message = {"role": "assistant", "content": "Done."}
SETTLE_S = 15.0  # for what is being ended to be gone
CONCURRENCY = 16


@dataclass(frozen=True)
class Subject:
    """What is played, and how.

    Attributes:
        name: Of the environment.
        script: What the agent says.
        result: What the last result has in it.
        settings: Of the environment.
        row: Of every episode.
        episodes: How many.
    """

    name: str
    script: Sequence[Message]
    result: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=lambda: {"prompt": "Go on."})
    episodes: int = 1000


SUBJECTS = {
    "gymnasium": Subject(
        "gymnasium:FrozenLake-v1",
        [call("act", action=action) for action in (1, 1, 2, 2, 1, 2)],
        "",
        {"make": {"is_slippery": False}},
        {"seed": 0},
    ),
    "mcp-shared": Subject(
        "mcp:small",
        [call("say", text="here"), call("add", a=1), DONE],
        "",  # how many have been added
        {"command": SMALL, "session": "shared", "instructions": False},
    ),
    "mcp-own": Subject(
        "mcp:small",
        [call("say", text="here"), call("add", a=1), DONE],
        "1",
        {"command": SMALL, "instructions": False},
    ),
    "mcp-boxes": Subject(
        "mcp:small",
        [call("say", text="here"), call("add", a=1), DONE],
        "1",
        {"command": IN_A_BOX, "sandbox": {"backend": "landlock"}, "instructions": False},
    ),
    "mcp-time-shared": Subject(
        "mcp:time", [CONVERT, DONE], "T09:30:00+04:00", {"command": TIME, "session": "shared"}
    ),
    "mcp-time-own": Subject(
        "mcp:time", [CONVERT, DONE], "T09:30:00+04:00", {"command": TIME}, episodes=100
    ),
}


@dataclass(frozen=True)
class Held:
    """How many there are: processes below this one; in it descriptors, threads, and tasks."""

    processes: int
    descriptors: int
    threads: int
    tasks: int

    def more_than(self, before: "Held") -> dict[str, int]:
        """What there is more of, and by how many."""
        grown = {
            one.name: getattr(self, one.name) - getattr(before, one.name) for one in fields(self)
        }
        return {name: count for name, count in grown.items() if count > 0}


def held() -> Held:
    """Count."""
    gc.collect()
    return Held(
        processes=len(_below(os.getpid())),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
        tasks=sum(
            issubclass(type(one), asyncio.Task) and not one.done() for one in gc.get_objects()
        ),
    )


def settled(before: Held) -> Held:
    """Count, once there is no more than before, or time is up."""
    deadline = time.monotonic() + SETTLE_S
    while (now := held()).more_than(before) and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


def _below(parent: int) -> set[int]:
    """The processes below one."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, new = set[int](), {parent}
    while new := {pid for pid, above in parents.items() if above in new}:
        found |= new
    return found


def environment(subject: Subject, renderer: Renderer) -> Environment:
    """One of the environments that a subject is played with."""
    return make(subject.name, renderer, max_turns=len(subject.script), **subject.settings)


def turns(subject: Subject, renderer: Renderer) -> list[list[int]]:
    """The script in ids, for the tools that the environment offers."""
    env = environment(subject, renderer)
    env.reset(options={"row": subject.row})
    found = [renderer.encode(message, tools=env.tools) for message in subject.script]
    env.close()
    return found


def play(subject: Subject, renderer: Renderer, script: list[list[int]], episodes: int) -> list[str]:
    """Play episodes; returns what is wrong with those that are lost."""
    episodes_of_script = collect(
        partial(environment, subject, renderer),
        ScriptedAgent(script),
        [subject.row] * episodes,
        group_size=1,
        sampling=Sampling(),
        concurrency=CONCURRENCY,
        max_failed_episodes=episodes,
    )
    try:
        rollouts = asyncio.run(episodes_of_script)
    except TooManyFailures as error:
        return [f"{error!s:.200}"] * episodes
    lost = ["tried again"] * int(rollouts.metrics.get("episodes/retried", 0))
    played = [trajectory for group in rollouts for trajectory in group]
    lost += ["not finished"] * (episodes - len(played))
    for trajectory in played:
        results = [one["content"] for one in trajectory.messages if one["role"] == "tool"]
        wanted = sum(bool(message.get("tool_calls")) for message in subject.script)
        if len(results) != wanted or subject.result not in results[-1]:
            lost.append(f"told {results!r:.200}")
    return lost


def report(name: str, subject: Subject, episodes: int) -> Report:
    """Play a subject, and count."""
    renderer = Renderer(tiny_tokenizer())
    found = Report(f"[{name}: {subject.name}, {episodes} episodes, {CONCURRENCY} at once]")
    try:
        script = turns(subject, renderer)
        play(subject, renderer, script, 4)  # what a first use makes for good
    except (ConfigError, SandboxUnavailable) as error:
        found.lines.append(f"not here: {error!s:.300}")
        return found
    close_shared_pools()
    before = held()
    begun, used = time.perf_counter(), sum(os.times()[:4])
    lost = play(subject, renderer, script, episodes)
    wall_s, cpu_s = time.perf_counter() - begun, sum(os.times()[:4]) - used
    close_shared_pools()
    left = settled(before).more_than(before)
    found.lines.append(
        f"{wall_s:.1f} s, {wall_s / episodes * 1000:.1f} ms an episode; CPU with ended processes "
        f"{cpu_s / episodes * 1000:.1f} ms an episode; before: {before}"
    )
    found.lines += [f"lost: {one}" for one in sorted(set(lost))[:5]]
    found.lines.append(f"left behind: {left or 'nothing'}")
    found.targets.append(Target(f"{name}: lost", len(lost), "<=", 0.0))
    found.targets.append(Target(f"{name}: left behind", sum(left.values()), "<=", 0.0))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the subjects, and print what was counted."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    options.add_argument("--quick", action="store_true", help="in small: does everything run?")
    chosen = options.parse_args(arguments)
    logging.getLogger("gymnast").setLevel(logging.ERROR)
    print(conditions("cpu", 0))
    for name in chosen.only:
        subject = SUBJECTS[name]
        episodes = 8 if chosen.quick else subject.episodes
        print(f"\n{report(name, subject, episodes)}", flush=True)


if __name__ == "__main__":
    main()
