"""A copy of the policy on a device of its own, and how it takes new weights."""

import copy
from collections.abc import Iterable
from typing import Any

import torch

from gymnast.agents.models.mergeable import untie
from gymnast.errors import UsageError, first_line


def copied(model: Any, device: str) -> Any:
    """A copy of a model on a device, without adapters: they are merged in.

    Nothing is there twice on the model's own device.

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
            moved = weight.detach().to(place, copy=True)
            own[id(weight)] = torch.nn.Parameter(moved, requires_grad=False)
        for buffer in model.buffers():
            own[id(buffer)] = buffer.detach().to(place, copy=True)
    other = copy.deepcopy(model, own)
    return other.merge_and_unload() if hasattr(other, "merge_and_unload") else other


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
