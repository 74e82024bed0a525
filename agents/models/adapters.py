"""LoRA adapters, folded into the weights while a model only samples.

An adapted layer computes W x + s B (A x): three matrix products instead of one. While nothing is
trained, the sum W + s B A can take the place of W. Afterwards W is restored from a copy, not by
subtraction, which in bfloat16 would leave an error at every step.

Stacked experts are a parameter, around whose module peft puts a wrapper for each: it computes
W + s B A of all experts in every forward pass. Folded, they have these very weights.

Adapters of 4-bit weights are never folded in: the sum would have to be quantised again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gymnast.agents.models.quantized import dequantized, is_quantized, plain_layer


@contextmanager
def folded(model: Any) -> Iterator[None]:
    """Within the block, a model with LoRA adapters samples at the speed of one without.

    Nothing must be trained inside. Models without adapters, or with adapters of another kind,
    pass through unchanged.

    Args:
        model: Of Transformers, or of peft around one.
    """
    layers = _foldable(model)
    if not layers:
        yield
        return
    kept = [adapted_weight(layer).detach().clone() for layer in layers]
    try:
        for layer in layers:
            fold(layer)
        _switch(layers, on=False)  # of the model, it would switch off modules trained beside, too
        yield
    finally:
        _switch(layers, on=True)
        with torch.no_grad():
            for layer, weight in zip(layers, kept, strict=True):
                adapted_weight(layer).copy_(weight)


def folded_bytes(model: Any) -> int:
    """Return the memory of the copies that `folded` keeps of weights."""
    return sum(adapted_weight(layer).nbytes for layer in _foldable(model))


def _foldable(model: Any) -> list[Any]:
    """The adapted layers of a model; none if some cannot be folded."""
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    if not all(_is_plain(layer) for layer in layers) or _share_weights(layers):
        return []
    return layers


def adapted_weight(layer: Any) -> torch.nn.Parameter:
    """The weight that a layer of peft's adapts, as it is without adapters."""
    base = layer.get_base_layer()
    weight: torch.nn.Parameter = getattr(base, getattr(layer, "parameter_name", "weight"))
    return weight


def _is_plain(layer: Any) -> bool:
    """Tell if the layer computes W x + s B (A x) of a float W, and can be folded now."""
    return (
        (isinstance(layer.get_base_layer(), torch.nn.Linear) or adapts_parameter(layer))
        and not is_quantized(layer.get_base_layer())
        and not layer.merged
        and not layer.disable_adapters
        and not layer.lora_variant  # DoRA and the like
        and not any(layer.lora_bias.values())
    )


def adapts_parameter(layer: Any) -> bool:
    """Whether a layer of peft's adapts a parameter of a module of any kind."""
    from peft.tuners.lora.layer import ParamWrapper

    return isinstance(layer, ParamWrapper)


def _share_weights(layers: list[Any]) -> bool:
    """Whether several layers stand around one weight (`layer_replication`)."""
    return len({id(adapted_weight(layer)) for layer in layers}) < len(layers)


def _switch(layers: list[Any], *, on: bool) -> None:
    for layer in layers:
        layer.enable_adapters(on)


@torch.no_grad()
def fold(layer: Any) -> None:
    """Add to the adapted weight what the layer's adapters do, rounded once."""
    weight = adapted_weight(layer)
    for name in layer.active_adapters:
        if weight.dim() == 3:
            up, down, scale = layer.get_delta_factors(name)  # [E, m, r], [E, r, n]
            weight.copy_(torch.baddbmm(weight, up, down, alpha=scale))
        else:
            down, up = layer.lora_A[name].weight, layer.lora_B[name].weight  # [r, in], [out, r]
            weight.copy_(
                torch.addmm(weight, up.to(weight), down.to(weight), alpha=layer.scaling[name])
            )


@torch.no_grad()
def merged_quantized(layer: Any) -> nn.Module:
    """Return a plain layer in place of a 4-bit one, with what its adapters do added.

    The sum W + s B A is computed in float32 and rounded once, to the model's dtype.

    Args:
        layer: With a 4-bit weight, or of peft around one.
    """
    base = layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer
    weight = dequantized(base)
    total = weight.float()
    for name in getattr(layer, "active_adapters", ()):
        if name in getattr(layer, "lora_variant", {}):  # DoRA and the like
            total = layer.lora_variant[name].merge_safe(layer, name, total)
        elif name in layer.lora_A:
            down, up = layer.lora_A[name].weight, layer.lora_B[name].weight  # [r, in], [out, r]
            total = total + layer.scaling[name] * (up.float() @ down.float())
    return plain_layer(base, total.to(weight.dtype))
