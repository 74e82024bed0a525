"""`model.quantization`: base weights that are quantised while they are loaded, under adapters.

Transformers reads one weight at a time and quantises it where it is computed fastest, so a model
never has its whole weights in memory. Embeddings, the head and norms stay as they are.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from gymnast.agents.models.experts import expert_blocks, linear_layers, never_called
from gymnast.agents.models.quantized import use_exact_layers
from gymnast.errors import ModelError
from gymnast.lookup import did_you_mean

# Names of types of weights, as bitsandbytes has them.
QUANTIZATIONS = ("nf4",)
_DTYPES = (torch.bfloat16, torch.float32)
_INSTALL = "pip install 'gymnast-rl[quantization]'"


def check_quantization(
    quantization: str | None, *, lora: Mapping[str, Any] | None, dtype: torch.dtype | None
) -> None:
    """Check a request for quantised weights before anything is loaded.

    Args:
        quantization: As for `load_model`.
        lora: Likewise.
        dtype: Likewise; None where the checkpoint decides.

    Raises:
        ModelError: The name is not known, there are no adapters to train, the dtype cannot be
            quantised, or bitsandbytes is not installed.
    """
    if quantization is None:
        return
    if quantization not in QUANTIZATIONS:
        hint = did_you_mean(str(quantization), QUANTIZATIONS)
        raise ModelError(
            f"quantization: must be one of {', '.join(QUANTIZATIONS)}, or left out, got "
            f"{quantization!r:.100}.{hint}"
        )
    if lora is None:
        raise ModelError(
            f"quantization: is {quantization}, and there are no adapters: 4-bit weights cannot be "
            "trained themselves. Add lora ({rank: 16}), or leave quantization out."
        )
    _check_dtype(quantization, dtype)
    if find_spec("bitsandbytes") is None:
        raise ModelError(
            f"quantization: is {quantization}, which needs the bitsandbytes package; run: "
            f"{_INSTALL}"
        )


def _check_dtype(quantization: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in _DTYPES:
        raise ModelError(
            f"dtype: must be bfloat16 or float32 with quantization {quantization}, got "
            f"{str(dtype).removeprefix('torch.')}: adapters are trained in it. Set dtype to "
            "bfloat16."
        )


def quantized_from(
    name: str, config: Any, load: Any, *, quantization: str, dtype: torch.dtype | None
) -> Any:
    """Load a model whose linear layers are quantised, on the CPU.

    Double quantization is on, as in the paper: it saves 0.05 bytes a weight, and its error is that
    of a scale in 8 bits.

    Args:
        name: Of the model, for messages.
        config: The model's.
        load: A `from_pretrained`; it gets the keywords of quantisation.
        quantization: One of `QUANTIZATIONS`.
        dtype: Of what is not quantised, and of products; None for the checkpoint's own.

    Raises:
        ModelError: The checkpoint is quantised already or in another dtype, or the model has
            weights that would stay as large as they are.
    """
    from transformers import BitsAndBytesConfig

    if (before := getattr(config, "quantization_config", None)) is not None:
        method = (
            before.get("quant_method") if isinstance(before, Mapping) else type(before).__name__
        )
        raise ModelError(
            f"quantization: is {quantization}, and the checkpoint of {name!r} is quantised already "
            f"({method}). Name the model that it was made from."
        )
    _check_dtype(quantization, dtype or _own_dtype(config))
    how = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization,
        bnb_4bit_use_double_quant=True,
        llm_int8_skip_modules=_left_as_they_are(name, config, quantization),
    )
    model = load(dtype=dtype or "auto", quantization_config=how, device_map={"": _fastest_device()})
    _check_dtype(quantization, model.dtype)
    use_exact_layers(model)
    return model.to("cpu")


def _left_as_they_are(name: str, config: Any, quantization: str) -> list[str]:
    """The names of modules that are not quantised: the head, and layers that are never called.

    Raises:
        ModelError: Most of the model would not be quantised.
    """
    from transformers import AutoModelForCausalLM
    from transformers.quantizers.base import get_keys_to_not_convert

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    layers = linear_layers(model)
    unused = [layer for layer in layers if never_called(model, layer)]
    # bitsandbytes and Transformers quantise layers of these very classes, and no subclasses.
    plain = {
        layer for layer in layers if type(model.get_submodule(layer)) in (torch.nn.Linear, Conv1D)
    }
    quantised = {f"{layer}.weight" for layer in plain.difference(unused)}
    sizes = {
        weight: parameter.numel()
        for weight, parameter in model.named_parameters()
        if not _is_of_vocabulary(model, weight)
    }
    left = {weight: size for weight, size in sizes.items() if weight not in quantised}
    blocks = expert_blocks(model)
    if blocks or 2 * sum(left.values()) > sum(sizes.values()):
        largest = max(left, key=left.__getitem__)
        kind = "experts are stacked matrices" if blocks else "layers are of other classes"
        raise ModelError(
            f"quantization: is {quantization}, which holds layers of torch.nn.Linear in 4 bits, "
            f"and the {kind} in {type(model).__name__} ({largest}): most of {name!r} would stay in "
            "full size. Leave quantization out."
        )
    return [*get_keys_to_not_convert(model), *unused]


def _is_of_vocabulary(model: Any, weight: str) -> bool:
    """Tell if a weight is of an embedding or of the head, which are never quantised."""
    module = model.get_submodule(weight.rpartition(".")[0])
    return isinstance(module, torch.nn.Embedding) or module is model.get_output_embeddings()


def _own_dtype(config: Any) -> torch.dtype | None:
    dtype = getattr(config.get_text_config(), "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else None


def _fastest_device() -> str:
    """Name the device that quantises weights: this process's GPU, if there is one."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
