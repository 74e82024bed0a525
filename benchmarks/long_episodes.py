"""Memory of training on long episodes: a tiny model, 2,048 to 32,768 tokens, on a CPU.

    python benchmarks/long_episodes.py           all lengths, a table and long_episodes.png
    python benchmarks/long_episodes.py CASE      one, as JSON

Each case is a real step of `Trainer` in a process of its own: two episodes of one row, in each of
which the policy samples 8 tokens a turn and reads 2,000 or so that an environment appends, until
the context is full. The peaks while episodes are sampled and while the learner works are separate.
"""

import importlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from gymnast.agents import TransformersAgent
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.trainers import Trainer
from gymnast.types import Sampling
from peak_memory import forget_peak, in_own_process, peak_bytes, resident_bytes

LENGTHS = (2048, 4096, 8192, 16384, 32768)
VOCABULARY, SAMPLED, READ = 1030, 8, 2000
MIB = 2**20


class LongReads(gymnasium.Env[Any, Any]):
    """Every action is answered with a long text, until the context is full."""

    action_space = observation_space = gymnasium.spaces.Sequence(
        gymnasium.spaces.Discrete(VOCABULARY), stack=True
    )

    def __init__(self, context_length: int) -> None:
        self.context_length = context_length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin with 16 tokens."""
        super().reset(seed=seed)
        self.length = 16
        return np.arange(16), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Append a text; the reward is the share of even ids that were sampled."""
        self.length += len(action)
        count = min(READ, self.context_length - self.length)
        text = self.np_random.integers(16, VOCABULARY, size=count)
        self.length += count
        reward = float(np.mean(np.asarray(action) % 2 == 0))
        return text, reward, False, self.length >= self.context_length, self._info()

    def _info(self) -> dict[str, Any]:
        return {"stop_ids": [], "tokens_left": self.context_length - self.length}


class PhasePeaks:
    """An observer that notes the peak while a step's episodes are sampled, and afterwards."""

    def __init__(self, agent: TransformersAgent) -> None:
        self.agent, self.kv, self.sampling, self.learning = agent, 0, 0, 0

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        """The first episodes begin."""
        forget_peak()

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        """The last episode is over: the learner works next."""
        self.kv = max(self.kv, self.agent.kv_bytes)
        if done == total:
            self.sampling = peak_bytes()
            forget_peak()

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        """The learner is done."""
        self.learning = peak_bytes()
        self.tokens = max(len(each.ids) for group in groups for each in group)
        self.actions = max(each.action_tokens for group in groups for each in group)

    def on_evaluation(self, *_: Any) -> None:
        """There is none."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Nothing is left to note."""


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """One step at one length."""
    train(512, "keep", 2**30)  # imports, and what first calls take
    before, started = resident_bytes(), time.process_time()
    trainer, peaks = train(case["tokens"], case["activations"], case["kv_budget_bytes"])
    choice = trainer.learner.memory.choose(case["tokens"], case["tokens"], peaks.actions)
    return {
        "tokens": peaks.tokens,
        "sampling": peaks.sampling - before,
        "kv": peaks.kv,
        "learning": peaks.learning - before,
        "estimate": choice.estimate.total,
        "cpu_s": time.process_time() - started,
    }


def train(tokens: int, activations: Any, budget: int) -> tuple[Trainer, PhasePeaks]:
    """Train for one step."""
    model = tiny_model(
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=2**16,
    )
    agent = TransformersAgent(model, kv_budget_bytes=budget)
    peaks = PhasePeaks(agent)
    trainer = Trainer(
        model,
        tiny_tokenizer(),
        lambda: LongReads(tokens),
        [{"prompt": "Read."}],
        agent=agent,
        group_size=2,
        rows_per_step=1,
        steps=1,
        sampling=Sampling(max_new_tokens=SAMPLED),
        learning_rate=1e-3,
        activations=activations,
        observer=peaks,
    )
    trainer.train()
    return trainer, peaks


def main() -> None:
    """Measure the case of the command line, or all of them."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(json.loads(sys.argv[1]))))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for way in ("recompute", "keep"):
        print(
            f"\n| {way}: tokens | sampling, MiB | of it keys and values | learning, MiB | "
            "estimate / peak | CPU s |\n| --- | --- | --- | --- | --- | --- |"
        )
        for tokens in LENGTHS:
            case = {"tokens": tokens, "activations": way, "kv_budget_bytes": 2**25}
            one = in_own_process(__file__, case)
            found.setdefault(way, []).append(one)
            sizes = [f"{one[key] / MIB:,.0f}" for key in ("sampling", "kv", "learning")]
            ratio = one["estimate"] / one["learning"]
            print(
                f"| {one['tokens']:,} | {' | '.join(sizes)} | {ratio:.2f} | {one['cpu_s']:.0f} |",
                flush=True,
            )
        print(
            f"\nlearning: {_line(found[way], 'learning')}; sampling: "
            f"{_line(found[way], 'sampling')}",
            flush=True,
        )
    plot(found)


def _line(rows: list[dict[str, Any]], key: str) -> str:
    """How well a straight line fits."""
    x, y = (np.array([row[name] for row in rows], dtype=float) for name in ("tokens", key))
    slope, start = np.polyfit(x, y, 1)
    left = ((y - slope * x - start) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return f"{slope / 1024:.1f} KiB a token, R^2 of a straight line {1 - left:.4f}"


def plot(found: dict[str, list[dict[str, Any]]]) -> None:
    """Draw peaks against lengths."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    names = {"keep": "learning, activations kept", "recompute": "learning, layers computed again"}
    for way, rows in found.items():
        x = [row["tokens"] for row in rows]
        axes.plot(x, [row["learning"] / MIB for row in rows], "o-", label=names[way])
        axes.plot(x, [row["estimate"] / MIB for row in rows], "k:", linewidth=1)
    rows = found["recompute"]
    axes.plot(x, [row["sampling"] / MIB for row in rows], "s-", label="sampling")
    axes.plot(x, [row["kv"] / MIB for row in rows], "s--", label="of it keys and values")
    axes.set(xlabel="tokens of an episode", ylabel="peak of memory, MiB", xlim=(0, None))
    axes.set_ylim(0, None)
    axes.plot([], [], "k:", linewidth=1, label="estimates")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(Path(__file__).parent / "long_episodes.png", dpi=110)


if __name__ == "__main__":
    main()
