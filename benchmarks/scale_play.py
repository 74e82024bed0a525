"""What the scale benchmark plays: episodes that only wait, and what playing many at once costs.

The agent and the tool wait; waits are log-normal around 0.5 s, cut to 0.1 to 5 s, and depend on
seeds alone. An episode has four calls and an answer: a prompt of about 940 tokens, 84 sampled ones
a call, about 1,980 in the end. Each prompt and result is a text of its own (members of a group
share the prompt). Before it answers, every episode waits until all are there: at that moment all
are in flight with their whole contexts, and memory and threads are read.
"""

import asyncio
import gc
import math
import random
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Renderer, tool
from gymnast.trainers import RayWorkers, collect
from gymnast.types import Completion, Sampling, ToolCall, Trajectory

CALLS, GROUP_SIZE, SCRIPTS = 4, 10, 64
LEAST_S, MEDIAN_S, SPREAD, MOST_S = 0.1, 0.5, 1.0, 5.0
FACT = "What is 7 plus 10? Call the function add to get the answer. "


def wait_s(seed: int) -> float:
    """A wait with a heavy tail, 0.1 to 5 s."""
    drawn = random.Random(seed).lognormvariate(math.log(MEDIAN_S), SPREAD)
    return min(max(drawn, LEAST_S), MOST_S)


class Awaited(Environment):
    """Its tool waits on the event loop; its reward is not async, as most are not."""

    @tool
    async def look_up(self, query: str, wait_s: float) -> str:
        """Look something up.

        Args:
            query: What to look for.
            wait_s: How many seconds the answer takes.
        """
        await asyncio.sleep(wait_s)
        return found(self)

    def reward(self, episode: Any) -> float:
        """One if there is an answer."""
        return float("answer" in episode.answer)


class Threaded(Environment):
    """Its tool waits on a thread."""

    @tool
    def look_up(self, query: str, wait_s: float) -> str:
        """Look something up.

        Args:
            query: What to look for.
            wait_s: How many seconds the answer takes.
        """
        time.sleep(wait_s)
        return found(self)

    def reward(self, episode: Any) -> float:
        """One if there is an answer."""
        return float("answer" in episode.answer)


def found(environment: Environment) -> str:
    """A result of about 180 tokens, which no other call has."""
    return f"{time.perf_counter_ns()}: row {environment.row['number']}. " + FACT * 8


ENVIRONMENTS: dict[str, type[Environment]] = {"async": Awaited, "sync": Threaded}


@dataclass
class Moment:
    """What is held when all episodes have their whole contexts, and what reading it cost."""

    episodes: int
    there: int = 0
    held: dict[str, int] = field(default_factory=dict)
    reading_s: float = 0.0
    all_there: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        """Wait for the others; the last one reads."""
        self.there += 1
        if self.there == self.episodes:
            started = time.process_time()
            self.held = held()
            self.reading_s = time.process_time() - started
            self.all_there.set()
        await self.all_there.wait()


class WaitingAgent:
    """Waits, and says what the script of the turn says.

    Args:
        renderer: Writes the script.
        moment: Before an answer, waits there; None: goes on.
    """

    def __init__(self, renderer: Renderer, moment: Moment | None) -> None:
        self._calls = [_ids(renderer, _call(number)) for number in range(SCRIPTS)]
        said = {"role": "assistant", "content": "The answer is 17. " * 8}
        self._answer = _ids(renderer, said)
        self._stop, self._moment = renderer.stop_ids[0], moment

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """See `gymnast.agents.Agent`."""
        seed = sampling.seed or 0
        seconds = wait_s(seed)
        await asyncio.sleep(seconds)
        ends = (context_ids.count(self._stop) - 2) // 2 == CALLS
        if ends and self._moment is not None:
            await self._moment.wait()
        ids = (self._answer if ends else self._calls[seed % SCRIPTS]).tolist()
        logprobs = np.linspace(-1.0, -0.1, len(ids)).tolist()
        return Completion(ids, logprobs, "stop", waited_s=seconds)


def _ids(renderer: Renderer, message: Mapping[str, Any]) -> np.ndarray:
    return np.array(renderer.encode(message))


def _call(number: int) -> dict[str, Any]:
    arguments = {"query": FACT * 2, "wait_s": round(wait_s(number), 3)}
    call = ToolCall("", "look_up", arguments)
    return {
        "role": "assistant",
        "content": "The answer is in what I look up.",
        "tool_calls": [call],
    }


def held() -> dict[str, int]:
    """The anonymous memory of this process in bytes, and its threads (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {
        "bytes": int(status["RssAnon"].split()[0]) * 1024,
        "threads": int(status["Threads"]),
    }


def cpu_seconds() -> float:
    """The CPU seconds so far of this process and of all that it started, such as a Ray cluster."""
    descendants = psutil.Process().children(recursive=True)
    times = [each.cpu_times() for each in descendants]
    return time.process_time() + float(sum(each.user + each.system for each in times))


class Pauses:
    """How long the garbage collector took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def __call__(self, phase: str, info: Any) -> None:
        """Note a phase of `gc.callbacks`."""
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds.append(time.perf_counter() - self._began)


def nominal_s(trajectory: Trajectory) -> float:
    """How long an episode waits, by its script."""
    calls = [call for message in trajectory.messages for call in message.get("tool_calls") or []]
    tools = sum(call["function"]["arguments"]["wait_s"] for call in calls)
    return float(tools + trajectory.metrics["time/waiting_s"])


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Play a case in this process; returns what it cost.

    Args:
        case: `tools` ("async" or "sync"), `episodes`, and `workers` of Ray (0: none).
    """
    renderer = Renderer(tiny_tokenizer())
    moment = None if case["workers"] else Moment(case["episodes"])
    with RayWorkers(case["workers"], cpus=0.1) if case["workers"] else nullcontext() as workers:
        first = case | {"episodes": max(1, GROUP_SIZE * case["workers"])}
        asyncio.run(_played(first, renderer, None, workers))  # what first calls take
        gc.collect()
        gc.freeze()  # as `gymnast train` does
        pauses = Pauses()
        gc.callbacks.append(pauses)
        before, cpu, wall = held(), cpu_seconds(), time.perf_counter()
        rollouts = asyncio.run(_played(case, renderer, moment, workers))
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    trajectories = rollouts.trajectories
    turns = [len(trajectory.turns) for trajectory in trajectories]
    assert turns == [CALLS + 1] * case["episodes"], "every episode is played to its end"
    found = {
        **case,
        "tokens": round(sum(len(each.ids) for each in trajectories) / len(trajectories)),
        "cpu_s": cpu - (moment.reading_s if moment else 0.0),
        "wall_s": wall,
        "waits_s": max(map(nominal_s, trajectories)),
        "collector_s": sum(pauses.seconds),
        "longest_pause_s": max(pauses.seconds, default=0.0),
    }
    if moment is not None:
        found |= {
            "threads": moment.held["threads"] - before["threads"],
            "bytes": moment.held["bytes"] - before["bytes"],
        }
    return found


async def _played(
    case: Mapping[str, Any], renderer: Renderer, moment: Moment | None, workers: RayWorkers | None
) -> Any:
    episodes = case["episodes"]
    size = min(episodes, GROUP_SIZE)
    rows = [{"number": n, "prompt": f"Row {n}: " + FACT * 45} for n in range(episodes // size)]
    environment = ENVIRONMENTS[case["tools"]]
    return await collect(
        lambda: environment(renderer),
        WaitingAgent(renderer, moment),
        rows,
        group_size=size,
        sampling=Sampling(),
        concurrency=episodes,
        workers=workers,
    )
