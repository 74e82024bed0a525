"""A policy and its optimizer, put together: in one process, or divided over several."""

from typing import Any

import torch
from accelerate import Accelerator

from gymnast.errors import ConfigError
from gymnast.trainers.distributed.divided import Divided
from gymnast.trainers.distributed.sharding import shard
from gymnast.trainers.learner.memory.estimate import Division
from gymnast.trainers.learner.optimizers.by_name import named_optimizer
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.learner.optimizers.optimizer import Optimizer
from gymnast.trainers.learner.optimizers.weight_kinds import adapter_weights, other_than_matrices
from gymnast.trainers.learner.optimizers.zero import ZeroAdamW
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.settings import LearnerSettings


def optimized(
    policy: Policy,
    trained: Any,
    accelerator: Accelerator,
    settings: LearnerSettings,
    divided: Divided,
) -> tuple[torch.nn.Module, Optimizer]:
    """The policy to train with, divided where it is to be, and the optimizer of its weights."""
    how: dict[str, Any] = {
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "warmup_steps": settings.warmup_steps,
        "named": named_optimizer(settings.optimizer),
    }
    if divided.zero is not None:
        how["rates"] = _own_rates(trained, settings.adapter_learning_rate)
        how |= {"max_norm": settings.max_grad_norm, "device": accelerator.device}
        optimizer = ZeroAdamW(policy, divided.zero, **how)
        return optimizer.policy, optimizer
    module = shard(policy, trained, accelerator) if divided.sharded else policy
    how["rates"] = _own_rates(trained, settings.adapter_learning_rate)  # of what are weights now
    how["others"] = other_than_matrices(trained)
    return module, MasterOptimizer(trained.parameters(), **how)


def division(processes: int, divided: Divided) -> Division:
    """Among how many processes each part is divided."""
    if divided.sharded:
        return Division(processes, processes, processes)
    if divided.zero is None:
        return Division(buckets=processes > 1)
    stage = divided.zero.stage
    weights, gradients, optimizer = (processes if stage >= least else 1 for least in (3, 2, 1))
    return Division(weights, gradients, optimizer)


def _own_rates(model: Any, rate: float | None) -> dict[torch.nn.Parameter, float]:
    """The learning rates of weights that have one of their own.

    Raises:
        ConfigError: They have, and there are none.
    """
    if rate is None:
        return {}
    adapters = adapter_weights(model)
    if not any(weight.requires_grad for weight in adapters):
        raise ConfigError(
            f"adapter_learning_rate: is {rate:g}, and the model has no adapters that are trained; "
            "set learning_rate, or add adapters (model.lora)"
        )
    return dict.fromkeys(adapters, rate)
