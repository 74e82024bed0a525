"""Demonstrations beside RL: in the loss of each of its steps."""

import math
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Renderer
from gymnast.trainers import make_algorithm
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.update import UpdateSettings, update
from sampled_groups import KeepsGradients, forward_logprobs, random_groups
from warmup_runs import Door, Listed, demonstration, lines, make_trainer


def test_demonstrations_teach_beside_episodes_that_teach_nothing(
    tokenizer: Any, tmp_path: Path
) -> None:
    trainer = make_trainer(
        tokenizer,
        warmup={"demonstrations": "solve", "steps": 0},
        algorithm=make_algorithm("grpo", demonstration_weight=0.1),
        steps=3,
        output_dir=tmp_path / "run",
    )
    trainer.train()
    found = lines(tmp_path / "run")
    assert all(line["reward/mean"] == 0 and line["loss"] == 0 for line in found)
    losses = [line["demonstrations/loss"] for line in found]
    assert losses[0] > losses[1] > losses[2]


class Sometimes(Door):
    """Has no solution for one of the rows."""

    def solve(self, row: Any) -> Any:
        return None if row["prompt"] == "Stay." else super().solve(row)


def test_a_step_of_rl_whose_rows_have_no_demonstration_learns_without(
    tokenizer: Any, tmp_path: Path
) -> None:
    trainer = make_trainer(
        tokenizer,
        environment=Sometimes,
        rows=Listed([{"prompt": word} for word in ("Stay.", "Go.", "Stay.", "Now.")]),
        warmup={"demonstrations": "solve", "steps": 0},
        algorithm=make_algorithm("grpo", demonstration_weight=0.1),
        rows_per_step=1,
        steps=3,
        output_dir=tmp_path / "run",
    )
    assert trainer.train()["steps"] == 3
    found = lines(tmp_path / "run")
    assert ["demonstrations/loss" in line for line in found] == [False, True, False]


def test_the_gradient_is_that_of_both_losses_in_one_step(
    tokenizer: Any, renderer: Renderer
) -> None:
    """RL's gradient plus the weight times that of the mean negative log-likelihood."""
    groups, shown = random_groups(tiny_model(), [[0.0, 1.0], [1.0, 0.5]]), demonstration(renderer)

    def gradients(weight: float, groups: Any) -> list[torch.Tensor]:
        model = tiny_model()
        optimizer = KeepsGradients(model.parameters(), learning_rate=0.1)
        settings = UpdateSettings(make_algorithm("rloo", demonstration_weight=weight), math.inf, 64)
        given = (groups, settings, Accelerator())
        update(Policy(model), optimizer, *given, demonstrations=[shown, shown])
        return optimizer.gradients

    model = tiny_model()
    actions = torch.tensor(shown.action_mask, dtype=torch.bool)
    nll = -forward_logprobs(model, shown.ids)[actions].mean()
    alone = torch.autograd.grad(nll, list(model.parameters()))
    both, rl = gradients(0.3, groups), gradients(0.0, groups)
    for ours, first, second in zip(both, rl, alone, strict=True):
        torch.testing.assert_close(ours, first + 0.3 * second, rtol=1e-4, atol=1e-6)
