"""Base weights in 4 bits under LoRA adapters: QLoRA (Dettmers et al. 2023, arXiv:2305.14314).

bitsandbytes holds a linear layer as NormalFloat4 codes with a scale for each block of 64. The
scales are quantised in turn (double quantization): 0.52 bytes a weight in place of 2. A product
dequantises the weights into the dtype of its input, so the base is a fixed matrix W of that dtype.
Adapters are trained next to it and never folded in: W + s B A would have to be quantised again.
What is saved is W + s B A, summed in float32 and rounded once, as a plain model.

Nothing here imports bitsandbytes before a model has such layers.
"""

import copy
import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gymnast.errors import ModelError

# What Transformers leaves on a model that it quantised. Without it the model is saved as any other
# one, which is what its weights are by then.
_MARKS = ("hf_quantizer", "is_quantized", "quantization_method", "hf_device_map")
_CONFIG_MARKS = ("quantization_config", "_is_quantized", "_pre_quantization_dtype")


class _NoFusedKernel(logging.Filter):
    """Drops the warning that a kernel which is never used here is not installed."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        message = record.getMessage()
        return not ("gemm_4bit_forward" in message and "No module named 'kernels'" in message)


# bitsandbytes warns when it is imported, which peft does wherever it is installed.
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_NoFusedKernel())


def is_quantized(layer: Any) -> bool:
    """Return whether a layer itself holds a 4-bit weight."""
    return is_quantized_weight(getattr(layer, "_parameters", {}).get("weight"))


def is_quantized_weight(weight: Any) -> bool:
    """Return whether a weight is in 4 bits."""
    library = sys.modules.get("bitsandbytes")
    return library is not None and isinstance(weight, library.nn.Params4bit)


def quantized_layers(model: nn.Module) -> dict[str, Any]:
    """The layers of a model with 4-bit weights, by name; adapters around them are not named."""
    return {name: module for name, module in model.named_modules() if is_quantized(module)}


def has_quantized_layers(model: nn.Module) -> bool:
    """Return whether a model has layers with 4-bit weights."""
    return any(map(is_quantized, model.modules()))


def use_exact_layers(model: Any) -> None:
    """Have 4-bit layers compute one base everywhere, and the model saved as a plain one.

    A model without such layers, or one that was prepared before, stays as it is.

    Args:
        model: Of Transformers, or of peft around one, loaded with a `BitsAndBytesConfig`.

    Raises:
        ModelError: It was computed before, on a CPU for which bitsandbytes changed its weights.
    """
    layers = quantized_layers(model)
    if not layers:
        return
    from gymnast.agents.models.linear4bit import ExactLinear4bit

    for layer in layers.values():
        if getattr(layer.weight.quant_state, "packing_format_for_cpu", False):
            raise ModelError(
                "the model's 4-bit weights were packed by bitsandbytes for this CPU, which rounded "
                "their scales, when it was computed before. Load it again, and hand it over first."
            )
        layer.__class__ = ExactLinear4bit
        layer.exact()
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            for mark in _MARKS:
                vars(module).pop(mark, None)
            for mark in _CONFIG_MARKS:
                vars(module.config).pop(mark, None)


def dequantized(layer: Any) -> torch.Tensor:
    """Return the weight [out, in] that a 4-bit layer multiplies with, in its model's dtype."""
    from gymnast.agents.models.linear4bit import dequantize

    return dequantize(layer.weight)


def plain_layer(layer: Any, weight: torch.Tensor) -> nn.Module:
    """Return the layer that a 4-bit layer was before, with a given weight.

    Args:
        layer: With a 4-bit weight.
        weight: [out, in].
    """
    like: Any = Conv1D if getattr(layer, "source_cls", None) is Conv1D else nn.Linear
    with torch.device("meta"):
        if like is Conv1D:  # which holds its weight as [in, out]
            plain: nn.Module = Conv1D(layer.out_features, layer.in_features)
            weight = weight.T.contiguous()
        else:
            plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    plain.weight = nn.Parameter(weight, requires_grad=False)
    if layer.bias is not None:
        plain.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
    return plain


def placeholder(layer: Any) -> nn.Module:
    """Return a plain layer of a 4-bit layer's shape, on the CPU, whose weight is not filled in.

    Memory that nobody writes to is not taken.
    """
    shape = layer.weight.quant_state.shape
    return plain_layer(layer, torch.empty(shape, dtype=layer.weight.quant_state.dtype))


def saved_bytes(model: nn.Module) -> int:
    """Return how many bytes the weights of a model take once it is saved, without its adapters."""
    return sum(map(_saved_bytes, model.parameters()))


def _saved_bytes(weight: Any) -> int:
    if not is_quantized_weight(weight):
        return int(weight.nbytes)
    return int(weight.quant_state.shape.numel() * weight.quant_state.dtype.itemsize)


def scale_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """The tensors of 4-bit layers that are neither parameters nor buffers: scales and codes."""
    for layer in quantized_layers(model).values():
        state = layer.weight.quant_state
        yield from (state.absmax, state.code)
        if state.nested:
            yield from (state.offset, state.state2.absmax, state.state2.code)


def copy_to(weight: Any, device: torch.device) -> nn.Parameter:
    """Return a copy of a weight on a device, frozen; a 4-bit weight with its scales.

    Args:
        weight: A parameter of any kind.
        device: Of the copy.
    """
    if not is_quantized_weight(weight):
        moved = weight.detach().to(device, copy=True)
        return nn.Parameter(moved, requires_grad=False)
    copied: nn.Parameter = copy.deepcopy(weight).to(device)
    return copied
