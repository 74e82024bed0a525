"""A copy of the policy on a device of its own, and how it takes new weights."""

import copy
from collections.abc import Iterable
from typing import Any

import torch

from gymnast.agents.models.mergeable import untie
from gymnast.agents.models.quantized import copy_to, has_quantized_layers, is_quantized_weight
from gymnast.errors import UsageError, first_line


def copied(model: Any, device: str) -> Any:
    """A copy of a model on a device, without adapters: they are merged in.

    Adapters of 4-bit weights stay next to them. Nothing is there twice on the model's own device.

    Args:
        model: Of Transformers, or of peft around one; it stays as it is.
        device: As torch names it.

    Raises:
        UsageError: There is no such device.
    """
    try:
        place = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(
            f"device: must be a device of this machine, such as cpu or cuda:1, got {device!r}: "
            f"{first_line(error)}"
        ) from error
    untie(model)
    # A deep copy takes what it finds here in place of a copy of its own.
    own: dict[int, Any] = {}
    with torch.no_grad():
        for weight in model.parameters():
            copied_weight: Any = copy_to(weight, place)
            own[id(weight)] = copied_weight
            if is_quantized_weight(weight):  # whose layer has its scales too
                own[id(weight.quant_state)] = copied_weight.quant_state
        for buffer in model.buffers():
            own[id(buffer)] = buffer.detach().to(place, copy=True)
    other = copy.deepcopy(model, own)
    keeps_adapters = not hasattr(other, "merge_and_unload") or has_quantized_layers(other)
    return other if keeps_adapters else other.merge_and_unload()


@torch.no_grad()
def take_weights(model: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy all weights into a model without adapters.

    Args:
        model: Of Transformers.
        weights: By their names in it.

    Raises:
        UsageError: They are not those of such a model.
    """
    own = dict(model.named_parameters())
    for name, weight in weights:
        target = own.pop(name, None)
        if target is None or target.shape != weight.shape:
            theirs = "no such weight" if target is None else f"{list(target.shape)}"
            raise UsageError(
                f"update_weights: {name} is {list(weight.shape)} in the trained model, and the "
                f"agent's has {theirs}; make the agent with a copy of the trained model, without "
                "adapters"
            )
        target.copy_(weight)
    if own:
        raise UsageError(f"update_weights: the trained model has no {', '.join(sorted(own)):.200}")


@torch.no_grad()
def take_adapters(model: Any, trained: Any) -> None:
    """Copy what is trained into a copy of a model with 4-bit weights.

    Args:
        model: What `copied` returned for such a model.
        trained: The model of which it is a copy.

    Raises:
        UsageError: It is a copy of another model.
    """
    own = dict(model.named_parameters())
    for name, weight in trained.named_parameters():
        if weight.requires_grad:
            if name not in own or own[name].shape != weight.shape:
                raise UsageError(
                    f"update_weights: the agent's model has 4-bit weights and no {name} of "
                    f"{list(weight.shape)}; make the agent with the trained model and `device`"
                )
            own[name].copy_(weight)
