"""Layers that keep nothing but their input for the backward pass, and are computed again in it.

Which of the ways a step takes is chosen in `trainers/learner/memory/choice.py`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from gymnast.errors import ModelError

Activations = Literal["keep", "recompute", "offload"]
"""What becomes of the activations of a pass: its layers keep theirs, or keep their inputs alone and
are computed again, or these inputs wait in the memory of the host meanwhile."""


def checkpoint_layers(
    causal: Any, second_time: Callable[[], AbstractContextManager[Any]]
) -> list[Any]:
    """Have a model's layers computed again in the backward pass; a setting of the model that stays.

    Args:
        causal: Of Transformers, without adapters around it.
        second_time: What they are computed within the second time.

    Returns:
        The layers, each of which does so while it is in training mode.

    Raises:
        ModelError: Its layers cannot be computed a second time.
    """

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), second_time()

    settings = {"use_reentrant": False, "context_fn": contexts}
    # The second is the first one's name before Transformers 5.15 or so, and warns after it.
    enable = getattr(causal, "activation_checkpointing_enable", None)
    enable = enable or causal.gradient_checkpointing_enable
    try:
        enable(settings)
    except ValueError as error:
        raise ModelError(
            f"{type(causal).__name__} cannot compute its layers a second time ({error}): set "
            "trainer.activations to keep."
        ) from error
    layers = [m for m in causal.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ModelError(
            f"{type(causal).__name__} cannot compute its layers a second time: none of them is "
            "a GradientCheckpointingLayer of Transformers. Set trainer.activations to keep."
        )
    for layer in layers:
        again = layer._gradient_checkpointing_func
        layer._gradient_checkpointing_func = partial(_checkpointed, layer, again)
    return layers


def _checkpointed(
    layer: nn.Module, checkpoint: Callable[..., Any], forward: Callable[..., Any], *inputs: Any
) -> Any:
    """A layer in training mode, in which Transformers checkpoints it, computed in evaluation mode.

    Args:
        layer: Whose own mode it is; adapters within keep theirs.
        checkpoint: Calls a function now, and again in the backward pass.
        forward: Of the layer.
        *inputs: Of its forward.
    """

    def evaluated(*inputs: Any) -> Any:
        layer.training = False
        try:
            return forward(*inputs)
        finally:
            layer.training = True

    return checkpoint(evaluated, *inputs)


def waiting_on_host() -> AbstractContextManager[Any]:
    """Within the block, what autograd saves outside of layers waits in the host's pinned memory.

    These are the layers' inputs, [1, N, width]. Weights and what is smaller stay where they are.
    """

    def pack(tensor: torch.Tensor) -> torch.Tensor | tuple[torch.device, torch.Tensor]:
        if isinstance(tensor, nn.Parameter) or tensor.dim() < 3:
            return tensor
        pinned = tensor.device.type == "cuda"
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
        return tensor.device, host.copy_(tensor)

    def unpack(packed: torch.Tensor | tuple[torch.device, torch.Tensor]) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        device, host = packed
        return host.to(device, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
