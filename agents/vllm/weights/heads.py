"""Heads of vLLM servers: those that share the embedding's weight, and those in float32.

vLLM's CPU build computes the head with a packed copy of its weight. A head with a weight of its own
is packed anew with each new weight; one that shares the embedding's is not, and goes on as it was
when the server started, without a word. So servers on a CPU are started with
`--hf-overrides '{"tie_word_embeddings": false}'` and get the head's weight explicitly.

A model whose head has a weight of its own needs servers that have one, too. Those that a run starts
read it in the configuration that the run writes. Servers that were started with a tied model are
refused, and so are families for which vLLM has no head but the embedding.

Where the run computes logits in float32 (`model.float32_head`), so do the servers that it starts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from gymnast.agents.models.float32_head import Float32Head
from gymnast.errors import ConfigError

FILE = "head.safetensors"
INDEX = "model.safetensors.index.json"
# Fields of the model's config that a server is started with in place of those in its folder.
UNTIED: Mapping[str, Any] = {"tie_word_embeddings": False}
IN_FLOAT32: Mapping[str, Any] = {"head_dtype": "float32"}

# Families whose logits vLLM 0.32 computes with the embedding, whatever their configuration says.
ALWAYS_TIED = {
    *("cohere", "cohere2", "cohere2_moe", "gemma2", "gemma3n", "gemma3n_text"),
    *("lfm2", "lfm2_moe", "zamba2"),
}


def option(overrides: Mapping[str, Any]) -> tuple[str, ...]:
    """The option of `vllm serve` that overrides fields of the model's config."""
    return ("--hf-overrides", json.dumps(overrides)) if overrides else ()


def has_float32_head(model: Any) -> bool:
    """Whether a model's head is computed in float32 although its weights are not."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    return type(causal.get_output_embeddings()) is Float32Head


def is_tied(model: Any) -> bool:
    """Whether a model's head shares the weight of its embedding."""
    return bool(_tied_names(model))


def trains_tied_head(model: Any) -> bool:
    """Whether training changes a weight that embedding and head share."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not is_tied(model):
        return False
    ends = (causal.get_input_embeddings(), causal.get_output_embeddings())
    return any(weight.requires_grad for end in ends for weight in end.parameters())


def has_own_head(model: Any) -> bool:
    """Return True if a model's head has a weight of its own."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal.get_output_embeddings() is not None and not is_tied(model)


def check_own_head(model: Any) -> None:
    """Check that vLLM can have a head as the model has.

    Raises:
        ConfigError: The model's head has a weight of its own, and that in vLLM has none.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    family = causal.config.get_text_config().model_type
    if family in ALWAYS_TIED and has_own_head(model):
        raise ConfigError(
            f"agent.backend: vLLM computes the logits of {family} with the embedding, and this "
            "model has a head of its own (adapters on either make them differ): it would sample "
            "from another model. Leave the embedding and the head out of model.lora, or sample in "
            "the training process (agent.backend: transformers)"
        )


def save_head(model: Any, folder: Path) -> None:
    """Add the head to a saved model, as a weight of its own; nothing if it has one.

    Args:
        model: That was saved.
        folder: With its safetensors files.
    """
    index = json.loads((folder / INDEX).read_text()) if (folder / INDEX).exists() else None
    for head, embedding in _tied_names(model).items():
        file = folder / (index["weight_map"][embedding] if index else "model.safetensors")
        with safe_open(file, "pt") as saved:
            if head in saved.keys():  # noqa: SIM118 - it is no dict
                continue
            weight = saved.get_tensor(embedding)
        save_file({head: weight}, folder / FILE, metadata={"format": "pt"})
        if index:
            index["weight_map"][head] = FILE
            (folder / INDEX).write_text(json.dumps(index))


def _tied_names(model: Any) -> dict[str, str]:
    """The name of the head's weight in a file, and that of the embedding's, if they are one."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    head, embedding = causal.get_output_embeddings(), causal.get_input_embeddings()
    if head is None or not causal.config.get_text_config().tie_word_embeddings:
        return {}
    names = {id(module): name for name, module in causal.named_modules()}
    return {f"{names[id(head)]}.weight": f"{names[id(embedding)]}.weight"}
