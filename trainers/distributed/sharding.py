"""Weights divided over processes (FSDP2): who asks for it, how it is done, and whole tensors again.

A sharded weight is a `DTensor`: each process holds a slice, and a forward or backward pass gathers
one layer at a time. Everything here that gathers is a collective call: every process makes it.

FSDP1 is refused. Of DeepSpeed (`trainers/learner/optimizers/zero.py`) there is only how a weight of
ZeRO-3 is made whole.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from gymnast.errors import ConfigError, ModelError

# As in accelerate's environment variables: what must be off, and why.
_UNSUPPORTED = {
    "FSDP_OFFLOAD_PARAMS": "weights are not moved to the CPU between passes",
    "FSDP_ACTIVATION_CHECKPOINTING": "set trainer.activations: recompute instead",
}


def wants_sharding() -> bool:
    """Whether the launcher asks for FSDP2 (`distributed_type: FSDP` in accelerate's config).

    Raises:
        ConfigError: It asks for FSDP1, or for a part of FSDP that is not supported.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return False
    if (version := os.environ.get("FSDP_VERSION", "1")) != "2":
        raise ConfigError(
            f"accelerate launch: fsdp_version must be 2, got {version}: set fsdp_version: 2 in "
            "fsdp_config (examples/accelerate/fsdp2.yaml)"
        )
    for name, reason in _UNSUPPORTED.items():
        if os.environ.get(name, "false").lower() == "true":
            raise ConfigError(f"accelerate launch: {name.lower()} must be false: {reason}")
    return True


def shard(policy: nn.Module, model: Any, accelerator: Accelerator) -> nn.Module:
    """Divide a policy's weights over all processes, in place; each layer is gathered on its own.

    Args:
        policy: Whose forward is called in training.
        model: The model within it, of Transformers, or of peft around one.
        accelerator: Of this process.

    Raises:
        ModelError: The trained weights are of several dtypes.
    """
    _check_dtypes(policy)
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    reshard = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() != "false"
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = set(causal._no_split_modules or ())
    for module in _apart([m for m in causal.modules() if type(m).__name__ in names]):
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(policy, mesh=mesh)
    return policy


def _apart(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """The layers that are within no other one and share no weight with one.

    The weights of those that do are the whole policy's. (Zamba's layers have blocks in common.)
    """
    weights = {layer: {id(weight) for weight in layer.parameters()} for layer in layers}
    parts = {layer: set(layer.modules()) for layer in layers}
    chosen: list[nn.Module] = []
    for layer in layers:  # a module comes before its parts
        beside = [o for o in layers if o not in parts[layer] and layer not in parts[o]]
        within = any(layer in parts[other] for other in chosen)
        if not within and all(weights[layer].isdisjoint(weights[other]) for other in beside):
            chosen.append(layer)
    return chosen


def _check_dtypes(policy: nn.Module) -> None:
    """Check that trained weights can be gathered together, which takes one dtype."""
    trained = [weight for weight in policy.parameters() if weight.requires_grad]
    if len(dtypes := {weight.dtype for weight in trained}) > 1:
        named = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise ModelError(
            f"FSDP2 shares out models whose trained weights are all of one dtype, and these are "
            f"{named}: set model.dtype, or train with whole weights in each process "
            "(examples/accelerate/cpu.yaml)"
        )


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor; of a sharded one, gathered from all processes."""
    if hasattr(tensor, "ds_id"):  # ZeRO-3's mark on a weight
        import deepspeed

        with deepspeed.zero.GatheredParameters([tensor]):
            return tensor.detach().clone()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def divided_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor, divided as another one of its shape is; every process has the whole."""
    if not isinstance(like, DTensor):
        return tensor
    tensor = tensor.to(like.device)
    # Without a source, every process slices its own copy, and nothing is sent.
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
