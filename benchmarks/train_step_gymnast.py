"""Gymnast's side: `update`, the optimisation step of its trainer."""

from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator

from gymnast.agents import load_model
from gymnast.trainers import make_algorithm
from gymnast.trainers.learner.credit import with_advantages
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch, split
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.types import Trajectory
from train_step_batch import Group
from train_step_measure import Result, first_gradients, measured, warm_up

BETA = 0.9


def step(
    name: str,
    groups: list[Group],
    folder: Path,
    *,
    checkpointing: bool,
    clip: float,
    device: str,
    liger: bool,
) -> Result:
    """Take one step.

    Args:
        name: The name of the model.
        groups: The batch.
        folder: Where the gradients are saved.
        checkpointing: Whether layers are computed again in the backward pass.
        clip: Longer gradients are scaled down to this norm.
        device: "cpu" or "cuda".
        liger: Is of TRL's side alone.
    """
    model, _ = load_model(name, dtype="float32")
    model.to(device)
    warm_up(model)
    policy = Policy(model, activations="recompute" if checkpointing else "keep")
    optimizer = MasterOptimizer(model.parameters(), learning_rate=0.0)
    settings = UpdateSettings(
        algorithm=make_algorithm("grpo"),
        max_grad_norm=clip,
        tokens_per_microbatch=max(map(_packed_tokens, groups)),
    )
    trajectories = with_own_logprobs(policy, groups)
    samples = with_advantages(trajectories, settings.algorithm.estimator)
    sizes = [len(batch) for batch in split(samples, settings.tokens_per_microbatch)]
    accelerator = Accelerator(cpu=device == "cpu")
    with measured() as cost:
        metrics = update(policy, optimizer, trajectories, settings, accelerator).metrics
    states = optimizer.state_dict()["states"]
    moments = {
        name: states[number]["exp_avg"] for number, (name, _) in enumerate(model.named_parameters())
    }
    return Result(metrics["loss"], cost, sizes, first_gradients(moments, BETA, folder, "gymnast"))


def with_own_logprobs(policy: Policy, groups: list[Group]) -> list[list[Trajectory]]:
    """Episodes as if sampled from these weights, so that the importance ratios are 1.

    TRL takes the logprobs of its own first pass as the old ones; these are ours.
    """
    found = []
    for group in groups:
        members = []
        for member, episode in enumerate(group.episodes):
            blank = group.trajectory(member, [0.0] * sum(episode.mask))
            sample = CreditedTrajectory(blank, torch.zeros(len(blank.turns)))
            with torch.no_grad():
                logprobs = policy(micro_batch([sample], policy.device))
            values = iter(logprobs.tolist())
            own = [next(values) if bit else 0.0 for bit in blank.action_mask]
            members.append(replace(blank, logprobs=own))
        found.append(members)
    return found


def _packed_tokens(group: Group) -> int:
    return len(group.prompt) + sum(len(episode.ids) for episode in group.episodes)
