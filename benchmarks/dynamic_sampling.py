"""Reward against sampled tokens where half of the rows are hopeless, by how rows are chosen.

    python benchmarks/dynamic_sampling.py                 all variants, three seeds, and the table
    python benchmarks/dynamic_sampling.py --seeds 0 --tokens 4000

A tiny random model learns to answer in small letters (`tiny:`, some seconds a run on a CPU). Of 16
training rows 8 never pay. Evaluations play rows that pay, which are not trained on. A variant
takes steps until it has sampled `--tokens` tokens, replaced groups included, so that all of them
have sampled as much; how many updates that makes is in the table. `benchmarks/tasks/hopeless.py` is
the same question for a model that knows words.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.envs import Episode
from gymnast.trainers import Trainer
from gymnast.types import Sampling
from tasks.letters import Letters

ROWS = [{"prompt": f"Question {number}.", "hopeless": number % 2 == 0} for number in range(16)]
EVALUATION = [{"prompt": f"Exam {number}.", "hopeless": False} for number in range(32)]
CURRICULUM = {"pass_reward": 0.5}
VARIANTS: dict[str, dict[str, Any]] = {
    "4 rows": {"rows_per_step": 4},
    "8 rows": {"rows_per_step": 8},
    "4 rows, replaced": {"rows_per_step": 4, "dynamic_sampling": {"most_rows": 12}},
    "8 rows, replaced": {"rows_per_step": 8, "dynamic_sampling": {"most_rows": 24}},
    "4 rows, curriculum": {"rows_per_step": 4, "curriculum": CURRICULUM},
    "8 rows, curriculum": {"rows_per_step": 8, "curriculum": CURRICULUM},
    "4 rows, both": {
        "rows_per_step": 4,
        "dynamic_sampling": {"most_rows": 12},
        "curriculum": CURRICULUM,
    },
}


class SmallLetters(Letters):
    """The share of small letters in the answer; nothing for a hopeless row."""

    def reward(self, episode: Episode) -> float:
        """About 0.2 before training."""
        return 0.0 if self.row["hopeless"] else super().reward(episode)


@dataclass
class Curve:
    """What a run came to.

    Attributes:
        updates: Optimisation steps that were taken.
        tokens: That were sampled after each step.
        alike: The share of groups without spread, over all that were played.
        before: The reward of the evaluation rows before training.
        after: Likewise after it.
    """

    updates: int = 0
    tokens: list[int] = field(default_factory=list)
    alike: float = 0.0
    before: float = 0.0
    after: float = 0.0


class Watch:
    """Keeps the curve, and ends the run where it has sampled enough."""

    def __init__(self, most_tokens: int) -> None:
        self.curve, self.most_tokens = Curve(), most_tokens
        self.trainer: Trainer | None = None
        self._groups = self._alike = 0

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        """Nothing."""

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        """Nothing."""

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        """Add a step."""
        curve = self.curve
        curve.updates += int(metrics["updates/taken"])
        curve.tokens.append(sum(curve.tokens[-1:]) + int(metrics["tokens/sampled"]))
        self._groups += len(groups)
        self._alike += sum(len({e.reward for e in group}) == 1 for group in groups)
        curve.alike = self._alike / self._groups
        if curve.tokens[-1] >= self.most_tokens and self.trainer is not None:
            self.trainer.steps = step

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        """Keep the first and the last."""
        reward = metrics["eval/reward/mean"]
        if step == 0:
            self.curve.before = reward
        self.curve.after = reward

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Nothing."""


def run(variant: str, seed: int, most_tokens: int) -> Curve:
    """Train until so many tokens are sampled."""
    watch = Watch(most_tokens)
    watch.trainer = Trainer(
        tiny_model(),
        tiny_tokenizer(),
        SmallLetters,
        ROWS,
        group_size=8,
        sampling=Sampling(max_new_tokens=8),
        learning_rate=5e-3,
        steps=10_000,
        eval_rows=EVALUATION,
        eval_group_size=8,
        seed=seed,
        deterministic=True,
        observer=watch,
        **VARIANTS[variant],
    )
    watch.trainer.train()
    return watch.curve


def table(curves: Mapping[str, Sequence[Curve]]) -> str:
    """A row for each variant: means over seeds, and the reward of each."""
    lines = [
        "| variant | updates | groups without spread | reward before | after | of each seed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for variant, runs in curves.items():
        mean = {
            name: statistics.mean(getattr(curve, name) for curve in runs)
            for name in ("updates", "alike", "before", "after")
        }
        each = ", ".join(f"{curve.after:.2f}" for curve in runs)
        lines.append(
            f"| {variant} | {mean['updates']:.0f} | {mean['alike']:.0%} | {mean['before']:.2f} "
            f"| {mean['after']:.2f} | {each} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the variants and print the table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--only", nargs="+", choices=VARIANTS, default=[*VARIANTS])
    options.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options.add_argument("--tokens", type=int, default=4500)
    options.add_argument("--output", type=Path, help="a JSON file for all numbers")
    chosen = options.parse_args(arguments)
    torch.set_num_threads(1)
    curves: dict[str, list[Curve]] = {}
    for variant in chosen.only:
        for seed in chosen.seeds:
            curves.setdefault(variant, []).append(run(variant, seed, chosen.tokens))
            print(f"{variant}, seed {seed}: {curves[variant][-1].after:.3f}", file=sys.stderr)
    if chosen.output is not None:
        numbers = {name: [vars(curve) for curve in runs] for name, runs in curves.items()}
        chosen.output.write_text(json.dumps(numbers))
    print(f"{chosen.tokens} sampled tokens\n\n{table(curves)}")


if __name__ == "__main__":
    main()
