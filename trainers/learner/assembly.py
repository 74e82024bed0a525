"""The parts of a learner, put together: in one process, or divided over several."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from accelerate import Accelerator

from gymnast.agents.models.fused import has_fused_modules
from gymnast.agents.models.kernel_choice import place_model
from gymnast.errors import ConfigError
from gymnast.trainers.algorithms.algorithm import Algorithm
from gymnast.trainers.distributed.divided import Divided
from gymnast.trainers.distributed.sharding import shard
from gymnast.trainers.learner.memory.estimate import Division
from gymnast.trainers.learner.model_checks import check_base
from gymnast.trainers.learner.optimizers.by_name import named_optimizer
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.learner.optimizers.optimizer import Optimizer
from gymnast.trainers.learner.optimizers.weight_kinds import adapter_weights, other_than_matrices
from gymnast.trainers.learner.optimizers.zero import ZeroAdamW
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.recomputation import Activations
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.trainers.learner.teaching import Teaching


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


def compared_with(
    algorithm: Algorithm,
    model: Any,
    teacher_model: Any,
    *,
    temperature: float,
    unused_ids: Sequence[int],
) -> tuple[Reference | None, Teaching | None]:
    """The reference and the teacher of an algorithm.

    Raises:
        ModelError: The model before training is one of them, and no longer there.
    """
    reference = teaching = None
    how: dict[str, Any] = {"temperature": temperature, "unused_ids": unused_ids}
    if algorithm.kl is not None:
        check_base(model)
        reference = Reference(model, **how)
    if algorithm.teacher is not None:
        if algorithm.teacher.is_base:
            check_base(model)
        if isinstance(teacher_model, torch.nn.Module):
            teacher_model = _placed_like(model, teacher_model)
        teaching = Teaching.of(algorithm.teacher, model, teacher_model, **how)
    return reference, teaching


def _placed_like(model: Any, teacher_model: Any) -> Any:
    """A teacher on the model's device, with plain modules where the model has such."""
    if has_fused_modules(model):
        return place_model(teacher_model, model.device)
    return teacher_model.to(model.device)


def copies(algorithm: Algorithm, model: Any) -> int:
    """How many frozen copies of the model there are; under adapters, the model itself is one."""
    if hasattr(model, "disable_adapter"):
        return 0
    teacher = algorithm.teacher
    return int(teacher is not None and teacher.is_base) + int(algorithm.kl is not None)


def refreshed_bytes(reference: Reference | None, every: int, model: Any) -> int:
    """What refreshes of a reference add to what it takes before the first, in bytes.

    The weights of the refresh before are kept until the step is over, for its checkpoint. Adapters
    are copied at a refresh only; the end of a warm-up is one.
    """
    if reference is None:
        return 0
    sets = int(every > 0) + int(hasattr(model, "disable_adapter"))
    return sets * reference.refreshed_bytes


def asked(given: Activations | Literal["auto"], device: torch.device) -> Activations | None:
    """What becomes of activations, where the settings say it.

    Raises:
        ConfigError: They are to be moved to where they are.
    """
    if given == "offload" and device.type == "cpu":
        raise ConfigError(
            "activations: must be auto, keep or recompute on a CPU, got offload: they are in "
            "the host's memory already"
        )
    return None if given == "auto" else given
