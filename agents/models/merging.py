"""A model with adapters as one without them: merged layer by layer, without a second copy.

To save one, the weights are written as they are, under the names of a model without adapters. Then
each adapted layer is merged in a copy of its own, and what it gives overwrites its place in the
file. So at most one layer is there twice. Where stacked experts are adapted, which Transformers
writes one by one for most families, all adapted weights are there twice. A model of which it writes
some other adapted weight under another name or in another shape, or which trains whole modules
beside adapters, is merged in a copy.

Layers with 4-bit weights (agents/models/quantized.py) are written like adapted ones, with adapters
or without: each is dequantised, merged and written in turn.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from gymnast.agents.models.adapters import adapts_parameter, fold, merged_quantized
from gymnast.agents.models.mergeable import untie
from gymnast.agents.models.quantized import (
    dequantized,
    is_quantized,
    placeholder,
    plain_layer,
    quantized_layers,
)

WEIGHTS = "*.safetensors"


@dataclass(frozen=True)
class _Place:
    """Where a weight is in a file."""

    path: Path
    start: int  # in bytes
    size: int
    shape: list[int]


def save_merged(model: Any, folder: Path) -> None:
    """Save a model so that plain Transformers loads it; the model stays as it is.

    Args:
        model: Of Transformers, or of peft around one.
        folder: New.
    """
    if not hasattr(model, "merge_and_unload"):
        model.save_pretrained(folder)
        return
    untie(model)
    causal = model.get_base_model()
    if _trains_modules(causal):
        _merged_copy(model).save_pretrained(folder)
        return
    layers = _changed(causal)
    if any(adapts_parameter(layer) for layer in layers.values()):
        state = _bare_state(causal, layers) | dict(_merged_layers(layers))
        causal.save_pretrained(folder, state_dict=state)
        return
    causal.save_pretrained(folder, state_dict=_bare_state(causal, layers, fill=False))
    places = _places(folder)
    if all(_has_places(layer, name, places) for name, layer in layers.items()):
        for name, layer in layers.items():
            _overwrite(layer, name, places)
    else:
        for path in folder.glob(WEIGHTS):
            path.unlink()
        _merged_copy(model).save_pretrained(folder)


def save_base(model: Any, folder: Path) -> None:
    """Save a model without its adapters, as it was before them.

    Args:
        model: Of Transformers, or of peft around one.
        folder: New.
    """
    if not hasattr(model, "merge_and_unload"):
        model.save_pretrained(folder)
        return
    causal = model.get_base_model()
    causal.save_pretrained(folder, state_dict=_bare_state(causal, _changed(causal)))


@torch.no_grad()
def merged_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter by its name in the model without adapters, which are merged in.

    Weights that are tied come once. Those of layers without adapters are not copied.

    Args:
        model: Of Transformers, or of peft around one; it stays as it is.
    """
    if not hasattr(model, "merge_and_unload"):
        yield from _detached(model)
        return
    untie(model)
    causal = model.get_base_model()
    if _trains_modules(causal):
        yield from _detached(_merged_copy(model))
        return
    layers = _changed(causal)
    within = tuple(f"{layer}." for layer in layers)
    yield from ((name, weight) for name, weight in _detached(causal) if not name.startswith(within))
    yield from _merged_layers(layers)


def _merged_layers(layers: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of changed layers, merged, by their names in the model without adapters."""
    for name, layer in layers.items():
        for part, weight in _detached(_merged(layer)):
            yield f"{name}.{part}", weight


def _detached(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, weight.detach()) for name, weight in module.named_parameters())


@torch.no_grad()
def _merged(layer: Any) -> torch.nn.Module:
    """A copy of a layer, or of a module with stacked experts, with its adapters merged in."""
    if is_quantized(_base(layer)):
        return merged_quantized(layer)
    if not adapts_parameter(layer):
        copied = copy.deepcopy(layer)
        copied.merge()
        merged: torch.nn.Module = copied.get_base_layer()
        return merged
    around = copy.deepcopy(layer)
    while adapts_parameter(around):  # one around another, for each parameter of one module
        if not around.merged:
            fold(around)
        around = around.base_layer
    return cast("torch.nn.Module", around)


@torch.no_grad()
def _merged_copy(model: Any) -> Any:
    """A copy of a whole model, of Transformers, with its adapters merged in."""
    copied = copy.deepcopy(model)
    causal = copied.get_base_model()
    for name, layer in _changed(causal).items():
        if is_quantized(_base(layer)):
            causal.set_submodule(name, merged_quantized(layer))
    return copied.merge_and_unload()


def _changed(causal: Any) -> dict[str, Any]:
    """The layers that a model without adapters has others for, by name.

    They are those that adapters wrap, of layers around each other the outermost, and those with
    4-bit weights that none wraps.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = {
        n: module for n, module in causal.named_modules() if isinstance(module, BaseTunerLayer)
    }
    inner = {id(layer.base_layer) for layer in layers.values() if adapts_parameter(layer)}
    inner |= {id(layer.get_base_layer()) for layer in layers.values()}
    layers |= quantized_layers(causal)
    return {name: layer for name, layer in layers.items() if id(layer) not in inner}


def _base(layer: Any) -> Any:
    """The layer that adapters wrap, or the layer itself."""
    return layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer


def _trains_modules(causal: Any) -> bool:
    """Whether modules are trained beside adapters, of which peft keeps a copy."""
    from peft.utils.other import AuxiliaryTrainingWrapper

    return any(isinstance(module, AuxiliaryTrainingWrapper) for module in causal.modules())


def _bare_state(
    causal: Any, layers: dict[str, Any], *, fill: bool = True
) -> dict[str, torch.Tensor]:
    """The weights of the model without adapters, not copied, by their names there.

    Args:
        causal: The model within its adapters.
        layers: Those that it has others for.
        fill: Dequantise 4-bit weights; else placeholders take their places.
    """
    state: dict[str, torch.Tensor] = causal.state_dict()
    for name, layer in layers.items():
        for inner in [key for key in state if key.startswith(f"{name}.")]:
            del state[inner]
        base = _base(layer)
        if is_quantized(base):
            base = plain_layer(base, dequantized(base).cpu()) if fill else placeholder(base)
        for part, weight in base.state_dict().items():
            state[f"{name}.{part}"] = weight
    return state


def _places(folder: Path) -> dict[str, _Place]:
    """Where each weight is: a file begins with the length of its header (u64), which is JSON.

    https://huggingface.co/docs/safetensors/main/en/index#format
    """
    places = {}
    for path in folder.glob(WEIGHTS):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                places[name] = _Place(path, 8 + length + start, end - start, entry["shape"])
    return places


def _has_places(layer: Any, name: str, places: dict[str, _Place]) -> bool:
    base = _base(layer)
    base = placeholder(base) if is_quantized(base) else base
    for part, weight in base.state_dict().items():
        place = places.get(f"{name}.{part}")
        if place is None or (place.size, place.shape) != (weight.nbytes, list(weight.shape)):
            return False
    return True


@torch.no_grad()
def _overwrite(layer: Any, name: str, places: dict[str, _Place]) -> None:
    """Put the merged weights of a layer in their places."""
    for part, weight in _merged(layer).state_dict().items():
        place = places[f"{name}.{part}"]
        with place.path.open("r+b") as file:
            file.seek(place.start)
            file.write(memoryview(weight.cpu().contiguous().view(torch.uint8).numpy()))
