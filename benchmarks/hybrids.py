"""Hybrids of each kind, trained to reward beside a dense model of the same size.

    python benchmarks/hybrids.py --measure      trains, and writes benchmarks/hybrids.json
    python benchmarks/hybrids.py                draws benchmarks/hybrids.png, and prints the table

Each model is random, of about 270,000 weights, and plays `Letters` by the whole way of a run: the
engine samples, the environment scores, `Trainer` learns by GRPO. The reward of an episode is the
share of small letters in its answer. No setting is a family's own but its sizes.
"""

import argparse
import importlib
import json
import time
import warnings
from pathlib import Path
from typing import Any

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment
from gymnast.trainers import Trainer
from gymnast.types import Sampling
from model_families import HYBRID, tiny

HERE = Path(__file__).parent
RESULTS, FIGURE = HERE / "hybrids.json", HERE / "hybrids.png"
STEPS, SEEDS = 40, (0, 1, 2)
WITHIN = 0.1  # of the dense model's size
ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.", "Then.")]

# What it is called: the family, the key that its size is set by, and what else it takes.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense (Qwen3)": ("qwen3", "intermediate_size", {}),
    "linear attention (Qwen3.5)": ("qwen3_5_text", "intermediate_size", {}),
    "Mamba-2 (Bamba)": ("bamba", "intermediate_size", {}),
    "short convolution (LFM2)": ("lfm2", "intermediate_size", {"block_auto_adjust_ff_dim": False}),
    "MoE hybrid (Qwen3.5 MoE)": (
        "qwen3_5_moe_text",
        "moe_intermediate_size",
        {"layer_types": HYBRID, "num_experts": 4, "num_experts_per_tok": 2},
    ),
}
DENSE, *_ = MODELS


class Letters(Environment):
    """The share of small letters in the answer."""

    def reward(self, episode: Any) -> float:
        """Score an episode."""
        letters = [letter in "abcdefghijklmnopqrstuvwxyz" for letter in episode.answer]
        return sum(letters) / max(1, len(letters))


class Rewards:
    """Keeps the mean reward of each step."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def on_start(self, trainer_info: Any) -> None:
        """Nothing is kept."""

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        """Nothing is kept."""

    def on_step(self, step: int, metrics: Any, groups: Any) -> None:
        """Keep the mean reward of the step's episodes."""
        self.means.append(metrics["reward/mean"])

    def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None:
        """Nothing is kept."""

    def on_end(self, summary: Any) -> None:
        """Nothing is kept."""


def size(model: Any) -> int:
    """How many weights a model has."""
    return sum(weight.numel() for weight in model.parameters())


def model_of(name: str, vocabulary: int) -> Any:
    """A random model of about the dense one's size.

    Raises:
        ValueError: No width gives that size.
    """
    family, key, settings = MODELS[DENSE]
    wanted = size(tiny(family, vocab_size=vocabulary, **{key: 128}, **settings))
    family, key, settings = MODELS[name]
    for width in range(8, 400, 8):
        model = tiny(family, vocab_size=vocabulary, **{key: width}, **settings)
        if abs(size(model) / wanted - 1) < WITHIN / 2:
            return model
    raise ValueError(f"{name}: no {key} gives {wanted} weights")


def measure(name: str, seed: int) -> dict[str, Any]:
    """Train one model; returns its rewards by step, its size and the CPU seconds."""
    tokenizer = tiny_tokenizer()
    model, rewards = model_of(name, len(tokenizer)), Rewards()
    trainer = Trainer(
        model,
        tokenizer,
        Letters,
        ROWS,
        sampling=Sampling(max_new_tokens=8),
        group_size=8,
        rows_per_step=4,
        steps=STEPS,
        learning_rate=3e-3,
        seed=seed,
        deterministic=True,
        observer=rewards,
    )
    path = getattr(trainer.learner.policy, "path", "")
    started = time.process_time()
    trainer.train()
    seconds = time.process_time() - started
    found = {"name": name, "seed": seed, "weights": size(model), "path": path}
    return found | {"rewards": rewards.means, "cpu_s": round(seconds, 1)}


def draw(results: list[dict[str, Any]]) -> None:
    """Draw reward against step: the mean over seeds, and each seed thin."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    for name, colour in zip(MODELS, pyplot.get_cmap("tab10").colors, strict=False):
        runs = [each["rewards"] for each in results if each["name"] == name]
        steps = range(1, len(runs[0]) + 1)
        for run in runs if len(runs) > 1 else []:
            axes.plot(steps, run, color=colour, linewidth=0.7, alpha=0.4)
        means = [sum(values) / len(values) for values in zip(*runs, strict=True)]
        weights = next(each["weights"] for each in results if each["name"] == name)
        style = "--" if name == DENSE else "-"
        label = f"{name}, {weights / 1000:.0f}k weights"
        axes.plot(steps, means, style, color=colour, linewidth=2.2, label=label)
    axes.set(
        xlabel="step", ylabel="mean reward (share of small letters)", ylim=(0, 1), xlim=(1, None)
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize=9)
    figure.savefig(FIGURE, dpi=130)


def table(results: list[dict[str, Any]]) -> str:
    """A line a model: its size, its first and last three steps over seeds, the CPU seconds."""
    lines = [
        "| model | weights | path | reward, steps 1-3 | last 3 | CPU s a run |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in MODELS:
        runs = [each for each in results if each["name"] == name]
        first, last = (
            sum(sum(run["rewards"][part]) for run in runs) / (3 * len(runs))
            for part in (slice(0, 3), slice(-3, None))
        )
        seconds = sum(run["cpu_s"] for run in runs) / len(runs)
        lines.append(
            f"| {name} | {runs[0]['weights']:,} | {runs[0]['path']} | {first:.2f} | {last:.2f} | "
            f"{seconds:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, or draw and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args().measure:
        warnings.simplefilter("ignore")  # models tell of kernels that they do without
        results = []
        for seed in SEEDS:
            for name in MODELS:
                results.append(measure(name, seed))
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    results = json.loads(RESULTS.read_text())
    draw(results)
    print(table(results))


if __name__ == "__main__":
    main()
