"""The share of the time in which the GPU computes while episodes with tools are played.

A case of `gpu_sampling.py`: 256 of 1,024 episodes are in flight, each of 1 to 8 turns of 16 to 112
sampled tokens, and a tool takes 20 to 500 ms (it sleeps) and gives 40 tokens. In a second case
eight threads compute in pure Python meanwhile, as tools do that are written in it.

A request is ready from its call of `generate` to the completion. Counted is the time in which at
least 64 requests are ready: of it, the share in which the GPU computes (CUDA events), and the
tokens that are sampled a second. Episodes of the same kind warm up before, which captures the CUDA
graphs; they may take `WARM_UP_SHARE` of the time.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpu_engine import check_path, make_agent, report_engine
from gpu_figures import Figure, Goal
from gpu_models import TINY, card_name
from gymnast.agents import TransformersAgent
from gymnast.types import Sampling

SHARE, RATE = "device share, requests ready", "engine, requests ready"
GROUP_SIZE = 8
RESULT_TOKENS = 40
WARM_UP_SHARE = 0.5


@dataclass(frozen=True)
class EpisodesCase:
    """Episodes with tools.

    Attributes:
        name: On the command line.
        goal: The device's share of the time.
        threads: That compute in Python meanwhile.
        model: A name of `gpu_models.SHAPES`.
        in_flight: Episodes that are played at once.
        episodes: Of all together.
        prompt_tokens: Of each, shared by a group.
        most_turns: Of an episode; it has one at least.
        sampled_tokens: The fewest and the most of a turn.
        tool_s: The shortest and the longest time of a tool, in seconds.
        enough: Ready requests from which on the time counts.
    """

    name: str
    goal: float
    threads: int = 0
    model: str = "Qwen3-0.6B"
    in_flight: int = 256
    episodes: int = 1024
    prompt_tokens: int = 300
    most_turns: int = 8
    sampled_tokens: tuple[int, int] = (16, 112)
    tool_s: tuple[float, float] = (0.02, 0.5)
    enough: int = 64

    @property
    def title(self) -> str:
        """The case as the table names it."""
        busy = f", tool threads computing in Python: {self.threads}" if self.threads else ""
        return (
            f"{self.model}, {self.in_flight} of {self.episodes:,} episodes in flight, tools of "
            f"{1000 * self.tool_s[0]:.0f} to {1000 * self.tool_s[1]:.0f} ms{busy}"
        )


CASES = [
    EpisodesCase("qwen3-0.6b-tools", 0.9),
    EpisodesCase("qwen3-0.6b-tools-8-threads", 0.75, threads=8),
]


def tiny(case: EpisodesCase) -> EpisodesCase:
    """Reduce a case to one that a CPU plays in seconds."""
    return replace(
        case,
        model=TINY,
        in_flight=8,
        episodes=24,
        prompt_tokens=15,
        most_turns=3,
        sampled_tokens=(4, 16),
        tool_s=(0.002, 0.02),
        enough=1,
        threads=min(case.threads, 1),
    )


class ReadyTime:
    """Adds up the time in which enough requests are ready, and what was done in it.

    The device's time is known when a launch is read, so at both ends of a stretch of time a launch
    may count for the wrong side: at most 0.1 s, once too much and once too little.

    Args:
        agent: That samples.
        enough: See `EpisodesCase`.

    Attributes:
        wall_s: The time.
        device_s: Of it, the time in which the device computed.
        tokens: Of the completions that ended in it.
        all_metrics: Everything that the agent's `metrics` returned.
    """

    def __init__(self, agent: TransformersAgent, enough: int) -> None:
        self.wall_s = self.device_s = 0.0
        self.tokens = 0
        self.all_metrics: list[dict[str, float]] = []
        self._agent, self._enough = agent, enough
        self._ready = 0
        self._since = 0.0

    async def generate(self, ids: list[int], sampling: Sampling) -> list[int]:
        """Sample a completion; the request is ready meanwhile."""
        self._ready += 1
        if self._ready == self._enough:
            self.take_metrics()
            self._since = time.perf_counter()
        try:
            completion = await self._agent.generate(ids, sampling)
            if self._ready >= self._enough:
                self.tokens += len(completion.ids)
        finally:
            if self._ready == self._enough:
                self.wall_s += time.perf_counter() - self._since
                self.device_s += self.take_metrics()["time/engine/device_s"]
            self._ready -= 1
        return completion.ids

    def take_metrics(self) -> dict[str, float]:
        """Return the agent's metrics since the last call, and keep them."""
        self.all_metrics.append(self._agent.metrics())
        return self.all_metrics[-1]


async def play_all(
    agent: TransformersAgent, case: EpisodesCase, episodes: int, seconds: float, seed: int
) -> tuple[ReadyTime, int]:
    """Play episodes until the time is over.

    Args:
        agent: That samples.
        case: The workload.
        episodes: The number of episodes.
        seconds: After these, those that are still played are cancelled.
        seed: Of prompts, turns and tools.

    Returns:
        The time that was counted, and how many episodes ended.
    """
    ready, ended = ReadyTime(agent, case.enough), 0
    vocabulary = agent.model.config.vocab_size
    places = asyncio.Semaphore(case.in_flight)

    async def play(number: int) -> None:
        nonlocal ended
        shared = random.Random(f"{seed} {number // GROUP_SIZE}")
        ids = [shared.randrange(5, vocabulary) for _ in range(case.prompt_tokens)]
        own = random.Random(f"{seed} {number} own")
        async with places:
            for _ in range(own.randint(1, case.most_turns)):
                tokens, drawn = own.randint(*case.sampled_tokens), own.getrandbits(32)
                ids += await ready.generate(ids, Sampling(max_new_tokens=tokens, seed=drawn))
                await asyncio.sleep(own.uniform(*case.tool_s))
                ids += [own.randrange(5, vocabulary) for _ in range(RESULT_TOKENS)]
        ended += 1

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(play(number) for number in range(episodes)))
    agent.wait_idle()  # a cancelled request may still be computed
    ready.take_metrics()
    return ready, ended


@contextlib.contextmanager
def busy_threads(count: int) -> Iterator[None]:
    """Let threads compute in pure Python within the block."""
    over = threading.Event()

    def compute() -> None:
        total = 0
        while not over.is_set():
            for number in range(10_000):
                total += number * number

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def measure(model: Any, device: str, seconds: float, *, case: EpisodesCase) -> None:
    """Play the episodes and report the figures.

    Args:
        model: Of `random_model`.
        device: "cuda" or "cpu".
        seconds: The most that all episodes may take together.
        case: The workload.

    Raises:
        RuntimeError: On a GPU, the engine does not sample over pages by CUDA graphs.
    """
    longest = case.prompt_tokens + case.most_turns * (case.sampled_tokens[1] + RESULT_TOKENS)
    agent = make_agent(model, device, case.in_flight, longest)
    made = agent.metrics()
    deadline = time.perf_counter() + seconds
    with busy_threads(case.threads):
        # As many as are in flight: the graphs of few rows are captured when they end.
        warm_up, _ = asyncio.run(play_all(agent, case, case.in_flight, WARM_UP_SHARE * seconds, 0))
        left = max(0.1, deadline - time.perf_counter())
        began = time.perf_counter()
        ready, ended = asyncio.run(play_all(agent, case, case.episodes, left, 1))
        whole_s = time.perf_counter() - began
    check_path(agent, device, [made, *warm_up.all_metrics, *ready.all_metrics])
    goal, card = Goal(case.goal), card_name(device)
    if not ready.wall_s:
        note = f"{case.enough} requests were never ready within {seconds:.0f} s"
        Figure(case.title, SHARE, None, "", note, goal.compare(None, "", card)).report()
        return
    share = ready.device_s / ready.wall_s
    captures = sum(each["engine/captures"] for each in ready.all_metrics)
    capture_s = sum(each["time/engine/capture_s"] for each in ready.all_metrics)
    note = (
        f"{ready.wall_s:.1f} s with at least {case.enough} ready; {ended} episodes ended; "
        f"{captures:.0f} graphs captured meanwhile in {capture_s:.2f} s"
    )
    Figure(case.title, SHARE, round(share, 3), "", note, goal.compare(share, "", card)).report()
    Figure(case.title, RATE, round(ready.tokens / ready.wall_s, 1), "tokens/s").report()
    whole = {name: sum(each[name] for each in ready.all_metrics) for name in made}
    report_engine(case.title, agent, whole_s, whole, [made, *ready.all_metrics])
