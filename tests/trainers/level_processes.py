"""What test_levels_in_models.py runs in two processes: an update whose layers attend by level.

python level_processes.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers import make_algorithm
from gymnast.trainers.distributed.sharding import whole
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.types import Span, StopReason, Trajectory
from two_processes import PROCESS, make_trainer, run_scenarios
from varlen_reference import levels_everywhere


def conversations(groups: int) -> list[Trajectory]:
    """Groups of four answers to a question, all below one system prompt: trees of three levels."""
    random = np.random.default_rng(0)

    def tokens(low: int, high: int) -> list[int]:
        return [int(token) for token in random.integers(0, 1000, random.integers(low, high))]

    system, made = tokens(30, 40), []
    for _ in range(groups):
        prompt = system + tokens(17, 30)
        for member in range(4):
            answer = tokens(1, 40)
            length, end = len(prompt), len(prompt) + len(answer)
            made.append(
                Trajectory(
                    ids=prompt + answer,
                    action_mask=[0] * length + [1] * len(answer),
                    logprobs=[0.0] * length + [-7.0] * len(answer),
                    prompt_length=length,
                    turns=[Span(length, end)],
                    turn_rewards=[float(member % 2)],
                    stop_reason=StopReason.answered,
                    terminated=True,
                    truncated=False,
                )
            )
    return made


def gradients_of(trajectories: list[Trajectory], calls: list[int] | None = None) -> torch.Tensor:
    """All gradients of one optimisation step, in one row.

    Args:
        trajectories: Four of each group.
        calls: Gets the number of calls of each layer and micro-batch of this process.
    """
    groups = [trajectories[start : start + 4] for start in range(0, len(trajectories), 4)]
    algorithm = make_algorithm("dr_grpo", loss="reinforce")
    settings: dict[str, Any] = {"tokens_per_microbatch": 200, "max_grad_norm": 1e9}
    trainer = make_trainer(model=tiny_model(), algorithm=algorithm, **settings)
    kept: list[torch.Tensor] = []
    step = MasterOptimizer.step

    def keeping(optimizer: MasterOptimizer, *arguments: Any) -> None:
        gradients = (master.grad for master in optimizer.master if master.grad is not None)
        kept.extend(whole(gradient).flatten() for gradient in gradients)
        step(optimizer, *arguments)

    joined = trainer.learner.joined()
    with levels_everywhere() as used, patch.object(MasterOptimizer, "step", keeping), joined:
        trainer.learner.update(groups, 0)
    if calls is not None:
        calls += [len(varlen.backwards) for varlen in used]
    return torch.cat(kept)


def levels(folder: Path) -> dict[str, Any]:
    calls: list[int] = []
    torch.save(gradients_of(conversations(4), calls), folder / f"gradients_{PROCESS}.pt")
    return {"calls": calls}


if __name__ == "__main__":
    run_scenarios([levels], Path(sys.argv[1]))
