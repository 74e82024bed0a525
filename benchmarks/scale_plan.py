"""Eight and 64 GPUs worked out: the numbers of docs/scaling.md.

    python benchmarks/scale.py --plan

What is measured comes from `scale.json`; everything else is an assumption with a name in `Plan`,
for the reader to replace. Sampling and training are on GPUs of their own, beside each other.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("scale.json")
TURNS, CALLS = 5, 4  # of the benchmark's episodes


@dataclass(frozen=True)
class Plan:
    """A run on several GPUs, and what is assumed of it.

    Attributes:
        gpus: How many GPUs there are.
        episodes: Episodes a step, rows_per_step times group_size.
        weights: Of the dense model.
        flops: Of a GPU, in bfloat16.
        sampling_share: Of these, what sampling with a full batch reaches.
        prefill_share: The same for tokens that are read.
        training_share: The same for training.
        prompt: Tokens of a prompt, which is computed once for the members of a group, in sampling
            and in training.
        sampled: Tokens that the policy samples in an episode.
        context: Tokens of a whole episode.
        group_size: Members of a group.
        wait_s: Seconds that the tools of an episode take, one after another.
        tokens_a_second: Of one request, while the batch is full.
        cpu_ms: Of Gymnast, a turn, measured.
        episode_kb: An episode in flight, measured.
        busy: Share of a core that the event loop of a process may need.
    """

    gpus: int
    episodes: int
    weights: float = 8e9
    flops: float = 989e12
    sampling_share: float = 0.16
    prefill_share: float = 0.4
    training_share: float = 0.35
    prompt: int = 940
    sampled: int = 420
    context: int = 1980
    group_size: int = 8
    wait_s: float = 3.2
    tokens_a_second: float = 40.0
    cpu_ms: float = 0.0
    episode_kb: float = 0.0
    busy: float = 0.5

    @property
    def computed(self) -> float:
        """Tokens of an episode that are computed."""
        return self.context - self.prompt * (1 - 1 / self.group_size)

    @property
    def sampling_s(self) -> float:
        """Seconds of one GPU that an episode takes to be sampled."""
        read = self.computed - self.sampled
        samples = 2 * self.weights * self.sampled / (self.flops * self.sampling_share)
        return samples + 2 * self.weights * read / (self.flops * self.prefill_share)

    @property
    def training_s(self) -> float:
        """Seconds of one GPU that an episode takes to be learned from.

        Forward and backward passes (6 operations a weight and token), layers computed again (2),
        and the log-probabilities before the update (2).
        """
        return 10 * self.weights * self.computed / (self.flops * self.training_share)

    def split(self) -> tuple[int, int]:
        """GPUs for sampling and for training, such that the slower side is quickest."""
        sides = [(n, self.gpus - n) for n in range(1, self.gpus)]
        return min(sides, key=lambda side: self.step_s(*side))

    def step_s(self, sampling: int, training: int) -> float:
        """Seconds of a step, whose two sides run beside each other."""
        return self.episodes * max(self.sampling_s / sampling, self.training_s / training)

    def numbers(self) -> dict[str, str]:
        """What follows, step by step."""
        sampling, training = self.split()
        step = self.step_s(sampling, training)
        rate = self.episodes / step
        lasts = self.sampled / self.tokens_a_second + self.wait_s
        cores = rate * TURNS * self.cpu_ms / 1000
        in_flight, requests = rate * lasts, rate * self.sampled / self.tokens_a_second
        return {
            "GPUs that sample, and that train": f"{sampling} and {training}",
            "seconds a step": f"{step:.0f}",
            "sampled tokens/s": f"{rate * self.sampled:,.0f}",
            "trained tokens/s": f"{rate * self.computed:,.0f}",
            "episodes/s": f"{rate:.0f}",
            "an episode lasts, s": f"{lasts:.1f}",
            "episodes in flight": f"{in_flight:,.0f}",
            "requests at each sampling GPU": f"{requests / sampling:.0f}",
            "cores for environments": f"{cores:.2f}",
            "processes or Ray workers for them": f"{math.ceil(cores / self.busy)}",
            "memory of episodes in flight, GB": f"{in_flight * self.episode_kb / 1e6:.2f}",
            "threads, if all tools are sync": f"{rate * self.wait_s:,.0f}",
            "weights to hand over, GB": f"{2 * self.weights / 1e9:.0f}",
            "training state on each GPU, GB": f"{16 * self.weights / training / 1e9:.0f}",
        }


def measured() -> dict[str, Any]:
    """The benchmark's figures with 10,000 episodes in flight."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())["async-10000"]
    return {
        "cpu_ms": 1000 * found["cpu_s"] / (found["episodes"] * TURNS),
        "episode_kb": found["bytes"] / found["episodes"] / 1000,
    }


def plan() -> str:
    """The table of the page."""
    plans = [replace(each, **measured()) for each in (Plan(8, 512), Plan(64, 4096))]
    columns = [each.numbers() for each in plans]
    lines = [
        f"| | {plans[0].gpus} GPUs | {plans[1].gpus} GPUs |",
        "| --- | --- | --- |",
        f"| episodes a step | {plans[0].episodes:,} | {plans[1].episodes:,} |",
    ]
    lines += [f"| {name} | {columns[0][name]} | {columns[1][name]} |" for name in columns[0]]
    return "\n".join(lines)
