"""LoRA adapters for vLLM servers: which ones they can serve, and their files.

A server keeps the untouched base and loads the adapters of each version under a new name, which
the requests of that version give as `model`. A request ends with the adapters that it began with.
Loading under one name in place would read the files again before every sampled token: vLLM 0.32
keeps `load_inplace` with the adapter, and applies it in each of its steps.
"""

from pathlib import Path
from typing import Any

import torch

# Adapters that begin otherwise change the base weights, which the server has unchanged.
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal", "mica", "lora_ga")
UNSERVED = {  # of peft's LoraConfig
    "use_dora": "DoRA",
    "lora_bias": "adapters with a bias",
    "modules_to_save": "modules that are trained beside adapters",
    "target_parameters": "adapters of single parameters, such as stacked experts",
    "trainable_token_indices": "token embeddings that are trained beside adapters",
    "alora_invocation_tokens": "adapters that act from a token on",
    "layer_replication": "layers that occur several times",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
}
# The ranks that vLLM can be started for (`--max-lora-rank`).
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def why_merged(model: Any) -> str | None:
    """Why vLLM cannot serve a model's adapters as such; None if it can.

    Args:
        model: Of Transformers, or of peft around one.
    """
    configs = getattr(model, "peft_config", None)
    if not configs:
        return "the model has no adapters"
    if len(configs) != 1:
        return f"the model has {len(configs)} sets of adapters"
    (config,) = configs.values()
    if getattr(config.peft_type, "value", config.peft_type) != "LORA":
        return f"vLLM serves LoRA, not {config.peft_type}"
    for name, what in UNSERVED.items():
        if getattr(config, name, None):
            return f"vLLM does not serve {what} (lora.{name})"
    if config.bias != "none":
        return f"vLLM does not serve trained biases (lora.bias: {config.bias})"
    if config.init_lora_weights not in PLAIN_STARTS:
        return f"init_lora_weights: {config.init_lora_weights} changes the weights of the base"
    if (rank := highest_rank(model)) > RANKS[-1]:
        return f"vLLM serves ranks up to {RANKS[-1]}, not {rank}"
    return _unserved_layer(model)


def highest_rank(model: Any) -> int:
    """The highest rank of a model's adapters; 0 where it has none."""
    ranks = [0]
    for config in (getattr(model, "peft_config", None) or {}).values():
        ranks += [getattr(config, "r", 0), *(getattr(config, "rank_pattern", None) or {}).values()]
    return max(ranks)


def server_rank(rank: int) -> int:
    """The least rank that vLLM can be started for and that holds a rank."""
    return next(each for each in RANKS if each >= rank)


def save_adapters(model: Any, folder: Path) -> Path:
    """Write a model's adapters as peft does; returns the folder of the files.

    Args:
        model: Of peft, with one set of adapters.
        folder: New, or empty.
    """
    (name,) = model.peft_config
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder if name == "default" else folder / name


def _unserved_layer(model: Any) -> str | None:
    causal = model.get_base_model()
    ends = [causal.get_input_embeddings(), causal.get_output_embeddings()]
    for name, module in causal.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        if any(module is end for end in ends):
            return f"{name} is adapted, the embedding or the head"
        if not isinstance(module.get_base_layer(), torch.nn.Linear):
            return f"{name} is adapted, and no linear layer"
    for name, weight in model.named_parameters():
        if weight.requires_grad and "lora_" not in name:
            return f"{name} is trained beside the adapters"
    return None
